"""One point's walk and its adjoint in scalars, for Numba to compile; without it they are plain Python, and slow.

The steps are those of :mod:`pstn.families.cpab.walk`, whose names and comments hold here too. Vectors are rows of a
scratch array; f_1, f_2, f_3 and P_1, P_2, P_3 are scalars, the third one zero in 2-D. The dimension is the length of
the tuple ``dims``: a constant to the compiler, which writes the loops out.
"""

# Numba finds the types by itself, and what it compiles is better left without annotations.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from pstn.families.cpab.cell import REACH
from pstn.families.cpab.walk import NEAR, ORDER, SLACK

#: Terms that the series need for a step up to i / 32 of the longest, and the inverse factorials in them.
NEEDED = np.array(
    [next(n for n in range(2, 40) if (REACH * (i + 1) / 32) ** n / math.factorial(n + 1) < 1e-17) for i in range(32)]
)
OVER = np.array([1 / math.factorial(n) for n in range(48)])


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled by Numba where that is installed."""
    if find_spec("numba") is None:
        return function
    numba = import_module("numba")
    return numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)


@compiled
def functions(dims, p1, p2, p3, s, turn):
    """f_1, f_2, f_3 at s, by the series of beta and its derivatives."""
    k = len(dims)
    q1, q2, q3 = p1 * s, p2 * s * s, p3 * s * s * s
    w1, w2, w3 = 1.0, 0.0, 0.0
    a0, a1, a2 = OVER[k], OVER[k - 1], OVER[k - 2]
    for n in range(k + 1, k + NEEDED[min(31, int(turn * (32 / REACH)))]):
        w1, w2, w3 = q1 * w1 + (q2 * w2 + q3 * w3), w1, w2
        a0 += w1 * OVER[n]
        a1 += w1 * OVER[n - 1]
        a2 += w1 * OVER[n - 2]
    if k == 2:
        return (a1 - q1 * a0) * s, a0 * s * s, 0.0
    return (a2 - q1 * a1 - q2 * a0) * s, (a1 - q1 * a0) * s * s, a0 * s * s * s


@compiled
def slopes(dims, p1, p2, p3, f1, f2, f3, one):
    """The derivatives of f by f; higher ones with ``one`` = 0."""
    k = len(dims)
    if k == 2:
        return one + p2 * f2, f1 + p1 * f2, 0.0
    return one + p3 * f3, f1 + p2 * f3, f2 + p1 * f3


@compiled
def gammas(dims, p1, p2, p3, s, turn):
    """gamma and its first two derivatives at s, from which come the derivatives of f by P."""
    k = len(dims)
    q1, q2, q3 = p1 * s, p2 * s * s, p3 * s * s * s
    w1, w2, w3 = 1.0, 0.0, 0.0
    g1, g2, g3 = 1.0, 0.0, 0.0
    a0, a1, a2 = OVER[2 * k], OVER[2 * k - 1], OVER[2 * k - 2]
    for n in range(2 * k + 1, 2 * k + NEEDED[min(31, int(turn * (32 / REACH)))]):
        w1, w2, w3 = q1 * w1 + (q2 * w2 + q3 * w3), w1, w2
        g1, g2, g3 = q1 * g1 + (q2 * g2 + q3 * g3 + w1), g1, g2
        a0 += g1 * OVER[n]
        a1 += g1 * OVER[n - 1]
        a2 += g1 * OVER[n - 2]
    top = s * s * s
    top = top * s if k == 2 else top * top
    return a0 * top, a1 * top / s, a2 * top / (s * s)


@compiled
def halley(value, slope, bend):
    """The step to the root by Halley's method, and none where the function does not fall."""
    if slope >= 0:
        return 0.0
    step = 2 * value * slope / (value * bend - 2 * slope * slope)
    return step if abs(step) < np.inf else 0.0


@compiled
def estimate(dims, start, e1, e2, e3, p1, p2, p3, t):
    """How far the root is from t, by a polynomial of low order."""
    k = len(dims)
    value, slope, bend, power = start + t * (e1 + e2 * t / 2), e1 + e2 * t, e2, t
    a1, a2, a3 = e2, e1, 0.0
    if k == 3:
        value, slope, bend, power = value + e3 * t * t * t / 6, slope + e3 * t * t / 2, bend + e3 * t, t * t
        a1, a2, a3 = e3, e2, e1
    for i in range(k + 1, ORDER + 1):
        a1, a2, a3 = p1 * a1 + p2 * a2 + p3 * a3, a1, a2
        term = a1 * power
        bend += term * OVER[i - 2]
        slope += term * t * OVER[i - 1]
        value += term * t * t * OVER[i]
        power *= t
    return halley(value, slope, bend)


@compiled
def step(dims, rates, invariants, row, radius, b, limit, work):
    """One step: its time (negative: not inside, to be cut), f, the face ahead, and the speed there if it is met.

    ``work`` holds the derivatives of b, the end, and the speed there.
    """
    k, m = len(dims), len(dims) + 1
    p1, p2, p3 = invariants[row, 0], invariants[row, 1], invariants[row, 2] if k == 3 else 0.0
    for i in range(1, k + 1):
        for a in range(m):
            total = 0.0
            for j in range(m):
                total += rates[row, a, j] * (b[j] if i == 1 else work[i - 1, j])
            work[i, a] = total

    horizon, s, face = 1.25 * limit, np.inf, 0
    for a in range(m):
        gap, first, second = max(b[a] + SLACK / 2, 0.0), work[1, a], work[2, a]
        # no root so soon: the tangent, or the concave parabola, is still above at the horizon
        if second >= 0:
            if first >= 0 or gap + first * horizon > 0:
                continue
        elif gap + (first + second * horizon / 2) * horizon > 0:
            continue
        square = first * first - 2 * gap * second
        if square < 0:
            continue
        big = abs(first) + np.sqrt(square)
        t = 2 * gap / big if first < 0 else big / -second
        if t < s and (t > 0 or first < 0):
            s, face = t, a

    e1, e2, e3, start = work[1, face], work[2, face], work[3, face] if k == 3 else 0.0, b[face] + SLACK / 2
    if s < horizon:
        s = min(s, limit)
        if s > 0:
            s = min(max(s + estimate(dims, start, e1, e2, e3, p1, p2, p3, s), s / 2), limit)
        f1, f2, f3 = functions(dims, p1, p2, p3, s, radius * s)
        g1, g2, g3 = slopes(dims, p1, p2, p3, f1, f2, f3, 1.0)
        h1, h2, h3 = slopes(dims, p1, p2, p3, g1, g2, g3, 0.0)
        value, slope = start + f1 * e1 + f2 * e2 + f3 * e3, g1 * e1 + g2 * e2 + g3 * e3
        shift = halley(value, slope, h1 * e1 + h2 * e2 + h3 * e3)
        if abs(shift) * (1 + radius * s) < NEAR * s and s + shift <= limit:
            half = shift * shift / 2
            s += shift
            f1, f2, f3 = f1 + shift * g1 + half * h1, f2 + shift * g2 + half * h2, f3 + shift * g3 + half * h3
    else:
        s = limit
        f1, f2, f3 = functions(dims, p1, p2, p3, s, radius * s)
    g1, g2, g3 = slopes(dims, p1, p2, p3, f1, f2, f3, 1.0)

    good, turn, third = True, radius * s, s / 3
    c1 = turn * turn * turn * s * (math.e / 384)
    c2, c3 = turn * turn * s * s * (math.e / 384), turn * s * s * s * (math.e / 384) if k == 3 else 0.0
    for a in range(m):
        d1, d2 = work[1, a], work[2, a]
        d3 = work[3, a] if k == 3 else 0.0
        ahead = b[a] + (f1 * d1 + f2 * d2 + f3 * d3)
        speed = g1 * d1 + g2 * d2 + g3 * d3
        remainder = c1 * abs(d1) + c2 * abs(d2) + c3 * abs(d3)
        lowest = min(ahead, min(b[a] + third * d1, ahead - third * speed) - remainder)
        good = good and lowest >= min(b[a], 0.0) - SLACK
        work[0, a] = ahead
        if a == face:
            out = speed
    return (s if good else -1.0 - s), f1, f2, f3, face, out


@compiled
def hand_over(dims, handover, c, face, b, work):
    """The coordinates ``work[0]`` in the next simplex, into ``b``."""
    m = len(dims) + 1
    for a in range(m):
        total = 0.0
        for j in range(m):
            total += handover[c, face, a, j] * work[0, j]
        b[a] = total


@compiled
def forward(
    dims, rates, invariants, radii, neighbours, handover, corners, gradients, rows, starts, ends, growth, counts, steps
):
    """Carry points; returns how many did not arrive within ``steps``, and the ways of those that did.

    A way is a number of legs, told by ``counts`` (none are kept where it is empty). A leg is (b, f, s, speed out) in
    the first array, (row, face or -1) in the second.
    """
    k, m = len(dims), len(dims) + 1
    work, b, simplices, lost, n = np.empty((k + 1, m)), np.empty(m), len(neighbours), 0, 0
    record = len(counts) > 0
    legs, marks = np.empty((4 * len(counts) + 1, m + k + 2)), np.empty((4 * len(counts) + 1, 2), dtype=np.int64)
    for i in range(len(rows)):
        row, left, reach, swell, begin = rows[i], 1.0, np.inf, 0.0, n
        first = row - row % simplices
        for a in range(m):
            b[a] = starts[i, a]
        if not np.isfinite(b.sum()):
            left = 0.0
        for _ in range(steps):
            if left <= 0:
                break
            radius = radii[row]
            limit = min(min(left, reach), REACH / radius)
            s, f1, f2, f3, face, out = step(dims, rates, invariants, row, radius, b, limit, work)
            if s < 0:
                reach = (-1.0 - s) / 2
                continue
            reach = np.inf
            left -= s
            swell += s * invariants[row, 0]
            crossing = work[0, face] <= 0 and out < 0 and left > 0
            if record:
                if n == len(legs):
                    more = np.empty((2 * n, m + k + 2))
                    more[:n] = legs
                    also = np.empty((2 * n, 2), dtype=np.int64)
                    also[:n] = marks
                    legs, marks = more, also
                for a in range(m):
                    legs[n, a] = b[a]
                legs[n, m], legs[n, m + 1] = f1, f2
                if k == 3:
                    legs[n, m + 2] = f3
                legs[n, m + k], legs[n, m + k + 1] = s, out
                marks[n, 0], marks[n, 1] = row, face if crossing else -1
                n += 1
            if crossing:
                hand_over(dims, handover, row - first, face, b, work)
                row = first + neighbours[row - first, face]
            else:
                for a in range(m):
                    b[a] = work[0, a]
        lost += left > 0
        growth[i] = swell
        if record:
            counts[i] = n - begin
        c = row - first
        for x in range(k):
            value = 0.0
            for a in range(m):
                value += b[a] * corners[c, a, x]
            ends[i, x] = value
    return lost, legs, marks


@compiled
def backward(
    dims,
    rates,
    invariants,
    radii,
    neighbours,
    handover,
    corners,
    gradients,
    rows,
    counts,
    pulls,
    swells,
    backs,
    legs,
    marks,
    base,
    total,
):
    """Pull gradients back along the ways of :func:`forward`: to the points, and into the sums of rows from base on."""
    k, m = len(dims), len(dims) + 1
    work, mu, lam, simplices, end = np.empty((k + 1, m)), np.empty((k + 1, m)), np.empty(m), len(neighbours), 0
    for i in range(len(rows)):
        begin, end, swell = end, end + counts[i], swells[i]
        first = rows[i] - rows[i] % simplices
        behind = marks[end - 1, 0] if end > begin else rows[i]
        for a in range(m):
            value = 0.0
            for x in range(k):
                value += corners[behind - first, a, x] * pulls[i, x]
            lam[a] = value
        for j in range(end - 1, begin - 1, -1):
            row, face, s = marks[j, 0], marks[j, 1], legs[j, m + k]
            p1, p2, p3 = invariants[row, 0], invariants[row, 1], invariants[row, 2] if k == 3 else 0.0
            if face >= 0:
                for a in range(m):
                    value = 0.0
                    for x in range(m):
                        value += handover[row - first, face, x, a] * lam[x]
                    mu[0, a] = value
                if swell != 0:
                    mu[0, face] += (invariants[behind, 0] - p1) * swell / legs[j, m + k + 1]
            else:
                for a in range(m):
                    mu[0, a] = lam[a]
            behind = row
            # the powers of M and of its transpose, applied
            for a in range(m):
                work[0, a] = legs[j, a]
            for e in range(1, k + 1):
                for a in range(m):
                    ahead, value = 0.0, 0.0
                    for x in range(m):
                        ahead += rates[row, a, x] * work[e - 1, x]
                        value += rates[row, x, a] * mu[e - 1, x]
                    work[e, a], mu[e, a] = ahead, value
            f1, f2, f3 = legs[j, m], legs[j, m + 1], legs[j, m + 2] if k == 3 else 0.0
            push1, push2, push3 = 0.0, 0.0, 0.0
            for x in range(m):
                w0, w1, w2 = f1 * work[0, x] + f2 * work[1, x], f2 * work[0, x], 0.0
                if k == 3:
                    w0, w1, w2 = w0 + f3 * work[2, x], w1 + f3 * work[1, x], f3 * work[0, x]
                for a in range(m):
                    value = mu[0, a] * w0 + mu[1, a] * w1
                    if k == 3:
                        value += mu[2, a] * w2
                    total[row - base, a * m + x] += value
                push1 += mu[0, x] * work[1, x]
                push2 += mu[0, x] * work[2, x]
                lam[x] = mu[0, x] + f1 * mu[1, x] + f2 * mu[2, x]
                if k == 3:
                    push3 += mu[0, x] * work[3, x]
                    lam[x] += f3 * mu[3, x]
            if s > 0:
                g0, g1, g2 = gammas(dims, p1, p2, p3, s, radii[row] * s)
                if k == 2:
                    total[row - base, m * m] += push1 * p2 * g0 + push2 * g1 + swell * s
                    total[row - base, m * m + 1] += push1 * (g1 - p1 * g0) + push2 * g0
                else:
                    total[row - base, m * m] += push1 * p3 * g1 + push2 * (p2 * g1 + p3 * g0) + push3 * g2 + swell * s
                    total[row - base, m * m + 1] += push1 * p3 * g0 + push2 * (g2 - p1 * g1) + push3 * g1
                    total[row - base, m * m + 2] += (
                        push1 * (g2 - p1 * g1 - p2 * g0) + push2 * (g1 - p1 * g0) + push3 * g0
                    )
        for x in range(k):
            value = 0.0
            for a in range(m):
                value += lam[a] * gradients[rows[i] - first, a, x]
            backs[i, x] = value
