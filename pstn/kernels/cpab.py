# Triton's language, not quite Python: its tensors have no annotations.
# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
r"""The coordinate function of CPAB in two dimensions: every pixel walks from triangle to triangle.

The mathematics is that of :mod:`pstn.families.cpab.walk`; the frame makes it short. A box has the coordinates
:math:`p = \xi + \eta`, :math:`q = \xi - \eta` from its centre, in boxes. Its four triangles are the four pairs of signs
of p and q, the weights of a triangle's corners are :math:`|p|`, :math:`|q|` and :math:`1 - |p| - |q|` (the box's
centre). Where p or q is zero its sign flips; where the centre's weight is zero, p and q lose their signs' units and
both flip, one box on. No table of neighbours, and the derivative of a crossing is the identity.

Arithmetic is float32; p, q and the time left are sums of two numbers, so that what is lost in a step does not add up.

The gradient needs no memory of the way. Over a stretch of it, one walk finds the derivative J of the end by the start,
and with it the adjoint at the start, :math:`\lambda = J^T g`; a second walk carries :math:`\lambda` along and adds up
what each step is worth to the corners' velocities. On the way it takes the product J apart again, step by step, which
magnifies rounding by the condition number of J. So these few numbers are float64, and a stretch ends where J has
squeezed by ``SQUEEZE``: the last stretch is done first, and the walk through it finds, on its way there, the J of the
stretch before. Few ways have more than one; a way of n stretches is walked n times. All walks take the same steps.
"""

import math

import triton
import triton.language as tl

#: The longest step in units of 1 / spectral radius, the last power of its series, and where these start.
REACH = tl.constexpr(1.0)
LAST = tl.constexpr(11)
#: 1 / k!
OVER = tl.constexpr(tuple(1 / math.factorial(k) for k in range(13)))
#: How far beyond an edge a step may end, in barycentric coordinates; half of it is aimed at.
SLACK = tl.constexpr(2.0**-22)
#: How far a step is corrected by its first derivatives, in units of 1 / spectral radius.
NEAR = tl.constexpr(2e-3)
#: More steps than any pixel takes; one that did would come out as NaN.
MOST = tl.constexpr(65536)
#: The numbers before the velocities: how many boxes there are along x and y.
HEAD = tl.constexpr(2)
#: How much the derivative of a stretch may squeeze or grow; float64 then loses less than float32's rounding.
SQUEEZE = tl.constexpr(2.0**28)
#: The largest number an adjoint is taken for, so that sums of any are finite.
HUGE = tl.constexpr(1e30)


@triton.jit
def read(where, steps, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """How many boxes there are."""
    return (tl.load(where), tl.load(where + steps[0]))


@triton.jit
def place(theta, where, steps, pixel, p, live, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """Where p is after unit time, and for :func:`pull` the last stretch's derivative; unused, it costs nothing."""
    return walk(theta, where, steps[0], p, live, 0, 0, 0.0, 0.0, None, BACK=False)


@triton.jit
def pull(sums, theta, where, steps, pixel, p, u, live, g, into, size, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """The gradient to the velocities, added to ``into``, which must be zero before."""
    # the end's x is (2 i + 1 + p + q) / n - 1, its y has p - q
    end_p = g[0] / theta[0] + g[1] / theta[1]
    end_q = g[0] / theta[0] - g[1] / theta[1]
    # the stretch from step ``first`` to ``last``, and the adjoint where it starts
    first = u[2]
    last = tl.where(live, MOST, 0)
    to_p = u[3] * end_p + u[5] * end_q
    to_q = u[4] * end_p + u[6] * end_q
    while tl.max(last, axis=0) > 0:
        before, to_p, to_q = walk(theta, where, steps[0], p, last > 0, first, last, to_p, to_q, into, BACK=True)
        last = tl.where(last > 0, first, 0)
        first = before
    return sums


@triton.jit
def box_of(x, n):
    """The box of a normalised position along an axis, where in it as a sum of two numbers, the centre at zero."""
    one = x + 1.0
    cell = one * (n * 0.5)
    # what rounding took: the upper half of the digits times a small whole number is exact, and so is the lower half
    upper = (one.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    rest = ((upper * (n * 0.5) - cell) + (one - upper) * (n * 0.5)) + (x - (one - 1.0)) * (n * 0.5)
    # the right border belongs to the last box inside
    box = tl.where(cell == n, n - 1.0, tl.floor(cell))
    return box.to(tl.int32), cell - box - 0.5, rest


@triton.jit
def add(high, low, more):
    """high + low + more as a sum of two numbers."""
    total = high + more
    part = total - high
    low += (high - (total - part)) + (more - part)
    high = total + low
    return high, low - (high - total)


@triton.jit
def root(gap, first, second):
    """The first root of the parabola gap + first t + second t² / 2 where it falls, without cancellation."""
    # what turns round first must get beyond the place where it is, or no time would pass
    gap = tl.maximum(gap + 0.5 * SLACK, 0.0) + tl.where(first < 0, 0.0, 0.125 * SLACK)
    square = first * first - 2.0 * gap * second
    big = tl.sqrt(tl.maximum(square, 0.0)) + tl.abs(first)
    # what is too small for a division (at rest in a sink) gets nowhere
    falling = tl.where((square < 0) | (big < 1e-30), 1e30, 2.0 * gap / tl.maximum(big, 1e-30))
    turning = tl.where(second < -1e-30, big / tl.maximum(-second, 1e-30), 1e30)
    return tl.where(first < 0, falling, turning)


@triton.jit
def halley(value, slope, bend):
    """The step to a root by Halley's method, and none where the function does not fall."""
    below = value * bend - 2.0 * slope * slope
    step = 2.0 * value * slope / tl.where(below == 0, 1.0, below)
    return tl.where((slope < 0) & (tl.abs(step) < 1e30), step, 0.0)


@triton.jit
def beyond(height, ahead, first, second, last, s, turn):
    """How far a step of time s may lie beyond an edge: as in the reference, by the Bernstein points of a cubic."""
    third = s * (1 / 3)
    rest = s * (2.7182818 / 384) * turn * turn * (turn * tl.abs(first) + s * tl.abs(second))
    lowest = tl.minimum(height + third * first, ahead - third * last) - rest
    return tl.minimum(height, 0.0) - tl.minimum(lowest, ahead)


@triton.jit
def walk(theta, where, step, start, live, first, last, to_p, to_q, into, BACK: tl.constexpr):
    """Carry points along for unit time.

    Returns their ends, x and y, the step where the last stretch starts, and its derivative in the frame (p, q).

    With BACK they go as far as step ``last``, and (to_p, to_q) is the adjoint at step ``first``. From there on the
    gradient to the velocities is added to ``into``. Returns the start of the stretch before, and the adjoint there.
    """
    n = theta[0].to(tl.int32)
    m = theta[1].to(tl.int32)
    i, xi, xi_low = box_of(start[0], theta[0])
    j, eta, eta_low = box_of(start[1], theta[1])
    p, p_low = add(xi, xi_low + eta_low, eta)
    q, q_low = add(xi, xi_low - eta_low, -eta)
    one = tl.full(p.shape, 1.0, tl.float32)
    sq = tl.where(q >= 0, one, -one)
    sp = tl.where(p == 0, -sq, tl.where(p > 0, one, -one))  # on an edge as the reference chooses
    left = tl.where(live, one, 0.0)
    left_low = tl.zeros_like(left)
    reach = one
    pp = tl.full(p.shape, 1.0, tl.float64)
    pq = tl.zeros_like(pp)
    qp = tl.zeros_like(pp)
    qq = pp
    since = tl.zeros_like(i)

    steps = 0
    while (tl.max(left, axis=0) > 0) & (steps < MOST):
        # where a stretch ends, another begins
        size = pp * pp + pq * pq + (qp * qp + qq * qq)
        full = tl.maximum(size, 1.0) > SQUEEZE * tl.minimum(tl.abs(pp * qq - pq * qp), 1.0)
        if BACK:
            full = full & (steps < first)
            here = steps == first
            before_p = pp * to_p + qp * to_q
            before_q = pq * to_p + qq * to_q
            # pp and qq are the adjoint's p and q from here on
            pp = tl.where(here, to_p, pp)
            qq = tl.where(here, to_q, qq)
            to_p = tl.where(here, before_p, to_p)
            to_q = tl.where(here, before_q, to_q)
        since = tl.where(full, steps, since)
        pp = tl.where(full, 1.0, pp)
        pq = tl.where(full, 0.0, pq)
        qp = tl.where(full, 0.0, qp)
        qq = tl.where(full, 1.0, qq)
        # the triangle: velocities c at the box's centre, a at the corner where |p| = 1, b where |q| = 1
        column = tl.minimum(tl.maximum(i, -1), n) + 1
        row = tl.minimum(tl.maximum(j, -1), m) + 1
        right_p = (sp > 0).to(tl.int32)
        right_q = (sq > 0).to(tl.int32)
        corners = (n + 2) * (m + 2)
        at_c = (row * (n + 2) + column) * 2 + HEAD
        at_a = (corners + (row + right_p) * (n + 3) + column + right_p) * 2 + HEAD
        at_b = (corners + (row + 1 - right_q) * (n + 3) + column + right_q) * 2 + HEAD
        c_p = tl.load(where + at_c * step)
        c_q = tl.load(where + (at_c + 1) * step)
        a_p = tl.load(where + at_a * step)
        a_q = tl.load(where + (at_a + 1) * step)
        b_p = tl.load(where + at_b * step)
        b_q = tl.load(where + (at_b + 1) * step)
        a = sp * p
        b = sq * q
        c = (1.0 - tl.maximum(a, b)) - tl.minimum(a, b)
        # the velocity, the matrix A of its slopes, and A times the velocity
        v_p = c_p * c + (a_p * a + b_p * b)
        v_q = c_q * c + (a_q * a + b_q * b)
        m_pp = sp * (a_p - c_p)
        m_pq = sq * (b_p - c_p)
        m_qp = sp * (a_q - c_q)
        m_qq = sq * (b_q - c_q)
        w_p = m_pp * v_p + m_pq * v_q
        w_q = m_qp * v_p + m_qq * v_q
        trace = m_pp + m_qq
        minus_det = m_pq * m_qp - m_pp * m_qq
        radius = tl.abs(trace) + tl.sqrt(tl.abs(minus_det))
        limit = tl.minimum(tl.minimum(left, reach), REACH / tl.maximum(radius, 1e-30))

        # the edge that is met first: a = 0, b = 0 or c = 0, with its derivatives
        a_1 = sp * v_p
        a_2 = sp * w_p
        b_1 = sq * v_q
        b_2 = sq * w_q
        c_1 = -(a_1 + b_1)
        c_2 = -(a_2 + b_2)
        s = root(a, a_1, a_2)
        t_b = root(b, b_1, b_2)
        t_c = root(c, c_1, c_2)
        by_b = t_b < s
        s = tl.minimum(s, t_b)
        by_c = t_c < s
        by_b = by_b & (by_c == 0)
        s = tl.minimum(s, t_c)
        h = tl.where(by_c, c, tl.where(by_b, b, a)) + 0.5 * SLACK
        h_1 = tl.where(by_c, c_1, tl.where(by_b, b_1, a_1))
        h_2 = tl.where(by_c, c_2, tl.where(by_b, b_2, a_2))
        leaving = s < 1.25 * limit
        s = tl.minimum(s, limit)

        # a better estimate of the time, by a polynomial of order six
        h_3 = trace * h_2 + minus_det * h_1
        h_4 = trace * h_3 + minus_det * h_2
        h_5 = trace * h_4 + minus_det * h_3
        h_6 = trace * h_5 + minus_det * h_4
        value = h_6 * (1 / 720)
        slope = value
        value = value * s + h_5 * (1 / 120)
        bend = slope
        slope = slope * s + value
        value = value * s + h_4 * (1 / 24)
        bend = bend * s + slope
        slope = slope * s + value
        value = value * s + h_3 * (1 / 6)
        bend = bend * s + slope
        slope = slope * s + value
        value = value * s + h_2 * 0.5
        bend = bend * s + slope
        slope = slope * s + value
        value = value * s + h_1
        bend = bend * s + slope
        slope = slope * s + value
        value = value * s + h
        bend = 2.0 * bend
        better = tl.minimum(tl.maximum(s + halley(value, slope, bend), 0.5 * s), limit)
        s = tl.where(leaving, better, s)

        # b(s) = b + f_1 v + f_2 A v, and the derivatives of f
        q_1 = trace * s
        q_2 = minus_det * s * s
        w_1 = one
        w_2 = tl.zeros_like(one)
        f_2 = 0.5 * one
        f_1 = one
        for k in tl.static_range(3, LAST + 1):
            next_w = q_1 * w_1 + q_2 * w_2
            w_2 = w_1
            w_1 = next_w
            f_1 += OVER[k - 1] * w_1
            f_2 += OVER[k] * w_1
        f_1 = (f_1 - q_1 * f_2) * s
        f_2 = f_2 * s * s
        g_1 = 1.0 + minus_det * f_2
        g_2 = f_1 + trace * f_2
        d_1 = minus_det * g_2
        d_2 = g_1 + trace * g_2
        shift = halley(h + (f_1 * h_1 + f_2 * h_2), g_1 * h_1 + g_2 * h_2, d_1 * h_1 + d_2 * h_2)
        near = leaving & (tl.abs(shift) * radius < NEAR) & (s + shift > 0.5 * s) & (s + shift <= limit)
        shift = tl.where(near, shift, 0.0)
        s += shift
        f_1 += shift * (g_1 + 0.5 * shift * d_1)
        f_2 += shift * (g_2 + 0.5 * shift * d_2)
        g_1 = 1.0 + minus_det * f_2
        g_2 = f_1 + trace * f_2

        # where that leads, and whether all of the way lies inside
        by_p = f_1 * v_p + f_2 * w_p
        by_q = f_1 * v_q + f_2 * w_q
        a_0 = a + sp * by_p
        b_0 = b + sq * by_q
        c_0 = c - (sp * by_p + sq * by_q)
        last_a = g_1 * a_1 + g_2 * a_2
        last_b = g_1 * b_1 + g_2 * b_2
        last_c = -(last_a + last_b)
        turn = radius * s
        out = tl.maximum(beyond(a, a_0, a_1, a_2, last_a, s, turn), beyond(b, b_0, b_1, b_2, last_b, s, turn))
        out = tl.maximum(out, beyond(c, c_0, c_1, c_2, last_c, s, turn))
        good = (left > 0) & (out <= SLACK)
        reach = tl.where(good, one, 0.5 * s)
        s = tl.where(good, s, 0.0)

        e_pp = (g_1 + g_2 * m_pp).to(tl.float64)
        e_pq = (g_2 * m_pq).to(tl.float64)
        e_qp = (g_2 * m_qp).to(tl.float64)
        e_qq = (g_1 + g_2 * m_qq).to(tl.float64)
        next_p = e_pp * pp + e_pq * qp
        next_q = e_qp * pq + e_qq * qq
        pq = tl.where(good, e_pp * pq + e_pq * qq, pq)
        qp = tl.where(good, e_qp * pp + e_qq * qp, qp)
        if BACK:
            # the adjoint at the end of the step
            adding = steps >= first
            over = 1.0 / (e_pp * e_qq - e_pq * e_qp)
            mu_p = (e_qq * pp - e_qp * qq) * over
            mu_q = (e_pp * qq - e_pq * pp) * over
            next_p = tl.where(adding, mu_p, next_p)
            next_q = tl.where(adding, mu_q, next_q)
        pp = tl.where(good, next_p, pp)
        qq = tl.where(good, next_q, qq)
        if BACK:
            adding = adding & good
            mu_p = tl.minimum(tl.maximum(mu_p, -HUGE), HUGE).to(tl.float32)
            mu_q = tl.minimum(tl.maximum(mu_q, -HUGE), HUGE).to(tl.float32)
            # f depends on A by its trace and determinant: one more series
            q_1 = trace * s
            q_2 = minus_det * s * s
            w_1 = one
            w_2 = tl.zeros_like(one)
            y_1 = one
            y_2 = tl.zeros_like(one)
            y_a = OVER[4] * one
            y_b = OVER[3] * one
            for k in tl.static_range(5, LAST + 2):
                next_w = q_1 * w_1 + q_2 * w_2
                w_2 = w_1
                w_1 = next_w
                next_y = q_1 * y_1 + (q_2 * y_2 + w_1)
                y_2 = y_1
                y_1 = next_y
                y_b += OVER[k - 1] * y_1
                y_a += OVER[k] * y_1
            y_b = y_b * s * s * s
            y_a = y_a * s * s * s * s
            to_1 = mu_p * v_p + mu_q * v_q
            to_2 = mu_p * w_p + mu_q * w_q
            to_trace = to_1 * minus_det * y_a + to_2 * y_b
            to_det = to_1 * (y_b - trace * y_a) + to_2 * y_a
            # to the velocity at the start, and to A
            v_to_p = f_1 * mu_p + f_2 * (m_pp * mu_p + m_qp * mu_q)
            v_to_q = f_1 * mu_q + f_2 * (m_pq * mu_p + m_qq * mu_q)
            to_pp = sp * (f_2 * mu_p * v_p + to_trace - to_det * m_qq)
            to_pq = sq * (f_2 * mu_p * v_q + to_det * m_qp)
            to_qp = sp * (f_2 * mu_q * v_p + to_det * m_pq)
            to_qq = sq * (f_2 * mu_q * v_q + to_trace - to_det * m_pp)
            tl.atomic_add(into + at_a, a * v_to_p + to_pp, mask=adding, sem="relaxed")
            tl.atomic_add(into + at_a + 1, a * v_to_q + to_qp, mask=adding, sem="relaxed")
            tl.atomic_add(into + at_b, b * v_to_p + to_pq, mask=adding, sem="relaxed")
            tl.atomic_add(into + at_b + 1, b * v_to_q + to_qq, mask=adding, sem="relaxed")
            tl.atomic_add(into + at_c, c * v_to_p - to_pp - to_pq, mask=adding, sem="relaxed")
            tl.atomic_add(into + at_c + 1, c * v_to_q - to_qp - to_qq, mask=adding, sem="relaxed")

        steps += 1
        done = s >= left
        if BACK:
            done = done | (steps >= last)
        left, left_low = add(left, left_low, -s)
        left = tl.where(done, 0.0, tl.maximum(left, 1e-30))
        p, p_low = add(p, p_low, tl.where(good, by_p, 0.0))
        q, q_low = add(q, q_low, tl.where(good, by_q, 0.0))
        height = tl.where(by_c, c_0, tl.where(by_b, b_0, a_0))
        speed = tl.where(by_c, last_c, tl.where(by_b, last_b, last_a))
        cross = good & (height <= 0) & (speed < 0) & (left > 0)
        on = cross & by_c
        along = on & (sp == sq)
        i += tl.where(along, sp, 0.0).to(tl.int32)
        j += tl.where(on & (along == 0), sp, 0.0).to(tl.int32)
        p, p_low = add(p, p_low, tl.where(on, -sp, 0.0))
        q, q_low = add(q, q_low, tl.where(on, -sq, 0.0))
        sp = tl.where(cross & (by_b == 0), -sp, sp)
        sq = tl.where(cross & (by_b | by_c), -sq, sq)

    if BACK:
        found = (since, to_p, to_q)
    else:
        x = (2 * i + 1 - n).to(tl.float32) + ((p + q) + (p_low + q_low))
        y = (2 * j + 1 - m).to(tl.float32) + ((p - q) + (p_low - q_low))
        lost = left > 0
        x = tl.where(lost, float("nan"), x / theta[0])
        y = tl.where(lost, float("nan"), y / theta[1])
        found = (x, y, since, pp, pq, qp, qq)
    return found
