# Triton's language, not quite Python: its tensors have no annotations, its tuples grow by addition.
# ruff: noqa: ANN001, ANN201, RUF005, SIM108
# mypy: ignore-errors
"""Interpolation as Triton device functions: pixels of a tile, corners around a point, weights, what lies outside.

A position, a size or a stride is a tuple with one entry an axis, x first, so one text serves series, images and
volumes: the loops over axes and corners unroll when a kernel is compiled. Arithmetic is float32 throughout.
"""

import triton
import triton.language as tl

#: as in :mod:`pstn.grid`: positions are clamped here, far outside is far outside
FAR = tl.constexpr(1e4)
#: a place that is not a number gives a value that is none
NAN = tl.constexpr(tl.PropagateNan.ALL)
#: adding and taking away 1.5 · 2^23 rounds a float32 to the nearest whole number, halves to even, as torch does
ROUND = tl.constexpr(12582912.0)


@triton.jit
def first_tile(tile, size, WIDE: tl.constexpr, BLOCK: tl.constexpr, NDIM: tl.constexpr):
    """The first pixel of a tile: tiles run along x, then y, then z, and are WIDE × BLOCK / WIDE × 1 pixels large."""
    across = tl.cdiv(size[0], WIDE)
    if NDIM == 1:
        corner = (tile * WIDE,)
    elif NDIM == 2:
        corner = (tile % across * WIDE, tile // across * (BLOCK // WIDE))
    else:
        down = tl.cdiv(size[1], BLOCK // WIDE)
        corner = (tile % across * WIDE, tile // across % down * (BLOCK // WIDE), tile // across // down)
    return corner


@triton.jit
def next_tile(corner, size, WIDE: tl.constexpr, BLOCK: tl.constexpr, NDIM: tl.constexpr):
    """The first pixel of the tile after this one, without a division."""
    x = corner[0] + WIDE
    over = x >= size[0]
    if NDIM == 1:
        found = (x,)
    elif NDIM == 2:
        found = (tl.where(over, 0, x), tl.where(over, corner[1] + BLOCK // WIDE, corner[1]))
    else:
        y = tl.where(over, corner[1] + BLOCK // WIDE, corner[1])
        above = y >= size[1]
        found = (tl.where(over, 0, x), tl.where(above, 0, y), tl.where(above, corner[2] + 1, corner[2]))
    return found


@triton.jit
def tile_pixels(
    corner, size, WIDE: tl.constexpr, BLOCK: tl.constexpr, NDIM: tl.constexpr, ROWS: tl.constexpr = 1,
    ROW: tl.constexpr = 0,
):  # fmt: skip
    """The indices of the pixels of a tile, and which of them exist; of its rows, those that are ROW modulo ROWS."""
    i = tl.arange(0, BLOCK)
    pixel = (corner[0] + i % WIDE,)
    live = pixel[0] < size[0]
    if NDIM > 1:
        pixel = pixel + (corner[1] + i // WIDE * ROWS + ROW,)
        live = live & (pixel[1] < size[1])
    if NDIM > 2:
        pixel = pixel + (corner[2] + tl.zeros_like(i),)
        live = live & (pixel[2] < size[2])
    return pixel, live


@triton.jit
def centres(pixel, spacing, NDIM: tl.constexpr):
    """Normalised positions of pixel centres, (2i + 1)/n - 1, where ``spacing`` is 2/n."""
    found = ()
    for a in tl.static_range(NDIM):
        found = found + (pixel[a].to(tl.float32) * spacing[a] + (0.5 * spacing[a] - 1.0),)
    return found


@triton.jit
def offset(index, steps, NDIM: tl.constexpr):
    """How far into memory an index lies."""
    found = index[0] * steps[0]
    for a in tl.static_range(1, NDIM):
        found += index[a] * steps[a]
    return found


@triton.jit
def locate(u, n, PADDING: tl.constexpr, NEAREST: tl.constexpr):
    """A normalised position on an axis of n pixels: the pixel before it, how far beyond it, d(pixels)/d(u)."""
    half = n * 0.5
    slope = half
    if PADDING == "reflect":
        slope = tl.where(tl.abs(u) <= FAR, half, 0.0)
        u = tl.minimum(tl.maximum(u, -FAR, NAN), FAR, NAN)
    at = u * half + (half - 0.5)
    if PADDING == "reflect":
        beyond = tl.abs(at + 0.5)
        turns = tl.floor(beyond / n)
        rest = beyond - turns * n
        back = (turns.to(tl.int32) & 1) == 1
        slope = tl.where((at < -0.5) != back, -slope, slope)
        at = tl.where(back, n - rest, rest) - 0.5
    if PADDING == "fill":
        # two pixels outside is as outside as any, and a small whole number
        at = tl.minimum(tl.maximum(at, -2.0, NAN), n + 1.0, NAN)
    else:
        slope = tl.where((at > 0) & (at < n - 1), slope, 0.0)
        at = tl.minimum(tl.maximum(at, 0.0, NAN), n - 1.0, NAN)
    low = ((at + ROUND) - ROUND if NEAREST else tl.floor(at)).to(tl.int32)
    return low, at - low.to(tl.float32), slope


@triton.jit
def locate_all(u, shape, PADDING: tl.constexpr, NEAREST: tl.constexpr, NDIM: tl.constexpr):
    """:func:`locate` on every axis."""
    low, fraction, slope = (), (), ()
    for a in tl.static_range(NDIM):
        i, f, d = locate(u[a], shape[a], PADDING, NEAREST)
        low = low + (i,)
        fraction = fraction + (f,)
        slope = slope + (d,)
    return low, fraction, slope


@triton.jit
def corner_offsets(low, live, shape, steps, CORNERS: tl.constexpr, NDIM: tl.constexpr):
    """Where in memory the corners around a point lie, and which of them belong to the array."""
    offsets, inside = (), ()
    for k in tl.static_range(CORNERS):
        at = (low[0] + (k & 1)) * steps[0]
        exists = live & within(low[0] + (k & 1), shape[0])
        for a in tl.static_range(1, NDIM):
            at += (low[a] + ((k >> a) & 1)) * steps[a]
            exists = exists & within(low[a] + ((k >> a) & 1), shape[a])
        offsets = offsets + (at,)
        inside = inside + (exists,)
    return offsets, inside


@triton.jit
def within(i, n):
    """Whether 0 <= i < n, in one comparison: a negative number, read without its sign, is a large one."""
    return i.to(tl.uint32, bitcast=True) < tl.cast(n, tl.uint32)


@triton.jit
def corner_weight(fraction, CORNER: tl.constexpr, SKIP: tl.constexpr, NDIM: tl.constexpr):
    """The interpolation weight of a corner, without the factor of the axis SKIP."""
    weight = 1.0
    for a in tl.static_range(NDIM):
        if a != SKIP:
            weight = weight * (fraction[a] if (CORNER >> a) & 1 else 1.0 - fraction[a])
    return weight


@triton.jit
def corner_weights(fraction, CORNERS: tl.constexpr, NDIM: tl.constexpr):
    """The interpolation weights of all corners; with one corner only, it is the nearest pixel."""
    weights = ()
    for k in tl.static_range(CORNERS):
        if CORNERS == 1:
            weights = weights + (1.0,)
        else:
            weights = weights + (corner_weight(fraction, k, -1, NDIM),)
    return weights


@triton.jit
def read_corners(channel, offsets, inside, background, CORNERS: tl.constexpr):
    """The values at the corners, in float32; the background outside, zero if it is None."""
    values = ()
    for k in tl.static_range(CORNERS):
        value = tl.load(channel + offsets[k], mask=inside[k], other=0.0).to(tl.float32)
        if background is not None:
            value = tl.where(inside[k], value, background)
        values = values + (value,)
    return values


@triton.jit
def position_gradient(fraction, slope, dots, NDIM: tl.constexpr):
    """The gradient to a normalised position, from the products of the output's gradient and the corners' values."""
    found = ()
    for a in tl.static_range(NDIM):
        total = 0.0
        for k in tl.static_range(2**NDIM):
            part = corner_weight(fraction, k, a, NDIM) * dots[k]
            total = total + part if (k >> a) & 1 else total - part
        found = found + (total * slope[a],)
    return found
