# Triton's language, not quite Python: its tensors have no annotations, its tuples grow by addition.
# ruff: noqa: ANN001, ANN201, RUF005
# mypy: ignore-errors
"""The kernels that walk over output pixels: the warp itself, and its gradients to places and, by scattering, to arrays.

One program works on one warp (sample s of array b), on a run of ``length`` tiles and a group of channels. Programs of
one array follow each other, so the array stays in the cache for all its samples.

Their arguments come in groups. ``frame`` is (size, spacing, shape) of :mod:`pstn.kernels.sampling`. ``layout`` holds
the strides of what is read: image, where, table, fill. ``part`` is (channels, tiles, runs, length). The strides of a
tensor are a pair, those of its outer axes (s, b, c as far as it has them) and its ``steps`` along x, y, z.
"""

import triton
import triton.language as tl

from pstn.kernels.sampling import (
    centres,
    corner_offsets,
    corner_weights,
    first_tile,
    locate_all,
    next_tile,
    offset,
    position_gradient,
    read_corners,
    tile_pixels,
)


@triton.jit
def which(runs, SPLIT: tl.constexpr):
    """The run of tiles, the group of channels, the sample and the array this program works on, the array slowest."""
    run = tl.program_id(0)
    group = tl.program_id(0) * 0
    if SPLIT:  # a division costs as much as a pixel
        group = run // runs
        run = run % runs
    return run, group.to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)


@triton.jit
def opened(image, where, table, layout, s, b, first, READ: tl.constexpr, NDIM: tl.constexpr, COUNT: tl.constexpr):
    """A program's image, the parameters of its warp, and what its coordinate function reads, with the strides of it."""
    image += b * layout[0][0][0] + first * layout[0][0][1]
    source = where + s * layout[1][0][0] + b * layout[1][0][1]
    steps = layout[1][1]
    theta = READ(source, steps, NDIM, COUNT)
    if table is not None:
        source, steps = table, layout[2]
    return image, theta, source, steps


@triton.jit
def read_channel(image, fill, layout, c, offsets, inside, CORNERS: tl.constexpr):
    """The values of a channel at the corners."""
    background = None
    if fill is not None:
        background = tl.load(fill + c * layout[3][1])
    return read_corners(image + c * layout[0][0][1], offsets, inside, background, CORNERS)


@triton.jit
def read_below(image, fill, layout, c, offsets, inside, above, CORNERS: tl.constexpr):
    """The values of a channel at the corners of the pixels below those that have been read.

    Mostly their upper corners are the lower corners of the pixel above: these are not read again. What limits the
    forward pass is how many numbers are asked of the cache.
    """
    HALF: tl.constexpr = CORNERS // 2
    background = None
    if fill is not None:
        background = tl.load(fill + c * layout[3][1])
    channel = image + c * layout[0][0][1]
    values = ()
    for k in tl.static_range(CORNERS):
        wanted = inside[1][k]
        if k < HALF:
            known = wanted & inside[0][k + HALF] & (offsets[1][k] == offsets[0][k + HALF])
            wanted = wanted & ~known
        value = tl.load(channel + offsets[1][k], mask=wanted, other=0.0).to(tl.float32)
        if k < HALF:
            value = tl.where(known, above[k + HALF], value)
        if background is not None:
            value = tl.where(inside[1][k], value, background)
        values = values + (value,)
    return values


@triton.jit
def warp_forward(
    out,
    image,
    where,
    table,
    fill,
    out_strides,
    frame,
    layout,
    part,
    READ: tl.constexpr,
    PLACE: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    PADDING: tl.constexpr,
    NEAREST: tl.constexpr,
    NDIM: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """out[s, b, c, pixel] = image[b, c, T(pixel)]."""
    CORNERS: tl.constexpr = 1 if NEAREST else 2**NDIM
    size, spacing, shape = frame
    channels, tiles, runs, length = part
    run, group, s, b = which(runs, SPLIT)
    first = group * GROUP
    # with one chunk of channels the number is known when the kernel is compiled, and the loop vanishes
    last = GROUP if GROUP == CHUNK else tl.minimum(GROUP, channels - first)
    image, theta, source, steps = opened(image, where, table, layout, s, b, first, READ, NDIM, COUNT)
    if fill is not None:
        fill += b * layout[3][0] + first * layout[3][1]
    out += s * out_strides[0][0] + b * out_strides[0][1] + first * out_strides[0][2]
    corner = first_tile(run * length, size, WIDE, ROWS * BLOCK, NDIM)
    for _ in range(tl.minimum(length, tiles - run * length)):
        offsets, inside, weights, spots, alive = (), (), (), (), ()
        for r in tl.static_range(ROWS):
            pixel, live = tile_pixels(corner, size, WIDE, BLOCK, NDIM, ROWS, r)
            u = PLACE(theta, source, steps, pixel, centres(pixel, spacing, NDIM), live, NDIM, COUNT)
            low, fraction, _slope = locate_all(u, shape, PADDING, NEAREST, NDIM)
            there, exists = corner_offsets(low, live, shape, layout[0][1], CORNERS, NDIM)
            offsets, inside = offsets + (there,), inside + (exists,)
            weights = weights + (corner_weights(fraction, CORNERS, NDIM),)
            spots, alive = spots + (offset(pixel, out_strides[1], NDIM),), alive + (live,)
        corner = next_tile(corner, size, WIDE, ROWS * BLOCK, NDIM)
        for c0 in range(0, last, CHUNK):
            # all corners of all channels are read before the first is used: the reads then wait for memory together
            found = ()
            for i in tl.static_range(CHUNK):
                found = found + (read_channel(image, fill, layout, c0 + i, offsets[0], inside[0], CORNERS),)
            if ROWS == 2:
                for i in tl.static_range(CHUNK):
                    found = found + (read_below(image, fill, layout, c0 + i, offsets, inside, found[i], CORNERS),)
            for r in tl.static_range(ROWS):
                for i in tl.static_range(CHUNK):
                    value = weights[r][0] * found[r * CHUNK + i][0]
                    for k in tl.static_range(1, CORNERS):
                        value += weights[r][k] * found[r * CHUNK + i][k]
                    spot = out + (c0 + i) * out_strides[0][2] + spots[r]
                    tl.store(spot, value.to(out.dtype.element_ty), mask=alive[r])


@triton.jit
def warp_backward(
    into,
    total,
    grad,
    image,
    where,
    table,
    fill,
    scale,
    plan,
    into_strides,
    total_strides,
    grad_strides,
    frame,
    layout,
    part,
    READ: tl.constexpr,
    PLACE: tl.constexpr,
    START: tl.constexpr,
    PULL: tl.constexpr,
    FINISH: tl.constexpr,
    COUNT: tl.constexpr,
    PADDING: tl.constexpr,
    NEAREST: tl.constexpr,
    NDIM: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """The gradient to the places into ``into``, and to the image added to ``total``; either may be None.

    ``total`` is float32, or whole numbers in units of 1 / ``scale``: their sum does not depend on the order. With a
    ``plan`` the image's gradient takes only the warps that :func:`pstn.kernels.gather.warp_gather` leaves out.
    """
    CORNERS: tl.constexpr = 1 if NEAREST else 2**NDIM
    size, spacing, shape = frame
    channels, tiles, runs, length = part
    run, group, s, b = which(runs, SPLIT)
    wanted = True
    if plan is not None:
        wanted = tl.load(plan + s * tl.num_programs(2) + b) == 0
    if wanted:
        first = group * GROUP
        last = GROUP if GROUP == CHUNK else tl.minimum(GROUP, channels - first)
        image, theta, source, steps = opened(image, where, table, layout, s, b, first, READ, NDIM, COUNT)
        if fill is not None:
            fill += b * layout[3][0] + first * layout[3][1]
        grad += s * grad_strides[0][0] + b * grad_strides[0][1] + first * grad_strides[0][2]
        unit = 1.0
        if total is not None:
            total += b * total_strides[0][0] + first * total_strides[0][1]
            if scale is not None:
                unit = tl.load(scale)

        sums = ()
        if into is not None:
            into += group * into_strides[0] + s * into_strides[1]
            into += b * into_strides[2] + run * into_strides[3]
            sums = START(BLOCK, COUNT)
        corner = first_tile(run * length, size, WIDE, BLOCK, NDIM)
        for _ in range(tl.minimum(length, tiles - run * length)):
            pixel, live = tile_pixels(corner, size, WIDE, BLOCK, NDIM)
            p = centres(pixel, spacing, NDIM)
            u = PLACE(theta, source, steps, pixel, p, live, NDIM, COUNT)
            low, fraction, slope = locate_all(u, shape, PADDING, NEAREST, NDIM)
            offsets, inside = corner_offsets(low, live, shape, layout[0][1], CORNERS, NDIM)
            weights = corner_weights(fraction, CORNERS, NDIM)
            at = offset(pixel, grad_strides[1], NDIM)
            if total is not None:
                spots, _inside = corner_offsets(low, live, shape, total_strides[1], CORNERS, NDIM)
            dots = ()
            for _k in tl.static_range(CORNERS):
                dots = dots + (tl.zeros((BLOCK,), tl.float32),)
            for c0 in range(0, last, CHUNK):
                # read before use, as in the forward pass
                slopes, found = (), ()
                for i in tl.static_range(CHUNK):
                    g = tl.load(grad + (c0 + i) * grad_strides[0][2] + at, mask=live, other=0.0)
                    slopes = slopes + (g.to(tl.float32),)
                    if into is not None:
                        found = found + (read_channel(image, fill, layout, c0 + i, offsets, inside, CORNERS),)
                for i in tl.static_range(CHUNK):
                    if into is not None:
                        more = ()
                        for k in tl.static_range(CORNERS):
                            more = more + (dots[k] + slopes[i] * found[i][k],)
                        dots = more
                    if total is not None:
                        for k in tl.static_range(CORNERS):
                            amount = weights[k] * slopes[i]
                            if scale is not None:
                                # where it is NaN, so is the unit
                                amount = amount * unit
                                amount = tl.where(amount == amount, amount, 0.0).to(tl.int64)
                            spot = total + (c0 + i) * total_strides[0][1] + spots[k]
                            tl.atomic_add(spot, amount, mask=inside[k], sem="relaxed")
            if into is not None:
                g = position_gradient(fraction, slope, dots, NDIM)
                sums = PULL(sums, theta, source, steps, pixel, p, u, live, g, into, size, NDIM, COUNT)
            corner = next_tile(corner, size, WIDE, BLOCK, NDIM)
        if into is not None:
            FINISH(sums, into, COUNT)
