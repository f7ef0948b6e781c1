# Triton's language, not quite Python: its tensors have no annotations.
# ruff: noqa: ANN001, ANN201
# mypy: allow-untyped-defs, disable-error-code=assignment
"""Convolutions of networks with many channels or pixels, as Triton kernels that multiply halves on tensor cores.

Images, kernels and slopes are first copied: channels last, so that what is read is in a row, and as float16 after
multiplication by a power of two, one for each network, that brings the largest of its numbers close to the top of
float16's range. That has as many digits as TF32, which a library's convolutions round to by default, and takes half
the room and half the time; what it lacks, range, is made up for by the power: numbers have all digits down to 2⁻²⁸ of
the network's largest, and become zero at 2⁻³⁹. Sums are of float32.

Of few source channels, those of neighbouring columns become channels too: a kernel of 9 × 9 on one channel is one of
9 × 1 on nine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pstn.kernels.slide import _checks, split

#: What the number of channels is made a multiple of: 16 bytes.
ALIGNED = 8
#: The most source channels that are few.
FEW = 3
#: Pixels and channels that a program copies.
PIXELS, CHANNELS = 64, 64
#: The most channels of a tile of the target, and the numbers of a piece of its windows.
BROAD, DEEP = 128, 64
#: The same of the gradient to kernels, whose tile is channels by taps and whose pieces are pixels, and its warps and
#: pieces under way.
TALL, WIDE, W_DEEP, W_WARPS, W_STAGES = 128, 128, 64, 4, 3
#: Pixels of a tile, a program's warps and the pieces under way, by the tile's channels.
SHAPES = {128: (128, 4, 3), 64: (128, 4, 3), 32: (256, 8, 3), 16: (256, 8, 3)}
#: The fewest pixels of a part of that gradient's sum, and about how many programs there are for a network.
FEWEST, PROGRAMS = 1024, 256
#: Pixels of a program that sums columns.
FOLD = 512
#: Numbers that a program finds the largest of, so many at a time, so often.
BLOCK, ROUNDS = 1024, 8
_LOOSE = {"do_not_specialize": ("count", "x_step", "o_step", "b_step", "parts", "length")}


class Packed(NamedTuple):
    """Pictures (M, N, H, W, C) as halves, C a multiple of :data:`ALIGNED`, and each network's largest number."""

    values: Tensor
    top: Tensor


@triton.jit
def top_kernel(out, x, count, x_step, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """The largest size of a network's numbers, as the whole number of its bits: larger bits, larger size, NaN last."""
    m = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * (BLOCK * ROUNDS) + tl.arange(0, BLOCK)
    best = tl.zeros((BLOCK,), tl.int32)
    for r in tl.static_range(ROUNDS):
        n = first + r * BLOCK
        value = tl.load(x + m * x_step + n, mask=n < count, other=0.0)
        best = tl.maximum(best, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.atomic_max(out + m, tl.max(best, 0), sem="relaxed")  # in any order the same


@triton.jit
def exponent(top):
    """The power of two by which numbers up to ``top`` come close to the top of float16's range."""
    biased = (top.to(tl.int32, bitcast=True) >> 23) & 255
    return tl.where(biased == 255, 0, tl.minimum(141 - biased, 126))


@triton.jit
def power(n):
    """Two to the n, for n from -126 to 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(**_LOOSE)
def pack_kernel(
    out, x, top, count, x_step, STRIDES: tl.constexpr, FIRST: tl.constexpr, SOURCE: tl.constexpr, ROOM: tl.constexpr,
    COLUMNS: tl.constexpr, PADDING: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some pixels and channels of a picture, as halves; a channel is one of so many columns of one."""
    m = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    k = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b, row, column = split(n, ROOM[0], ROOM[1])
    spot = (b * STRIDES[0] + row * STRIDES[2])[:, None] + (k // COLUMNS * STRIDES[1])[None, :]
    there = (n < count)[:, None] & (k < SOURCE[0] * COLUMNS)[None, :]
    across = column[:, None] + (k % COLUMNS)[None, :]
    if COLUMNS > 1:
        across = across - PADDING
        there = there & (across >= 0) & (across < SOURCE[2])
    values = tl.load(x + m * x_step + FIRST + spot + across * STRIDES[3], mask=there, other=0.0)
    values = values * power(exponent(tl.load(top + m)))
    out += m * count * ROOM[2]
    tl.store(
        out + n[:, None] * ROOM[2] + k[None, :],
        values.to(tl.float16),
        mask=(n < count)[:, None] & (k < ROOM[2])[None, :],
    )


@triton.jit(**_LOOSE)
def multiply_kernel(
    out, x, weight, bias, x_top, w_top, count, o_step, b_step, O_STRIDES: tl.constexpr, B_STRIDE: tl.constexpr,
    SOURCE: tl.constexpr, TARGET: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    CHECK: tl.constexpr, HIGH: tl.constexpr, BROAD: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """HIGH pixels of BROAD target channels: sums over the taps of all source channels, DEEP at a time."""
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1] * SOURCE[2]
    m = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    live = n < count
    b, row, column = split(n, TARGET[1], TARGET[2])
    y = row * STRIDE[0] - PADDING[0]
    left = column * STRIDE[1] - PADDING[1]
    base = ((b * SOURCE[0] + y) * SOURCE[1] + left) * SOURCE[2]
    o = tl.program_id(1) * BROAD + tl.arange(0, BROAD)
    x += m * (count // (TARGET[1] * TARGET[2])) * (SOURCE[0] * SOURCE[1] * SOURCE[2])
    weight += m * (TARGET[0] * TAPS)
    total = tl.zeros((HIGH, BROAD), tl.float32)
    for start in range(0, TAPS, DEEP):
        k = start + tl.arange(0, DEEP)
        j, i, c = split(k, KERNEL[1], SOURCE[2])
        there = live[:, None] & (k < TAPS)[None, :]
        if CHECK[0]:
            there = there & ((y[:, None] + j[None, :]) >= 0) & ((y[:, None] + j[None, :]) < SOURCE[0])
        if CHECK[1]:
            there = there & ((left[:, None] + i[None, :]) >= 0) & ((left[:, None] + i[None, :]) < SOURCE[1])
        spot = (j * SOURCE[1] + i) * SOURCE[2] + c
        values = tl.load(x + base[:, None] + spot[None, :], mask=there, other=0.0)
        taps = tl.load(
            weight + (o * TAPS)[:, None] + k[None, :], mask=(o < TARGET[0])[:, None] & (k < TAPS)[None, :], other=0.0
        )
        total = tl.dot(values, tl.trans(taps), total)
    total = total * power(-exponent(tl.load(x_top + m))) * power(-exponent(tl.load(w_top + m)))
    if bias is not None:
        total += tl.load(bias + m * b_step + o * B_STRIDE, mask=o < TARGET[0], other=0.0)[None, :]
    spot = (b * O_STRIDES[0] + row * O_STRIDES[2] + column * O_STRIDES[3])[:, None] + (o * O_STRIDES[1])[None, :]
    tl.store(out + m * o_step + spot, total, mask=live[:, None] & (o < TARGET[0])[None, :])


@triton.jit(**_LOOSE)
def to_weight_kernel(
    out, grad, x, g_top, x_top, count, parts, length, SOURCE: tl.constexpr, TARGET: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, CHECK: tl.constexpr, TALL: tl.constexpr,
    WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """The gradient to WIDE taps of TALL kernels, over a part of the pixels, DEEP at a time."""
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1] * SOURCE[2]
    TILES: tl.constexpr = (TAPS + WIDE - 1) // WIDE
    m = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    o = tl.program_id(0) // TILES * TALL + tl.arange(0, TALL)
    k = tl.program_id(0) % TILES * WIDE + tl.arange(0, WIDE)
    j, i, c = split(k, KERNEL[1], SOURCE[2])
    place = (j * SOURCE[1] + i) * SOURCE[2] + c
    grad += m * count * TARGET[3]
    x += m * (count // (TARGET[1] * TARGET[2])) * (SOURCE[0] * SOURCE[1] * SOURCE[2])
    total = tl.zeros((WIDE, TALL), tl.float32)  # the larger side is that of which tensor cores want 64 at least
    for start in range(part * length, tl.minimum(part * length + length, count), DEEP):
        n = start + tl.arange(0, DEEP)
        live = n < count
        b, row, column = split(n, TARGET[1], TARGET[2])
        y = row * STRIDE[0] - PADDING[0]
        left = column * STRIDE[1] - PADDING[1]
        base = ((b * SOURCE[0] + y) * SOURCE[1] + left) * SOURCE[2]
        there = live[:, None] & (k < TAPS)[None, :]
        if CHECK[0]:
            there = there & ((y[:, None] + j[None, :]) >= 0) & ((y[:, None] + j[None, :]) < SOURCE[0])
        if CHECK[1]:
            there = there & ((left[:, None] + i[None, :]) >= 0) & ((left[:, None] + i[None, :]) < SOURCE[1])
        values = tl.load(x + base[:, None] + place[None, :], mask=there, other=0.0)
        edge = live[:, None] & (o < TARGET[3])[None, :]
        slopes = tl.load(grad + (n * TARGET[3])[:, None] + o[None, :], mask=edge, other=0.0)
        total = tl.dot(tl.trans(values), slopes, total)
    total = total * power(-exponent(tl.load(g_top + m))) * power(-exponent(tl.load(x_top + m)))
    out += (m * parts + part) * (TARGET[0] * TAPS)
    tl.store(out + (o * TAPS)[None, :] + k[:, None], total, mask=(o < TARGET[0])[None, :] & (k < TAPS)[:, None])


@triton.jit(**_LOOSE)
def fold_kernel(
    out, columns, count, o_step, O_STRIDES: tl.constexpr, SOURCE: tl.constexpr, TARGET: tl.constexpr,
    COLUMNS: tl.constexpr, PADDING: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Each pixel's sum over the columns that it was copied to."""
    m = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    b = n // (TARGET[0] * TARGET[1] * TARGET[2])
    c, y, at = split(n % (TARGET[0] * TARGET[1] * TARGET[2]), TARGET[1], TARGET[2])
    channels: tl.constexpr = TARGET[0] * COLUMNS
    columns += m * (count // (TARGET[0] * TARGET[1] * TARGET[2])) * (channels * SOURCE[0] * SOURCE[1])
    total = tl.zeros((WIDE,), tl.float32)
    for i in tl.static_range(COLUMNS):
        column = at + (PADDING - i)
        there = (n < count) & (column >= 0) & (column < SOURCE[1])
        spot = ((b * channels + c * COLUMNS + i) * SOURCE[0] + y) * SOURCE[1] + column
        total += tl.load(columns + spot, mask=there, other=0.0)
    spot = b * O_STRIDES[0] + c * O_STRIDES[1] + y * O_STRIDES[2] + at * O_STRIDES[3]
    tl.store(out + m * o_step + spot, total, mask=n < count)


def forward(
    out: Tensor, image: Packed, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Write the convolutions of images with kernels (M, O, C, KH, KW) to ``out`` (M, B, O, OH, OW).

    Arguments:
        out: Where to.
        image: The sources, as :func:`pack_image` makes them.
        weight: The kernels, with any strides.
        bias: What to add a channel, (M, O).
        stride: From one window to the next.
        padding: How far before the source the first begins.
    """
    if columns(weight.shape, stride) > 1:
        return _multiply(out, image, pack(_wide(weight)), bias, (stride[0], 1), (padding[0], 0))
    return _multiply(out, image, pack(weight), bias, stride, padding)


def to_input(out: Tensor, slopes: Packed, weight: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient to sources of the size of ``out``, for a stride of one."""
    across = columns(weight.shape, (1, 1))
    kernels = _wide(weight) if across > 1 else weight
    around = [k - 1 - p for k, p in zip(kernels.shape[3:], (padding[0], 0 if across > 1 else padding[1]), strict=True)]
    turned = pack(kernels.transpose(1, 2), turned=True)
    if across == 1:
        return _multiply(out, slopes, turned, None, (1, 1), around)
    made = out.new_empty(*out.shape[:2], out.shape[2] * across, out.shape[3], slopes.values.shape[3])
    _multiply(made, slopes, turned, None, (1, 1), around)
    count = math.prod(out.shape[1:])
    with torch.cuda.device_of(out):
        fold_kernel[(triton.cdiv(count, FOLD), len(out))](
            out, made, count, out.stride(0), out.stride()[1:], tuple(made.shape[3:]), tuple(out.shape[2:]), across,
            padding[1], FOLD,
        )  # fmt: skip
    return out


def to_weight(out: Tensor, slopes: Packed, image: Packed, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The gradient to kernels of the size of ``out``, in two steps of a sum whose order is fixed."""
    across, kernel = columns(out.shape, stride), tuple(out.shape[3:])
    if across > 1:
        kernel, stride, padding = (out.shape[3], 1), (stride[0], 1), (padding[0], 0)
    source, target = tuple(image.values.shape[2:]), (out.shape[1], *slopes.values.shape[2:])
    taps, count = math.prod(kernel) * source[2], slopes.values.shape[1] * target[1] * target[2]
    tall = _tile(target[0], TALL)
    tiles = triton.cdiv(target[0], tall) * triton.cdiv(taps, WIDE)
    parts = max(1, min(triton.cdiv(count, FEWEST), PROGRAMS // tiles))
    length = triton.cdiv(triton.cdiv(count, parts), W_DEEP) * W_DEEP
    parts = triton.cdiv(count, length)
    sums = out.new_empty(len(out), parts, target[0], taps)
    checks = _checks((0, *source[:2]), target, kernel, stride, padding, 1)
    with torch.cuda.device_of(out):
        to_weight_kernel[(tiles, parts, len(out))](
            sums, slopes.values, image.values, slopes.top, image.top, count, parts, length, source, target, kernel,
            tuple(stride), tuple(padding), checks, tall, WIDE, W_DEEP, num_warps=W_WARPS, num_stages=W_STAGES,
        )  # fmt: skip
    whole = (sums.sum(1) if parts > 1 else sums.squeeze(1)).view(len(out), target[0], *kernel, source[2])
    if across == 1:
        return out.copy_(whole[..., : out.shape[2]].permute(0, 1, 4, 2, 3))
    wide = whole[..., : out.shape[2] * across].squeeze(3).unflatten(3, (out.shape[2], across))  # (M, O, KH, C, KW)
    return out.copy_(wide.transpose(2, 3))


def pack_image(x: Tensor, weight: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Packed:
    """Sources (M, B, C, H, W) as they are read with kernels of a shape."""
    across = columns(weight, stride)
    return pack(x, across, padding[1]) if across > 1 else pack(x)


def pack(x: Tensor, across: int = 1, padding: int = 0, *, turned: bool = False) -> Packed:
    """Pictures (M, N, C, H, W) as halves, channels last.

    Arguments:
        x: The pictures, with any strides.
        across: How many neighbouring columns become channels, of which those of one channel are side by side.
        padding: Zeros at the left and right, where columns become channels.
        turned: Whether to turn them by half a turn.
    """
    m, n, c, h, w = x.shape
    made, top = packed_shapes(x, across, padding)
    room = tuple(made.shape[2:])
    largest(top, x)
    count, steps, first = n * room[0] * room[1], x.stride()[1:], 0
    if turned:
        first = (h - 1) * steps[2] + (w - 1) * steps[3]
        steps = (steps[0], steps[1], -steps[2], -steps[3])
    channels = min(CHANNELS, triton.next_power_of_2(room[2]))
    with torch.cuda.device_of(x):
        pack_kernel[(triton.cdiv(count, PIXELS), triton.cdiv(room[2], channels), m)](
            made, x, top, count, x.stride(0), steps, first, (c, h, w), room, across, padding, PIXELS, channels
        )
    return Packed(made, top)


def packed_shapes(x: Tensor, across: int, padding: int) -> tuple[Tensor, Tensor]:
    """Room for what :func:`pack` makes."""
    m, n, c, h, w = x.shape
    room = (h, w + 2 * padding - across + 1, -(-c * across // ALIGNED) * ALIGNED)
    return x.new_empty(m, n, *room, dtype=torch.float16), x.new_empty(m)


def largest(out: Tensor, x: Tensor) -> None:
    """Write the largest size of each row's numbers to ``out``, wherever it is; NaN if one is."""
    count = math.prod(x.shape[1:])
    if not _solid(x):
        out.copy_(torch.linalg.vector_norm(x, math.inf, dim=tuple(range(1, x.ndim))))
        return
    with torch.cuda.device_of(x):
        bits = out.view(torch.int32).zero_()
        top_kernel[(triton.cdiv(count, BLOCK * ROUNDS), len(x))](bits, x, count, x.stride(0), BLOCK, ROUNDS)


def _solid(x: Tensor) -> bool:
    """Whether each row fills its piece of memory, in whatever order."""
    length = 1
    for step, size in sorted(zip(x.stride()[1:], x.shape[1:], strict=True)):
        if size > 1 and step != length:
            return False
        length *= size
    return True


def columns(weight: Sequence[int], stride: Sequence[int]) -> int:
    """How many columns become channels: as many as a kernel has, where the source has few channels; else one."""
    return weight[4] if weight[2] <= FEW and stride[1] == 1 else 1


def _wide(weight: Tensor) -> Tensor:
    """Kernels whose columns are channels: (M, O, C · KW, KH, 1)."""
    return weight.transpose(3, 4).flatten(2, 3).unsqueeze(-1)


def _tile(channels: int, most: int) -> int:
    return max(16, min(most, triton.next_power_of_2(channels)))


def _multiply(
    out: Tensor, x: Packed, weight: Packed, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    kernel, source, target = tuple(weight.values.shape[2:4]), tuple(x.values.shape[2:]), tuple(out.shape[2:])
    broad = _tile(target[0], BROAD)
    high, warps, stages = SHAPES[broad]
    count = out.shape[1] * target[1] * target[2]
    shift = (0, 0) if bias is None else bias.stride()
    with torch.cuda.device_of(out):
        multiply_kernel[(triton.cdiv(count, high), triton.cdiv(target[0], broad), len(out))](
            out, x.values, weight.values, bias, x.top, weight.top, count, out.stride(0), shift[0],
            out.stride()[1:], shift[1], source, target, kernel, tuple(stride), tuple(padding),
            _checks((0, *source[:2]), target, kernel, stride, padding, 1), high, broad, DEEP, num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
    return out
