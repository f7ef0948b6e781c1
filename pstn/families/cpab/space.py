"""The walk in three dimensions and its adjoint, one point at a time, for Numba to compile.

The steps are those of :mod:`pstn.families.cpab.walk`, whose names and comments hold here too. Vectors are rows of a
scratch array. The arguments are those of :mod:`pstn.families.cpab.plane`; a step on the tape is that of one point.
"""

# Numba finds the types by itself, and what it compiles is better left without annotations.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import math

import numpy as np

from pstn.families.cpab.cell import REACH
from pstn.families.cpab.jit import compiled
from pstn.families.cpab.plane import halley
from pstn.families.cpab.walk import NEAR, ORDER, SLACK

#: Terms that the series need for a step up to i / 32 of the longest, and the inverse factorials in them.
NEEDED = np.array(
    [next(n for n in range(2, 40) if (REACH * (i + 1) / 32) ** n / math.factorial(n + 1) < 1e-17) for i in range(32)]
)
OVER = np.array([1 / math.factorial(n) for n in range(48)])
#: Where a row of the table has the invariants and the radius, after the rates.
TRACE, RADIUS = 16, 19


@compiled
def functions(p1, p2, p3, s, turn):
    """f_1, f_2, f_3 at s, by the series of beta and its derivatives."""
    q1, q2, q3 = p1 * s, p2 * s * s, p3 * s * s * s
    w1, w2, w3 = 1.0, 0.0, 0.0
    a0, a1, a2 = OVER[3], OVER[2], OVER[1]
    for n in range(4, 3 + NEEDED[min(31, int(turn * (32 / REACH)))]):
        w1, w2, w3 = q1 * w1 + (q2 * w2 + q3 * w3), w1, w2
        a0 += w1 * OVER[n]
        a1 += w1 * OVER[n - 1]
        a2 += w1 * OVER[n - 2]
    return (a2 - q1 * a1 - q2 * a0) * s, (a1 - q1 * a0) * s * s, a0 * s * s * s


@compiled
def slopes(p1, p2, p3, f1, f2, f3, one):
    """The derivatives of f by f; higher ones with ``one`` = 0."""
    return one + p3 * f3, f1 + p2 * f3, f2 + p1 * f3


@compiled
def gammas(p1, p2, p3, s, turn):
    """gamma and its first two derivatives at s, from which come the derivatives of f by P."""
    q1, q2, q3 = p1 * s, p2 * s * s, p3 * s * s * s
    w1, w2, w3 = 1.0, 0.0, 0.0
    g1, g2, g3 = 1.0, 0.0, 0.0
    a0, a1, a2 = OVER[6], OVER[5], OVER[4]
    for n in range(7, 6 + NEEDED[min(31, int(turn * (32 / REACH)))]):
        w1, w2, w3 = q1 * w1 + (q2 * w2 + q3 * w3), w1, w2
        g1, g2, g3 = q1 * g1 + (q2 * g2 + q3 * g3 + w1), g1, g2
        a0 += g1 * OVER[n]
        a1 += g1 * OVER[n - 1]
        a2 += g1 * OVER[n - 2]
    square = s * s
    return a0 * square * square * square, a1 * square * square * s, a2 * square * square


@compiled
def estimate(start, e1, e2, e3, p1, p2, p3, t):
    """How far the root is from t, by a polynomial of low order."""
    value, slope = start + t * (e1 + t * (e2 / 2 + e3 * t / 6)), e1 + t * (e2 + e3 * t / 2)
    bend, power = e2 + e3 * t, t * t
    a1, a2, a3 = e3, e2, e1
    for i in range(4, ORDER + 1):
        a1, a2, a3 = p1 * a1 + p2 * a2 + p3 * a3, a1, a2
        term = a1 * power
        bend += term * OVER[i - 2]
        slope += term * t * OVER[i - 1]
        value += term * t * t * OVER[i]
        power *= t
    return halley(value, slope, bend)


@compiled
def step(rates, b, limit, work):
    """One step: its time (negative: not inside, to be cut), f, the face ahead, and the speed there if it is met.

    ``work`` holds the end and the derivatives of b.
    """
    p1, p2, p3, radius = rates[TRACE], rates[TRACE + 1], rates[TRACE + 2], rates[RADIUS]
    for i in range(1, 4):
        for a in range(4):
            total = 0.0
            for j in range(4):
                total += rates[4 * a + j] * (b[j] if i == 1 else work[i - 1, j])
            work[i, a] = total

    horizon, s, face = 1.25 * limit, np.inf, 0
    for a in range(4):
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

    e1, e2, e3, start = work[1, face], work[2, face], work[3, face], b[face] + SLACK / 2
    if s < horizon:
        s = min(s, limit)
        if s > 0:
            s = min(max(s + estimate(start, e1, e2, e3, p1, p2, p3, s), s / 2), limit)
        f1, f2, f3 = functions(p1, p2, p3, s, radius * s)
        g1, g2, g3 = slopes(p1, p2, p3, f1, f2, f3, 1.0)
        h1, h2, h3 = slopes(p1, p2, p3, g1, g2, g3, 0.0)
        value, slope = start + f1 * e1 + f2 * e2 + f3 * e3, g1 * e1 + g2 * e2 + g3 * e3
        shift = halley(value, slope, h1 * e1 + h2 * e2 + h3 * e3)
        if abs(shift) * (1 + radius * s) < NEAR * s and s + shift <= limit:
            half = shift * shift / 2
            s += shift
            f1, f2, f3 = f1 + shift * g1 + half * h1, f2 + shift * g2 + half * h2, f3 + shift * g3 + half * h3
    else:
        s = limit
        f1, f2, f3 = functions(p1, p2, p3, s, radius * s)
    g1, g2, g3 = slopes(p1, p2, p3, f1, f2, f3, 1.0)

    good, turn, third, out = True, radius * s, s / 3, 0.0
    c1, c2, c3 = turn * turn * turn * s, turn * turn * s * s, turn * s * s * s
    for a in range(4):
        d1, d2, d3 = work[1, a], work[2, a], work[3, a]
        ahead = b[a] + (f1 * d1 + f2 * d2 + f3 * d3)
        speed = g1 * d1 + g2 * d2 + g3 * d3
        remainder = (c1 * abs(d1) + c2 * abs(d2) + c3 * abs(d3)) * (math.e / 384)
        lowest = min(ahead, min(b[a] + third * d1, ahead - third * speed) - remainder)
        good = good and lowest >= min(b[a], 0.0) - SLACK
        work[0, a] = ahead
        if a == face:
            out = speed
    return (s if good else -1.0 - s), f1, f2, f3, face, out


@compiled
def forward(table, neighbours, handover, corners, cells, starts, begin, end, ends, growth, steps, record):
    """As :func:`pstn.families.cpab.plane.forward`; a leg is (b, f, s, speed)."""
    per, own, simplices = len(ends) * len(neighbours) // len(table), len(starts) == len(ends), len(neighbours)
    work, b, lost, n = np.empty((4, 4)), np.empty(4), 0, 0
    size = 4 * (end - begin) + 16 if record else 1
    legs, marks = np.empty((size, 9)), np.empty((size, 3), dtype=np.int32)
    for point in range(begin, end):
        at = point if own else point % per
        cell, base, left, reach, swell = cells[at], point // per * simplices, 1.0, np.inf, 0.0
        for a in range(4):
            b[a] = starts[at, a]
        if not np.isfinite(b.sum()):
            left = 0.0
        for _ in range(steps):
            if left <= 0:
                break
            rates = table[base + cell]
            limit = min(min(left, reach), REACH / rates[RADIUS])
            s, f1, f2, f3, face, out = step(rates, b, limit, work)
            if s < 0:
                reach = (-1.0 - s) / 2
                continue
            reach = np.inf
            left -= s
            swell += s * rates[TRACE]
            crossing = work[0, face] <= 0 and out < 0 and left > 0
            if record:
                if n == len(legs):
                    more, also = np.empty((2 * n, 9)), np.empty((2 * n, 3), dtype=np.int32)
                    more[:n], also[:n] = legs, marks
                    legs, marks = more, also
                for a in range(4):
                    legs[n, a] = b[a]
                legs[n, 4], legs[n, 5], legs[n, 6], legs[n, 7], legs[n, 8] = f1, f2, f3, s, out
                marks[n, 0], marks[n, 1], marks[n, 2] = point, cell, face if crossing else -1
                n += 1
            if crossing:
                for a in range(4):
                    turn = handover[cell, face, a]
                    b[a] = turn[0] * work[0, 0] + turn[1] * work[0, 1] + turn[2] * work[0, 2] + turn[3] * work[0, 3]
                cell = neighbours[cell, face]
            else:
                for a in range(4):
                    b[a] = work[0, a]
        lost += left > 0
        growth[point] = swell
        for x in range(3):
            value = 0.0
            for a in range(4):
                value += b[a] * corners[cell, a, x]
            ends[point, x] = value
    return lost, legs[:n], marks[:n]


@compiled
def backward(table, neighbours, handover, corners, gradients, pulls, swells, backs, legs, marks, base, total):
    """As :func:`pstn.families.cpab.plane.backward`."""
    per, simplices = len(backs) * len(neighbours) // len(table), len(neighbours)
    work, mu, lam, current, behind = np.empty((4, 4)), np.empty((4, 4)), np.empty(4), -1, 0
    for n in range(len(legs) - 1, -1, -1):
        point, cell, face = marks[n, 0], marks[n, 1], marks[n, 2]
        row, swell = point // per * simplices + cell, swells[point] if len(swells) else 0.0
        rates, s = table[row], legs[n, 7]
        p1, p2, p3 = rates[TRACE], rates[TRACE + 1], rates[TRACE + 2]
        if point != current:
            current = point
            for a in range(4):
                value = 0.0
                for x in range(3):
                    value += corners[cell, a, x] * pulls[point, x]
                lam[a] = value
        if face >= 0:
            for a in range(4):
                value = 0.0
                for x in range(4):
                    value += handover[cell, face, x, a] * lam[x]
                mu[0, a] = value
            mu[0, face] += (table[behind, TRACE] - p1) * swell / legs[n, 8]
        else:
            for a in range(4):
                mu[0, a] = lam[a]
        behind = row
        # the powers of M and of its transpose, applied
        for a in range(4):
            work[0, a] = legs[n, a]
        for e in range(1, 4):
            for a in range(4):
                ahead, value = 0.0, 0.0
                for x in range(4):
                    ahead += rates[4 * a + x] * work[e - 1, x]
                    value += rates[4 * x + a] * mu[e - 1, x]
                work[e, a], mu[e, a] = ahead, value
        f1, f2, f3 = legs[n, 4], legs[n, 5], legs[n, 6]
        push1, push2, push3, into = 0.0, 0.0, 0.0, total[row - base]
        for x in range(4):
            w0 = f1 * work[0, x] + f2 * work[1, x] + f3 * work[2, x]
            w1, w2 = f2 * work[0, x] + f3 * work[1, x], f3 * work[0, x]
            for a in range(4):
                into[4 * a + x] += mu[0, a] * w0 + mu[1, a] * w1 + mu[2, a] * w2
            push1 += mu[0, x] * work[1, x]
            push2 += mu[0, x] * work[2, x]
            push3 += mu[0, x] * work[3, x]
            lam[x] = mu[0, x] + f1 * mu[1, x] + f2 * mu[2, x] + f3 * mu[3, x]
        g0, g1, g2 = gammas(p1, p2, p3, s, rates[RADIUS] * s)
        into[TRACE] += push1 * p3 * g1 + push2 * (p2 * g1 + p3 * g0) + push3 * g2 + swell * s
        into[TRACE + 1] += push1 * p3 * g0 + push2 * (g2 - p1 * g1) + push3 * g1
        into[TRACE + 2] += push1 * (g2 - p1 * g1 - p2 * g0) + push2 * (g1 - p1 * g0) + push3 * g0
        if n == 0 or marks[n - 1, 0] != point:
            for x in range(3):
                value = 0.0
                for a in range(4):
                    value += lam[a] * gradients[cell, a, x]
                backs[point, x] = value
