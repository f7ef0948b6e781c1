# Triton's language, not quite Python: its tensors have no annotations, its tuples grow by addition.
# ruff: noqa: ANN001, ANN201, RUF005
# mypy: ignore-errors
"""Coordinate functions: where a tile of output pixels looks, and what the gradient to those places is worth.

A coordinate function is five device functions. ``where`` points at the parameters of one warp, ``steps`` are the
strides of their axes; after ``read`` they are those of the table that all warps share, where there is one. Positions p
and u are normalised, tuples with x first; ``COUNT`` is the number of parameters.

- ``read(where, steps, NDIM, COUNT)`` gives the numbers every pixel needs, a tuple that stays in registers;
- ``place(theta, where, steps, pixel, p, live, NDIM, COUNT)`` gives the positions u = T(p), and after them
  what ``pull`` may want to know again;
- ``start(BLOCK, COUNT)`` gives the sums a backward pass carries from tile to tile, a tuple, perhaps empty;
- ``pull(sums, theta, where, steps, pixel, p, u, live, g, into, size, NDIM, COUNT)`` adds the gradient g to u, which is
  zero where a pixel does not exist; it may write to ``into`` itself;
- ``finish(sums, into, COUNT)`` writes the sums.

A new coordinate function joins ``KINDS`` in :mod:`pstn.kernels.launch`; sampling, shapes, padding, dtypes and the loop
over tiles are shared.
"""

import triton
import triton.language as tl

#: as in :mod:`pstn.families.projective`: the smallest denominator before the horizon, and what is sent behind it
HORIZON = tl.constexpr(1e-3)
BEHIND = tl.constexpr(2e3)


@triton.jit
def read_all(where, steps, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """All the parameters."""
    found = ()
    for k in tl.static_range(COUNT):
        found = found + (tl.load(where + k * steps[0]),)
    return found


@triton.jit
def read_none(where, steps, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """None of them."""
    return ()


@triton.jit
def affine_place(theta, where, steps, pixel, p, live, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """A p + t; the parameters are the homogeneous matrix, row by row."""
    found = ()
    for r in tl.static_range(NDIM):
        u = theta[r * (NDIM + 1) + NDIM]
        for c in tl.static_range(NDIM):
            u = u + theta[r * (NDIM + 1) + c] * p[c]
        found = found + (u,)
    return found


@triton.jit
def sums_start(BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """A zero for every pixel and parameter."""
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros((BLOCK,), tl.float32),)
    return found


@triton.jit
def affine_pull(sums, theta, where, steps, pixel, p, u, live, g, into, size, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """The gradient to the matrix is the outer product of g and (p, 1)."""
    found = ()
    for r in tl.static_range(NDIM):
        for c in tl.static_range(NDIM):
            found = found + (sums[r * (NDIM + 1) + c] + g[r] * p[c],)
        found = found + (sums[r * (NDIM + 1) + NDIM] + g[r],)
    for k in tl.static_range(NDIM * (NDIM + 1), COUNT):  # the last row is constant
        found = found + (sums[k],)
    return found


@triton.jit
def sums_finish(sums, into, COUNT: tl.constexpr):
    """The totals over the tile's pixels."""
    for k in tl.static_range(COUNT):
        tl.store(into + k, tl.sum(sums[k], axis=0))


@triton.jit
def projective_parts(theta, p):
    """Positions before any window, the denominator, and which points lie before the horizon."""
    below = 1.0 + theta[6] * p[0] + theta[7] * p[1]
    ahead = below > HORIZON
    below = tl.where(ahead, below, 1.0)
    u = tl.where(ahead, (theta[2] + theta[0] * p[0] + theta[1] * p[1]) / below, BEHIND)
    v = tl.where(ahead, (theta[5] + theta[3] * p[0] + theta[4] * p[1]) / below, BEHIND)
    return tl.minimum(tl.maximum(u, -BEHIND), BEHIND), tl.minimum(tl.maximum(v, -BEHIND), BEHIND), below, ahead


@triton.jit
def projective_place(theta, where, steps, pixel, p, live, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """(A p + t) / (1 + g·p); after the nine numbers of the matrix may stand a window (scale, x, y)."""
    u, v, _below, _ahead = projective_parts(theta, p)
    if COUNT == 12:
        u = theta[9] * u + theta[10]
        v = theta[9] * v + theta[11]
    return (u, v)


@triton.jit
def projective_pull(
    sums, theta, where, steps, pixel, p, u, live, g, into, size, NDIM: tl.constexpr, COUNT: tl.constexpr
):
    """The gradient to the matrix, and to the window where there is one."""
    u, v, below, ahead = projective_parts(theta, p)
    scale = theta[9] if COUNT == 12 else 1.0
    gx = tl.where(ahead & (tl.abs(u) < BEHIND), g[0] * scale, 0.0) / below
    gy = tl.where(ahead & (tl.abs(v) < BEHIND), g[1] * scale, 0.0) / below
    gw = -(gx * u + gy * v)
    found = (sums[0] + gx * p[0], sums[1] + gx * p[1], sums[2] + gx)
    found = found + (sums[3] + gy * p[0], sums[4] + gy * p[1], sums[5] + gy)
    found = found + (sums[6] + gw * p[0], sums[7] + gw * p[1], sums[8])  # the last entry is one
    if COUNT == 12:
        found = found + (sums[9] + g[0] * u + g[1] * v, sums[10] + g[0], sums[11] + g[1])
    return found


@triton.jit
def plane_offset(steps, pixel, NDIM: tl.constexpr):
    """Where a pixel lies in a plane of an array with the strides (plane, x, y, z)."""
    at = pixel[0] * steps[1]
    for a in tl.static_range(1, NDIM):
        at += pixel[a] * steps[1 + a]
    return at


@triton.jit
def linear_place(theta, where, steps, pixel, p, live, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """p plus a sum of functions that all warps share, one plane of the table each, times this warp's parameters."""
    at = plane_offset(steps, pixel, NDIM)
    found = p
    for i in tl.static_range(COUNT // NDIM):
        value = tl.load(where + i * steps[0] + at, mask=live, other=0.0)
        more = ()
        for a in tl.static_range(NDIM):
            more = more + (found[a] + theta[i * NDIM + a] * value,)
        found = more
    return found


@triton.jit
def linear_pull(sums, theta, where, steps, pixel, p, u, live, g, into, size, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """The gradient to a parameter is the sum of its function times g."""
    at = plane_offset(steps, pixel, NDIM)
    found = ()
    for i in tl.static_range(COUNT // NDIM):
        value = tl.load(where + i * steps[0] + at, mask=live, other=0.0)
        for a in tl.static_range(NDIM):
            found = found + (sums[i * NDIM + a] + value * g[a],)
    return found


@triton.jit
def stored_place(theta, where, steps, pixel, p, live, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """Positions that were computed before, one plane a coordinate."""
    at = plane_offset(steps, pixel, NDIM)
    found = ()
    for a in tl.static_range(NDIM):
        found = found + (tl.load(where + a * steps[0] + at, mask=live, other=0.0),)
    return found


@triton.jit
def displaced_place(theta, where, steps, pixel, p, live, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """p plus displacements that were computed before, stored as places are."""
    moved = stored_place(theta, where, steps, pixel, p, live, NDIM, COUNT)
    found = ()
    for a in tl.static_range(NDIM):
        found = found + (p[a] + moved[a],)
    return found


@triton.jit
def nothing_start(BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """Nothing to sum."""
    return ()


@triton.jit
def stored_pull(sums, theta, where, steps, pixel, p, u, live, g, into, size, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """The gradient goes to memory pixel by pixel, one plane a coordinate."""
    at = pixel[NDIM - 1]
    plane = size[NDIM - 1]
    for a in tl.static_range(1, NDIM):
        at = at * size[NDIM - 1 - a] + pixel[NDIM - 1 - a]
        plane = plane * size[NDIM - 1 - a]
    for a in tl.static_range(NDIM):
        tl.store(into + a * plane + at, g[a], mask=live)
    return sums


@triton.jit
def nothing_finish(sums, into, COUNT: tl.constexpr):
    """Nothing to write."""
