# Triton's language, not quite Python: its tensors have no annotations.
# ruff: noqa: ANN001, ANN201
# mypy: allow-untyped-defs, disable-error-code=assignment
"""Convolutions of networks with many channels or pictures, as Triton kernels that multiply on tensor cores.

A tile of sums is so many channels by so many pixels. Of each window, a piece is read where it lies and multiplied by
the weights' piece: no windows are copied out. Products are of TF32, as a library's convolutions are by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pstn.kernels.exactness import as_convolved
from pstn.kernels.slide import NUMBERS, TENSORS, _checks, split

#: The most channels of a tile, its pixels, the taps of a piece, a program's warps, and the pieces under way.
TALL, WIDE, DEEP, WARPS, STAGES = 64, 256, 32, 8, 2
#: The same of the gradient to weights, whose tile is channels by taps, and whose pieces are pixels.
W_TALL, W_WIDE, W_DEEP, W_WARPS, W_STAGES = 64, 64, 32, 4, 3
#: The fewest pixels, and the most parts, that the sum of a weight's gradient is made of.
FEWEST, PARTS = 512, 128
#: Pixels of a program that gathers a gradient from its windows.
FOLD = 512


@triton.jit
def piece(x, base, y, left, k, live, TAPS: tl.constexpr, STRIDES: tl.constexpr, SIZE: tl.constexpr,
          KERNEL: tl.constexpr, CHECK: tl.constexpr):  # fmt: skip
    """The taps k of the windows at ``base``, whose place is (y, left): (taps, windows), zero beyond the source."""
    c, j, i = split(k, KERNEL[0], KERNEL[1])
    there = (k < TAPS)[:, None] & live[None, :]
    if CHECK[0]:
        row = y[None, :] + j[:, None]
        there = there & (row >= 0) & (row < SIZE[1])
    if CHECK[1]:
        column = left[None, :] + i[:, None]
        there = there & (column >= 0) & (column < SIZE[2])
    spot = (c * STRIDES[1] + j * STRIDES[2] + i * STRIDES[3])[:, None] + base[None, :]
    return tl.load(x + spot, mask=there, other=0.0)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=TENSORS)
def contract_kernel(
    out, x, weight, bias, count, o_step, x_step, w_step, b_step, O_STRIDES: tl.constexpr, X_STRIDES: tl.constexpr,
    B_STRIDE: tl.constexpr, SOURCE: tl.constexpr, TARGET: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, CHECK: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """TALL target channels of WIDE pixels: sums over the source's channels and the kernel's taps."""
    TAPS: tl.constexpr = SOURCE[0] * KERNEL[0] * KERNEL[1]
    m = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    live = n < count
    b, row, column = split(n, TARGET[1], TARGET[2])
    y = row * STRIDE[0] - PADDING[0]
    left = column * STRIDE[1] - PADDING[1]
    base = b * X_STRIDES[0] + y * X_STRIDES[2] + left * X_STRIDES[3]
    o = tl.program_id(1) * TALL + tl.arange(0, TALL)
    x += m * x_step
    weight += m * w_step
    total = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, TAPS, DEEP):
        k = start + tl.arange(0, DEEP)
        values = piece(x, base, y, left, k, live, TAPS, X_STRIDES, SOURCE, KERNEL, CHECK)
        spot = (o * TAPS)[:, None] + k[None, :]
        taps = tl.load(weight + spot, mask=(o < TARGET[0])[:, None] & (k < TAPS)[None, :], other=0.0)
        total = tl.dot(taps, values, total, input_precision="tf32")
    if bias is not None:
        total += tl.load(bias + m * b_step + o * B_STRIDE, mask=o < TARGET[0], other=0.0)[:, None]
    place = b * O_STRIDES[0] + row * O_STRIDES[2] + column * O_STRIDES[3]
    spot = (o * O_STRIDES[1])[:, None] + place[None, :]
    tl.store(out + m * o_step + spot, total, mask=(o < TARGET[0])[:, None] & live[None, :])


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=TENSORS)
def contract_to_weight_kernel(
    out, grad, x, count, parts, g_step, x_step, G_STRIDES: tl.constexpr, X_STRIDES: tl.constexpr,
    SOURCE: tl.constexpr, TARGET: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    CHECK: tl.constexpr, LENGTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """The gradient to WIDE taps of TALL kernels, over a part of the pixels."""
    TAPS: tl.constexpr = SOURCE[0] * KERNEL[0] * KERNEL[1]
    TILES: tl.constexpr = (TAPS + WIDE - 1) // WIDE
    m = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    o = tl.program_id(1) // TILES * TALL + tl.arange(0, TALL)
    k = tl.program_id(1) % TILES * WIDE + tl.arange(0, WIDE)
    grad += m * g_step
    x += m * x_step
    total = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(part * LENGTH, tl.minimum(part * LENGTH + LENGTH, count), DEEP):
        n = start + tl.arange(0, DEEP)
        live = n < count
        b, row, column = split(n, TARGET[1], TARGET[2])
        y = row * STRIDE[0] - PADDING[0]
        left = column * STRIDE[1] - PADDING[1]
        base = b * X_STRIDES[0] + y * X_STRIDES[2] + left * X_STRIDES[3]
        values = piece(x, base, y, left, k, live, TAPS, X_STRIDES, SOURCE, KERNEL, CHECK)
        place = b * G_STRIDES[0] + row * G_STRIDES[2] + column * G_STRIDES[3]
        spot = (o * G_STRIDES[1])[:, None] + place[None, :]
        slopes = tl.load(grad + spot, mask=(o < TARGET[0])[:, None] & live[None, :], other=0.0)
        total = tl.dot(slopes, tl.trans(values), total, input_precision="tf32")
    spot = (o * TAPS)[:, None] + k[None, :]
    out += (m * parts + part) * (TARGET[0] * TAPS)
    tl.store(out + spot, total, mask=(o < TARGET[0])[:, None] & (k < TAPS)[None, :])


@triton.jit(do_not_specialize=("count", "o_step"), do_not_specialize_on_alignment=("out", "windows"))
def fold_kernel(
    out, windows, count, o_step, O_STRIDES: tl.constexpr, SOURCE: tl.constexpr, TARGET: tl.constexpr,
    KERNEL: tl.constexpr, PADDING: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Each pixel's sum over the windows (taps, pictures, rows, columns) that it is in."""
    m = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    b, c, rest = split(n, TARGET[0], TARGET[1] * TARGET[2])
    y = rest // TARGET[2]
    column = rest % TARGET[2]
    SIZE: tl.constexpr = SOURCE[1] * SOURCE[2]
    KH: tl.constexpr = KERNEL[0]
    KW: tl.constexpr = KERNEL[1]
    pictures = count // (TARGET[0] * TARGET[1] * TARGET[2])
    windows += m * (TARGET[0] * KERNEL[0] * KERNEL[1] * SIZE) * pictures
    windows += c.to(tl.int64) * (KERNEL[0] * KERNEL[1] * SIZE) * pictures + b * SIZE
    total = tl.zeros((WIDE,), tl.float32)
    for j in tl.static_range(KH):
        row = y + (PADDING[0] - j)
        for i in tl.static_range(KW):
            at = column + (PADDING[1] - i)
            there = (n < count) & (row >= 0) & (row < SOURCE[1]) & (at >= 0) & (at < SOURCE[2])
            spot = (j * KW + i) * SIZE * pictures + row * SOURCE[2] + at
            total += tl.load(windows + spot, mask=there, other=0.0)
    spot = b * O_STRIDES[0] + c * O_STRIDES[1] + y * O_STRIDES[2] + column * O_STRIDES[3]
    tl.store(out + m * o_step + spot, total, mask=n < count)


def _tile(channels: int, most: int) -> int:
    return max(16, min(most, triton.next_power_of_2(channels)))


def contract(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Write the convolutions of x (M, B, C, H, W) with kernels (M, O, C, KH, KW) to ``out`` (M, B, O, OH, OW).

    Arguments:
        out: Where to.
        x: The sources, with any strides.
        weight: The kernels, with any strides.
        bias: What to add a channel, (M, O).
        stride: From one window to the next.
        padding: How far before the source the first begins.
    """
    kernel, source, target = tuple(weight.shape[3:]), tuple(x.shape[2:]), tuple(out.shape[2:])
    # Taps in a row, so that a piece of them is one: to find each by divisions, as pixels are, came out wrong on GPUs
    # for kernels of 3 × 3 and 5 × 5 (Triton 3.6), though not in its interpreter.
    flat = weight.flatten(1) if weight[0].is_contiguous() else weight.contiguous().flatten(1)
    tall = _tile(target[0], TALL)
    count = x.shape[1] * target[1] * target[2]
    shift = (0, 0) if bias is None else bias.stride()
    with torch.cuda.device_of(x):
        contract_kernel[(triton.cdiv(count, WIDE), triton.cdiv(target[0], tall), len(x))](
            out, x, flat, bias, count, out.stride(0), x.stride(0), flat.stride(0), shift[0], out.stride()[1:],
            x.stride()[1:], shift[1], source, target, kernel, tuple(stride), tuple(padding),
            _checks(source, target, kernel, stride, padding, 1), tall, WIDE, DEEP, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out


def to_weight(out: Tensor, grad: Tensor, x: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The gradient to kernels of the size of ``out``, in two steps of a sum whose order is fixed."""
    kernel, source, target = tuple(out.shape[3:]), tuple(x.shape[2:]), tuple(grad.shape[2:])
    taps, count = source[0] * math.prod(kernel), x.shape[1] * target[1] * target[2]
    length = max(FEWEST, triton.cdiv(triton.cdiv(count, PARTS), W_DEEP) * W_DEEP)
    parts, tall = triton.cdiv(count, length), _tile(target[0], W_TALL)
    sums = out.unsqueeze(1) if parts == 1 else out.new_empty(len(x), parts, *out.shape[1:])
    with torch.cuda.device_of(x):
        contract_to_weight_kernel[(parts, triton.cdiv(target[0], tall) * triton.cdiv(taps, W_WIDE), len(x))](
            sums, grad, x, count, parts, grad.stride(0), x.stride(0), grad.stride()[1:], x.stride()[1:],
            source, target, kernel, tuple(stride), tuple(padding), _checks(source, target, kernel, stride, padding, 1),
            length, tall, W_WIDE, W_DEEP, num_warps=W_WARPS, num_stages=W_STAGES,
        )  # fmt: skip
    return out if parts == 1 else torch.sum(sums, 1, out=out)


def fold(out: Tensor, grad: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient to sources of the size of ``out``, by the windows' gradients, for a stride of one.

    Where there are many more pixels than windows, most of what :func:`contract` would multiply is beyond the edge.
    """
    rows = grad.transpose(1, 2).flatten(2)  # (M, O, windows)
    taps = weight.flatten(2).transpose(1, 2)  # (M, taps, O)
    with as_convolved():
        windows = torch.bmm(taps, rows)
    count = math.prod(out.shape[1:])
    with torch.cuda.device_of(grad):
        fold_kernel[(triton.cdiv(count, FOLD), len(out))](
            out, windows, count, out.stride(0), out.stride()[1:], tuple(grad.shape[2:]), tuple(out.shape[2:]),
            tuple(weight.shape[3:]), tuple(padding), FOLD,
        )  # fmt: skip
    return out
