# Triton's language, not quite Python: its tensors have no annotations, its tuples grow by addition.
# ruff: noqa: ANN001, ANN201, RUF005
# mypy: ignore-errors
"""The kernels that walk over output pixels: the warp itself, and its gradients to places and, by scattering, to arrays.

One program works on one warp (sample s of array b), on a run of ``length`` tiles and a group of channels. Programs of
one array follow each other, so the array stays in the cache for all its samples. Strides come in pairs: ``strides`` for
the outer axes (s, b, c as far as the tensor has them), ``steps`` for x, y, z.
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
def warp_forward(
    out,
    image,
    where,
    table,
    fill,
    size,
    spacing,
    shape,
    out_strides,
    out_steps,
    image_strides,
    image_steps,
    where_strides,
    where_steps,
    table_steps,
    fill_step,
    channels,
    tiles,
    runs,
    length,
    READ: tl.constexpr,
    PLACE: tl.constexpr,
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
    run, group, s, b = which(runs, SPLIT)
    first = group * GROUP
    # with one chunk of channels the number is known when the kernel is compiled, and the loop vanishes
    last = GROUP if GROUP == CHUNK else tl.minimum(GROUP, channels - first)
    out += s * out_strides[0] + b * out_strides[1] + first * out_strides[2]
    image += b * image_strides[0] + first * image_strides[1]
    where += s * where_strides[0] + b * where_strides[1]
    theta = READ(where, where_steps, NDIM, COUNT)
    source, steps = where, where_steps
    if table is not None:
        source, steps = table, table_steps

    corner = first_tile(run * length, size, WIDE, BLOCK, NDIM)
    for _ in range(tl.minimum(length, tiles - run * length)):
        pixel, live = tile_pixels(corner, size, WIDE, BLOCK, NDIM)
        u = PLACE(theta, source, steps, pixel, centres(pixel, spacing, NDIM), live, NDIM, COUNT)
        low, fraction, _slope = locate_all(u, shape, PADDING, NEAREST, NDIM)
        offsets, inside = corner_offsets(low, live, shape, image_steps, CORNERS, NDIM)
        weights = corner_weights(fraction, CORNERS, NDIM)
        at = offset(pixel, out_steps, NDIM)
        for c0 in range(0, last, CHUNK):
            # every channel is read before the first is written: the reads then wait for memory together
            found = ()
            for i in tl.static_range(CHUNK):
                background = None
                if fill is not None:
                    background = tl.load(fill + (first + c0 + i) * fill_step)
                values = read_corners(image + (c0 + i) * image_strides[1], offsets, inside, background, CORNERS)
                value = weights[0] * values[0]
                for k in tl.static_range(1, CORNERS):
                    value += weights[k] * values[k]
                found = found + (value,)
            for i in tl.static_range(CHUNK):
                tl.store(out + (c0 + i) * out_strides[2] + at, found[i].to(out.dtype.element_ty), mask=live)
        corner = next_tile(corner, size, WIDE, BLOCK, NDIM)


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
    size,
    spacing,
    shape,
    into_strides,
    total_strides,
    total_steps,
    grad_strides,
    grad_steps,
    image_strides,
    image_steps,
    where_strides,
    where_steps,
    table_steps,
    fill_step,
    channels,
    tiles,
    runs,
    length,
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
    run, group, s, b = which(runs, SPLIT)
    wanted = True
    if plan is not None:
        wanted = tl.load(plan + s * tl.num_programs(2) + b) == 0
    if wanted:
        first = group * GROUP
        last = GROUP if GROUP == CHUNK else tl.minimum(GROUP, channels - first)
        grad += s * grad_strides[0] + b * grad_strides[1] + first * grad_strides[2]
        image += b * image_strides[0] + first * image_strides[1]
        where += s * where_strides[0] + b * where_strides[1]
        theta = READ(where, where_steps, NDIM, COUNT)
        source, steps = where, where_steps
        if table is not None:
            source, steps = table, table_steps
        unit = 1.0
        if total is not None:
            total += b * total_strides[0] + first * total_strides[1]
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
            offsets, inside = corner_offsets(low, live, shape, image_steps, CORNERS, NDIM)
            weights = corner_weights(fraction, CORNERS, NDIM)
            at = offset(pixel, grad_steps, NDIM)
            if total is not None:
                spots, _inside = corner_offsets(low, live, shape, total_steps, CORNERS, NDIM)
            dots = ()
            for _k in tl.static_range(CORNERS):
                dots = dots + (tl.zeros((BLOCK,), tl.float32),)
            for c0 in range(0, last, CHUNK):
                for i in tl.static_range(CHUNK):
                    c = c0 + i
                    g = tl.load(grad + c * grad_strides[2] + at, mask=live, other=0.0).to(tl.float32)
                    if into is not None:
                        background = None
                        if fill is not None:
                            background = tl.load(fill + (first + c) * fill_step)
                        values = read_corners(image + c * image_strides[1], offsets, inside, background, CORNERS)
                        more = ()
                        for k in tl.static_range(CORNERS):
                            more = more + (dots[k] + g * values[k],)
                        dots = more
                    if total is not None:
                        for k in tl.static_range(CORNERS):
                            part = weights[k] * g
                            if scale is not None:
                                part = part * unit
                                part = tl.where(part == part, part, 0.0).to(tl.int64)  # where it is NaN, so is the unit
                            spot = total + c * total_strides[1] + spots[k]
                            tl.atomic_add(spot, part, mask=inside[k], sem="relaxed")
            if into is not None:
                g = position_gradient(fraction, slope, dots, NDIM)
                sums = PULL(sums, theta, source, steps, pixel, p, u, live, g, into, size, NDIM, COUNT)
            corner = next_tile(corner, size, WIDE, BLOCK, NDIM)
        if into is not None:
            FINISH(sums, into, COUNT)
