"""The walk in two dimensions and its adjoint, several points abreast, for Numba to compile into vector instructions.

The steps are those of :mod:`pstn.families.cpab.walk`, whose names and comments hold here too. ``WIDE`` points walk in
as many lanes, and each lane takes its next point as soon as one has arrived. What is the same for all lanes is one loop
without branches; what is not (crossing, arriving, starting) is done lane by lane. The adjoint reads the tape backwards,
in the same lanes.
"""

# Numba finds the types by itself, and what it compiles is better left without annotations.
# ruff: noqa: ANN001, ANN201
# mypy: disallow-untyped-defs=false

from __future__ import annotations

import math

import numpy as np

from pstn.families.cpab.cell import REACH, TERMS
from pstn.families.cpab.jit import compiled
from pstn.families.cpab.walk import NEAR, SLACK

#: How many points walk abreast: a few vectors, so that one does not wait for the result of another.
WIDE = 16
#: Inverse factorials
OVER = np.array([1 / math.factorial(n) for n in range(TERMS + 4)])
#: Where the lanes' state has coordinates, time left, longest step to try, integral of the divergence, and from there on
#: the field's table (rates, invariants, radius). Arrays are flat: a compiler must know that rows do not overlap.
B0, B1, B2, LEFT, TRY, GROWTH, TABLE = (WIDE * n for n in range(7))
ENTRIES = 12


@compiled
def first_root(b, first, second):
    """When the parabola from b meets zero, aimed at with half of the slack."""
    gap = max(b + SLACK / 2, 0.0)
    square = first * first - 2 * gap * second
    big = abs(first) + np.sqrt(max(square, 0.0))
    falls = first < 0
    gap, second = 2 * gap, -second
    t = (gap if falls else big) / (big if falls else second)
    never = (falls & (square < 0)) | ((first >= 0) & ((second <= 0) | (big == 0)))
    return np.inf if never else t


@compiled
def halley(value, slope, bend):
    """The step to the root by Halley's method, and none where the function does not fall."""
    step = 2 * value * slope / (value * bend - 2 * slope * slope)
    return step if (slope < 0) & (abs(step) < np.inf) else 0.0


@compiled
def lowest(b, ahead, first, speed, rest, third):
    """How far below its start, or zero, a coordinate may come on a step."""
    return min(ahead, min(b + third * first, ahead - third * speed) - rest) - min(b, 0.0)


@compiled
def advance(state, leg, faces):
    """One step of all lanes. A leg is (b, s, speed), its time zero if taken back; a face is -1 if none is crossed."""
    for i in range(WIDE):
        b0, b1, b2, left = state[B0 + i], state[B1 + i], state[B2 + i], state[LEFT + i]
        m00, m01, m02 = state[TABLE + i], state[TABLE + 1 * WIDE + i], state[TABLE + 2 * WIDE + i]
        m10, m11, m12 = state[TABLE + 3 * WIDE + i], state[TABLE + 4 * WIDE + i], state[TABLE + 5 * WIDE + i]
        m20, m21, m22 = state[TABLE + 6 * WIDE + i], state[TABLE + 7 * WIDE + i], state[TABLE + 8 * WIDE + i]
        p1, p2, radius = state[TABLE + 9 * WIDE + i], state[TABLE + 10 * WIDE + i], state[TABLE + 11 * WIDE + i]
        d0, d1, d2 = m00 * b0 + m01 * b1 + m02 * b2, m10 * b0 + m11 * b1 + m12 * b2, m20 * b0 + m21 * b1 + m22 * b2
        e0, e1, e2 = m00 * d0 + m01 * d1 + m02 * d2, m10 * d0 + m11 * d1 + m12 * d2, m20 * d0 + m21 * d1 + m22 * d2
        limit = min(min(left, state[TRY + i]), REACH / radius)

        s, t1, t2 = first_root(b0, d0, e0), first_root(b1, d1, e1), first_root(b2, d2, e2)
        by1 = t1 < s
        s = min(s, t1)
        by2 = t2 < s
        s = min(s, t2)
        start = (b2 if by2 else (b1 if by1 else b0)) + SLACK / 2
        h1 = d2 if by2 else (d1 if by1 else d0)
        h2 = e2 if by2 else (e1 if by1 else e0)
        leaving = s < 1.25 * limit
        s = min(s, limit)
        # a better estimate, by a polynomial of order six
        h3 = p1 * h2 + p2 * h1
        h4 = p1 * h3 + p2 * h2
        h5 = p1 * h4 + p2 * h3
        h6 = p1 * h5 + p2 * h4
        value = start + s * (h1 + s * (h2 / 2 + s * (h3 / 6 + s * (h4 / 24 + s * (h5 / 120 + s * (h6 / 720))))))
        slope = h1 + s * (h2 + s * (h3 / 2 + s * (h4 / 6 + s * (h5 / 24 + s * (h6 / 120)))))
        bend = h2 + s * (h3 + s * (h4 / 2 + s * (h5 / 6 + s * (h6 / 24))))
        better = min(max(s + halley(value, slope, bend), s / 2), limit)
        s = better if leaving else s

        q1, q2 = p1 * s, p2 * s * s
        w, v, f1, f2 = 1.0, 0.0, OVER[1], OVER[2]
        for n in range(3, TERMS + 2):
            w, v = q1 * w + q2 * v, w
            f1 += w * OVER[n - 1]
            f2 += w * OVER[n]
        f1, f2 = (f1 - q1 * f2) * s, f2 * s * s
        g1, g2 = 1.0 + p2 * f2, f1 + p1 * f2
        c1, c2 = p2 * g2, g1 + p1 * g2
        shift = halley(start + f1 * h1 + f2 * h2, g1 * h1 + g2 * h2, c1 * h1 + c2 * h2)
        near = leaving & (abs(shift) * (1 + radius * s) < NEAR * s) & (s + shift <= limit)
        shift = shift if near else 0.0
        s += shift
        f1 += shift * (g1 + shift * c1 / 2)
        f2 += shift * (g2 + shift * c2 / 2)
        g1, g2 = 1.0 + p2 * f2, f1 + p1 * f2

        third, turn = s / 3, radius * s
        rest1, rest2 = turn * turn * turn * s * (math.e / 384), turn * turn * s * s * (math.e / 384)
        a0, a1, a2 = b0 + (f1 * d0 + f2 * e0), b1 + (f1 * d1 + f2 * e1), b2 + (f1 * d2 + f2 * e2)
        v0, v1, v2 = g1 * d0 + g2 * e0, g1 * d1 + g2 * e1, g1 * d2 + g2 * e2
        low0 = lowest(b0, a0, d0, v0, rest1 * abs(d0) + rest2 * abs(e0), third)
        low1 = lowest(b1, a1, d1, v1, rest1 * abs(d1) + rest2 * abs(e1), third)
        low2 = lowest(b2, a2, d2, v2, rest1 * abs(d2) + rest2 * abs(e2), third)
        good = (low0 >= -SLACK) & (low1 >= -SLACK) & (low2 >= -SLACK)
        height = a2 if by2 else (a1 if by1 else a0)
        speed = v2 if by2 else (v1 if by1 else v0)
        rest = left - s
        crossing = good & (height <= 0) & (speed < 0) & (rest > 0)

        leg[i], leg[WIDE + i], leg[2 * WIDE + i] = b0, b1, b2
        leg[3 * WIDE + i], leg[4 * WIDE + i] = (s if good else 0.0), speed
        state[B0 + i], state[B1 + i], state[B2 + i] = (a0 if good else b0), (a1 if good else b1), (a2 if good else b2)
        state[LEFT + i] = rest if good else left
        state[TRY + i] = np.inf if good else s / 2
        state[GROWTH + i] += s * p1 if good else 0.0
        face = 2.0 if by2 else (1.0 if by1 else 0.0)
        faces[i] = face if crossing else -1.0


@compiled
def forward(table, neighbours, handover, corners, cells, starts, begin, end, ends, growth, steps, record):
    """Carry the points from ``begin`` to ``end``; returns how many did not arrive within ``steps``, and the tape.

    Points come field by field; ``cells`` and ``starts`` are those of all, or of one field if all have the same. The
    tape is for each step of all lanes the legs, and which points (-1 for none), simplices and faces these belong to.
    """
    per, own, simplices = len(ends) * len(neighbours) // len(table), len(starts) == len(ends), len(neighbours)
    state, faces, who = np.zeros(TABLE + ENTRIES * WIDE), np.full(WIDE, -1.0), np.full((3, WIDE), -1)  # id, cell, base
    began = np.zeros(WIDE, dtype=np.int64)
    size = 4 * (end - begin) // WIDE + 16 if record else 1
    legs, marks = np.empty((size, 5 * WIDE)), np.empty((size, 3, WIDE), dtype=np.int32)
    n, slot, lost, following, walking = 0, 0, 0, begin, 1
    while walking > 0:
        walking = 0
        for i in range(WIDE):
            point, cell, base = who[0, i], who[1, i], who[2, i]
            moved = False
            if point >= 0 and state[LEFT + i] > 0 and n - began[i] < steps:
                if faces[i] >= 0:
                    face = int(faces[i])
                    b0, b1, b2 = state[B0 + i], state[B1 + i], state[B2 + i]
                    for a in range(3):
                        turn = handover[cell, face, a]
                        state[a * WIDE + i] = turn[0] * b0 + turn[1] * b1 + turn[2] * b2
                    cell, moved = neighbours[cell, face], True
            else:
                if point >= 0:
                    lost += state[LEFT + i] > 0
                    arrive(point, cell, i, state, corners, ends, growth)
                point = -1
                while following < end and point < 0:
                    point, following, moved = following, following + 1, True
                    at = point if own else point % per
                    cell, base = cells[at], point // per * simplices
                    state[LEFT + i], state[TRY + i], state[GROWTH + i], began[i] = 1.0, np.inf, 0.0, n
                    for a in range(3):
                        state[a * WIDE + i] = starts[at, a]
                    if not np.isfinite(state[B0 + i] + state[B1 + i] + state[B2 + i]):  # it stays
                        arrive(point, cell, i, state, corners, ends, growth)
                        point = -1
                if point < 0:
                    state[LEFT + i], moved = 0.0, False
                    for a in range(3):
                        state[a * WIDE + i] = 0.0
                who[0, i], who[2, i] = point, base
            if moved:
                who[1, i] = cell
                for a in range(ENTRIES):
                    state[TABLE + a * WIDE + i] = table[base + cell, a]
            walking += point >= 0
        if walking == 0:
            break
        if record:
            slot = n
            if n == len(legs):
                more, also = np.empty((2 * n, 5 * WIDE)), np.empty((2 * n, 3, WIDE), dtype=np.int32)
                more[:n], also[:n] = legs, marks
                legs, marks = more, also
        advance(state, legs[slot], faces)
        if record:
            for i in range(WIDE):
                marks[n, 0, i], marks[n, 1, i], marks[n, 2, i] = who[0, i], who[1, i], int(faces[i])
        n += 1
    return lost, legs[:n], marks[:n]


@compiled
def arrive(point, cell, i, state, corners, ends, growth):
    """Write down where the point of lane i is, and what it passed."""
    growth[point] = state[GROWTH + i]
    for x in range(2):
        ends[point, x] = (
            state[B0 + i] * corners[cell, 0, x]
            + state[B1 + i] * corners[cell, 1, x]
            + state[B2 + i] * corners[cell, 2, x]
        )


@compiled
def recede(state, leg, lam, values):
    """The adjoint of a step of all lanes: on ``lam``, and what it is worth to the rates and the invariants."""
    for i in range(WIDE):
        b0, b1, b2, s = leg[i], leg[WIDE + i], leg[2 * WIDE + i], leg[3 * WIDE + i]
        m00, m01, m02 = state[TABLE + i], state[TABLE + 1 * WIDE + i], state[TABLE + 2 * WIDE + i]
        m10, m11, m12 = state[TABLE + 3 * WIDE + i], state[TABLE + 4 * WIDE + i], state[TABLE + 5 * WIDE + i]
        m20, m21, m22 = state[TABLE + 6 * WIDE + i], state[TABLE + 7 * WIDE + i], state[TABLE + 8 * WIDE + i]
        p1, p2 = state[TABLE + 9 * WIDE + i], state[TABLE + 10 * WIDE + i]
        d0, d1, d2 = m00 * b0 + m01 * b1 + m02 * b2, m10 * b0 + m11 * b1 + m12 * b2, m20 * b0 + m21 * b1 + m22 * b2
        e0, e1, e2 = m00 * d0 + m01 * d1 + m02 * d2, m10 * d0 + m11 * d1 + m12 * d2, m20 * d0 + m21 * d1 + m22 * d2
        # f, and what it takes for its derivatives by the invariants; two loops, since one would be too long to unroll
        q1, q2 = p1 * s, p2 * s * s
        w, v, f1, f2 = 1.0, 0.0, OVER[1], OVER[2]
        for n in range(3, TERMS + 2):
            w, v = q1 * w + q2 * v, w
            f1 += w * OVER[n - 1]
            f2 += w * OVER[n]
        f1, f2 = (f1 - q1 * f2) * s, f2 * s * s
        w, v, g, h, low, high = 1.0, 0.0, 1.0, 0.0, OVER[4], OVER[3]
        for n in range(5, TERMS + 4):
            w, v = q1 * w + q2 * v, w
            g, h = q1 * g + (q2 * h + w), g
            low += g * OVER[n]
            high += g * OVER[n - 1]
        low, high = low * s * s * s * s, high * s * s * s
        x0, x1, x2 = lam[i], lam[WIDE + i], lam[2 * WIDE + i]
        y0, y1, y2 = m00 * x0 + m10 * x1 + m20 * x2, m01 * x0 + m11 * x1 + m21 * x2, m02 * x0 + m12 * x1 + m22 * x2
        z0, z1, z2 = m00 * y0 + m10 * y1 + m20 * y2, m01 * y0 + m11 * y1 + m21 * y2, m02 * y0 + m12 * y1 + m22 * y2
        lam[i], lam[WIDE + i], lam[2 * WIDE + i] = (
            x0 + f1 * y0 + f2 * z0,
            x1 + f1 * y1 + f2 * z1,
            x2 + f1 * y2 + f2 * z2,
        )
        # in the powers of M
        w0, w1, w2 = f1 * b0 + f2 * d0, f1 * b1 + f2 * d1, f1 * b2 + f2 * d2
        u0, u1, u2 = f2 * b0, f2 * b1, f2 * b2
        values[i], values[WIDE + i], values[2 * WIDE + i] = x0 * w0 + y0 * u0, x0 * w1 + y0 * u1, x0 * w2 + y0 * u2
        values[3 * WIDE + i], values[4 * WIDE + i], values[5 * WIDE + i] = (
            x1 * w0 + y1 * u0,
            x1 * w1 + y1 * u1,
            x1 * w2 + y1 * u2,
        )
        values[6 * WIDE + i], values[7 * WIDE + i], values[8 * WIDE + i] = (
            x2 * w0 + y2 * u0,
            x2 * w1 + y2 * u1,
            x2 * w2 + y2 * u2,
        )
        # in f, through the invariants
        push1, push2 = x0 * d0 + x1 * d1 + x2 * d2, x0 * e0 + x1 * e1 + x2 * e2
        values[9 * WIDE + i] = push1 * p2 * low + push2 * high
        values[10 * WIDE + i] = push1 * (high - p1 * low) + push2 * low


@compiled
def backward(table, neighbours, handover, corners, gradients, pulls, swells, backs, legs, marks, base, total):
    """Pull gradients back along the tape of :func:`forward`: to the points, and into the sums of rows from base on.

    ``swells`` is empty where log-determinants have no gradient; ``backs`` holds the gradients of points that stayed.
    """
    per, simplices = len(backs) * len(neighbours) // len(table), len(neighbours)
    state, lam, values = np.zeros(TABLE + ENTRIES * WIDE), np.zeros(3 * WIDE), np.zeros(11 * WIDE)
    current, offset, behind = np.full(WIDE, -1), np.zeros(WIDE, dtype=np.int64), np.zeros(WIDE, dtype=np.int64)
    for n in range(len(legs) - 1, -1, -1):
        leg, mark = legs[n], marks[n]
        for i in range(WIDE):
            point, cell, face = mark[0, i], mark[1, i], mark[2, i]
            if point < 0:
                continue
            if point != current[i]:
                current[i], offset[i] = point, point // per * simplices
                for a in range(3):
                    lam[a * WIDE + i] = corners[cell, a, 0] * pulls[point, 0] + corners[cell, a, 1] * pulls[point, 1]
            row = offset[i] + cell
            for a in range(ENTRIES):
                state[TABLE + a * WIDE + i] = table[row, a]
            if face >= 0:
                turn = handover[cell, face]
                x0, x1, x2 = lam[i], lam[WIDE + i], lam[2 * WIDE + i]
                for a in range(3):
                    lam[a * WIDE + i] = turn[0, a] * x0 + turn[1, a] * x1 + turn[2, a] * x2
                if len(swells):
                    lam[face * WIDE + i] += (table[behind[i], 9] - table[row, 9]) * swells[point] / leg[4 * WIDE + i]
            behind[i] = row
        recede(state, leg, lam, values)
        for i in range(WIDE):
            point, cell = mark[0, i], mark[1, i]
            if point < 0:
                continue
            row = offset[i] + cell - base
            for a in range(11):
                total[row, a] += values[a * WIDE + i]
            if len(swells):
                total[row, 9] += swells[point] * leg[3 * WIDE + i]
            if n == 0 or marks[n - 1, 0, i] != point:
                for x in range(2):
                    backs[point, x] = (
                        lam[i] * gradients[cell, 0, x]
                        + lam[WIDE + i] * gradients[cell, 1, x]
                        + lam[2 * WIDE + i] * gradients[cell, 2, x]
                    )
