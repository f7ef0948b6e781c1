# Triton's language, not quite Python: its tensors have no annotations, its tuples grow by addition.
# ruff: noqa: ANN001, ANN201, RUF005
# mypy: ignore-errors
"""The gradient of an affine warp to its images without atomics: every input pixel asks which output pixels saw it.

Output pixel (j, i) looks at X = a j + b i + c, Y = d j + e i + f, in pixels of the input, and gives its gradient to
input pixel (x, y) with the weight (1 - |X - x|)(1 - |Y - y|) where both factors are positive. The output pixels of one
input pixel lie in a parallelogram: a few rows, and in each row a few columns. Warps that enlarge the input so much (or
flatten it) that these are many are left to the scattering kernel.
"""

import triton
import triton.language as tl

from pstn.kernels.sampling import first_tile, tile_pixels

#: the most output pixels that one input pixel asks
MOST = tl.constexpr(256)


@triton.jit
def in_pixels(where, step, size, shape):
    """The matrix that takes output pixels to input pixels: (a, b, c), (d, e, f)."""
    a = tl.load(where) * shape[0] / size[0]
    b = tl.load(where + step) * shape[0] / size[1]
    d = tl.load(where + 3 * step) * shape[1] / size[0]
    e = tl.load(where + 4 * step) * shape[1] / size[1]
    # the centre of the output, at p = 0, looks at t
    c = (tl.load(where + 2 * step) + 1.0) * (shape[0] * 0.5) - 0.5
    f = (tl.load(where + 5 * step) + 1.0) * (shape[1] * 0.5) - 0.5
    c -= a * ((size[0] - 1) * 0.5) + b * ((size[1] - 1) * 0.5)
    f -= d * ((size[0] - 1) * 0.5) + e * ((size[1] - 1) * 0.5)
    return a, b, c, d, e, f


@triton.jit
def bounds(a, b, c, d, e, f, size, shape):
    """One over the determinant, the half height of the parallelogram and 1/a, 1/d, all with room for rounding.

    ``reach`` is how far apart X and x may be: one, and what float32 may be wrong by. The weights decide in the end.
    """
    reach = 1.0 + 2e-6 * (
        shape[0]
        + shape[1]
        + (tl.abs(a) + tl.abs(d)) * size[0]
        + (tl.abs(b) + tl.abs(e)) * size[1]
        + tl.abs(c)
        + tl.abs(f)
    )
    det = a * e - b * d
    flat = tl.abs(det) <= 0.02 * (tl.abs(a * e) + tl.abs(b * d))
    over = 1.0 / tl.where(flat, 1.0, det)
    slack = 1e-5 * (tl.abs(d) * (shape[0] + tl.abs(c)) + tl.abs(a) * (shape[1] + tl.abs(f)))
    height = tl.abs(over) * (reach * (tl.abs(a) + tl.abs(d)) + slack)
    over_a = 1.0 / tl.where(a < 0, tl.minimum(a, -1e-6), tl.maximum(a, 1e-6))
    over_d = 1.0 / tl.where(d < 0, tl.minimum(d, -1e-6), tl.maximum(d, 1e-6))
    return reach, over, height, over_a, over_d, flat


@triton.jit
def make_plan(plan, where, size, shape, where_strides, where_steps, batch, warps, BLOCK: tl.constexpr):
    """For every warp, the rows and columns an input pixel asks, as 65536 rows + columns; 0 if they are too many."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = n < warps
    n = tl.where(live, n, 0).to(tl.int64)
    a, b, c, d, e, f = in_pixels(
        where + n // batch * where_strides[0] + n % batch * where_strides[1], where_steps[0], size, shape
    )
    reach, _over, height, over_a, over_d, flat = bounds(a, b, c, d, e, f, size, shape)
    width = reach * tl.minimum(tl.abs(over_a), tl.abs(over_d))
    rows = tl.minimum(2 * height, 1e3).to(tl.int32) + 1
    columns = tl.minimum(2 * width + 1e-3, 1e3).to(tl.int32) + 1
    few = (rows * columns <= MOST) & ~flat
    tl.store(plan + n, tl.where(few, rows * 65536 + columns, 0), mask=live)


@triton.jit
def warp_gather(
    total,
    grad,
    where,
    plan,
    size,
    shape,
    total_strides,
    total_steps,
    grad_strides,
    grad_steps,
    where_strides,
    where_steps,
    samples,
    batch,
    tiles,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """total[b, c, pixel] = sum over samples and output pixels of weight · grad, for the warps that have a plan."""
    n = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(1) * CHUNK).to(tl.int64)
    pixel, live = tile_pixels(first_tile(tl.program_id(0) % tiles, shape, WIDE, BLOCK, 2), shape, WIDE, BLOCK, 2)
    x = pixel[0].to(tl.float32)
    y = pixel[1].to(tl.float32)
    sums = ()
    for _ in tl.static_range(CHUNK):
        sums = sums + (tl.zeros((BLOCK,), tl.float32),)
    for s in range(samples):
        asked = tl.load(plan + s * batch + n)
        if asked > 0:
            there = where + tl.cast(s, tl.int64) * where_strides[0] + n * where_strides[1]
            a, b, c, d, e, f = in_pixels(there, where_steps[0], size, shape)
            reach, over, height, over_a, over_d, _flat = bounds(a, b, c, d, e, f, size, shape)
            rows = asked // 65536
            columns = asked % 65536
            source = grad + tl.cast(s, tl.int64) * grad_strides[0] + n * grad_strides[1] + first * grad_strides[2]
            middle = ((y - f) * a - (x - c) * d) * over
            top = tl.ceil(tl.minimum(tl.maximum(middle - height, -1e6), 1e6)).to(tl.int32)
            for r in range(rows):
                i = top + r
                row = live & (i >= 0) & (i < size[1])
                dx = b * i.to(tl.float32) + (c - x)
                dy = e * i.to(tl.float32) + (f - y)
                left = tl.maximum(-dx * over_a - reach * tl.abs(over_a), -dy * over_d - reach * tl.abs(over_d))
                start = tl.ceil(tl.minimum(tl.maximum(left, -1e6), 1e6)).to(tl.int32)
                for q in range(columns):
                    j = start + q
                    across = 1.0 - tl.abs(a * j.to(tl.float32) + dx)
                    down = 1.0 - tl.abs(d * j.to(tl.float32) + dy)
                    seen = row & (j >= 0) & (j < size[0]) & (across > 0) & (down > 0)
                    at = j * grad_steps[0] + i * grad_steps[1]
                    more = ()
                    for k in tl.static_range(CHUNK):
                        g = tl.load(source + k * grad_strides[2] + at, mask=seen, other=0.0).to(tl.float32)
                        more = more + (sums[k] + across * down * g,)
                    sums = more
    total += n * total_strides[0] + first * total_strides[1] + pixel[0] * total_steps[0] + pixel[1] * total_steps[1]
    for k in tl.static_range(CHUNK):
        tl.store(total + k * total_strides[1], sums[k].to(total.dtype.element_ty), mask=live)
