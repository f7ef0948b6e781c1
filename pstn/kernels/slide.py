# Triton's language, not quite Python: its tensors have no annotations.
# ruff: noqa: ANN001, ANN201, RUF005
# mypy: allow-untyped-defs, disable-error-code=assignment
"""Convolutions of many small networks at once, each with kernels of its own, as Triton kernels.

Kernels of a few channels are too small for tensor cores, which multiply sixteen rows at once and would have to be fed
float32 in three pieces. So every thread keeps sums for a strip of pixels and several channels: what it reads of a
window serves all channels and all pixels of the strip below one another, and a weight serves the strip.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The most sums of a thread, multiplications of a loop's body, and numbers of a window, that fit its registers.
SUMS, BODY, WINDOW = 20, 500, 96
#: Channels that a thread has sums for, if there are several; strips that a program has, and its warps.
GROUP, WIDE, WARPS = 5, 256, 4
#: Up to how many warps all networks come to in this way, a GPU is better off with more and smaller ones, if it is not
#: shared with other processes, whose programs want room, too; and the same of these: the most sums of a thread, its
#: channels, a program's strips and warps. The order of sums is the same.
FEW, SMALL = 100, (4, 2, 32, 1)
#: The same of the gradient to weights, whose sums are a kernel's taps for each channel, and the pixels of a strip.
TAPS, MOST, HIGH = 128, 16, 4
#: How many strips' worth of the weight's gradient a program sums. Of nothing else: the sum of one network must not
#: depend on how many there are. A program is a warp, which sums without waiting for others.
LENGTH, LANES = 512, 32
#: What kernels are not compiled anew for: that takes seconds, and gains nothing by knowing these.
TENSORS = ("out", "x", "weight", "bias", "grad")
NUMBERS = ("count", "parts", "o_step", "x_step", "w_step", "b_step", "g_step")


@triton.jit
def split(index, inner: tl.constexpr, last: tl.constexpr):
    """A flat index as three, of which the last two are below ``inner`` and ``last``."""
    return index // (inner * last), index // last % inner, index % last


@triton.jit
def zeros(COUNT: tl.constexpr, WIDE: tl.constexpr):
    """So many sums, a tuple."""
    made = ()
    for _ in tl.static_range(COUNT):
        made = made + (tl.zeros((WIDE,), tl.float32),)
    return made


@triton.jit
def window(x, y, left, live, STRIDES: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, KW: tl.constexpr,
           CHECK: tl.constexpr):  # fmt: skip
    """The rows of windows at x, whose place is (y, left): a tuple of ROWS · KW; zero beyond the source."""
    values = ()
    for j in tl.static_range(ROWS):
        for i in tl.static_range(KW):
            there = live
            if CHECK[0]:
                there = there & (y + j >= 0) & (y + j < SIZE[1])
            if CHECK[1]:
                there = there & (left + i >= 0) & (left + i < SIZE[2])
            values = values + (tl.load(x + (j * STRIDES[2] + i * STRIDES[3]), mask=there, other=0.0),)
    return values


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=TENSORS)
def slide_kernel(
    out, x, weight, bias, count, o_step, x_step, w_step, b_step, O_STRIDES: tl.constexpr, X_STRIDES: tl.constexpr,
    W_STRIDES: tl.constexpr, B_STRIDE: tl.constexpr, FIRST: tl.constexpr, SOURCE: tl.constexpr, TARGET: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, CHECK: tl.constexpr, GROUP: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A strip of HIGH pixels of GROUP target channels: sums over the source's channels and the kernel's taps."""
    KH: tl.constexpr = KERNEL[0]
    KW: tl.constexpr = KERNEL[1]
    STRIPS: tl.constexpr = (TARGET[1] + HIGH - 1) // HIGH
    m = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * GROUP
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    live = n < count
    b, strip, column = split(n, STRIPS, TARGET[2])
    y = strip * (HIGH * STRIDE[0]) - PADDING[0]
    left = column * STRIDE[1] - PADDING[1]
    x += m * x_step + (b * X_STRIDES[0] + y * X_STRIDES[2] + left * X_STRIDES[3])
    weight += m * w_step + FIRST
    totals = zeros(GROUP * HIGH, WIDE)
    for c in range(SOURCE[0]):
        values = window(x + c * X_STRIDES[1], y, left, live, X_STRIDES, SOURCE, (HIGH - 1) * STRIDE[0] + KH, KW, CHECK)
        sums = ()
        for o in tl.static_range(GROUP):
            # beyond the last channel it is summed again, and not kept
            taps = weight + (tl.minimum(first + o, TARGET[0] - 1) * W_STRIDES[0] + c * W_STRIDES[1])
            row = ()
            for k in tl.static_range(KH * KW):
                tap = tl.load(taps + (k // KW * W_STRIDES[2] + k % KW * W_STRIDES[3]))
                row = row + (tl.full((WIDE,), tap, tl.float32),)  # once: compiling is quicker
            for h in tl.static_range(HIGH):
                total = totals[o * HIGH + h]
                for k in tl.static_range(KH * KW):
                    total += values[h * STRIDE[0] * KW + k] * row[k]
                sums = sums + (total,)
        totals = sums
    out += m * o_step + (b * O_STRIDES[0] + strip * (HIGH * O_STRIDES[2]) + column * O_STRIDES[3])
    for o in tl.static_range(GROUP):
        c = first + o
        shift = 0.0
        if bias is not None:
            shift = tl.load(bias + m * b_step + c * B_STRIDE, mask=c < TARGET[0], other=0.0)
        for h in tl.static_range(HIGH):
            there = live & (c < TARGET[0]) & (strip * HIGH + h < TARGET[1])
            tl.store(out + c * O_STRIDES[1] + h * O_STRIDES[2], totals[o * HIGH + h] + shift, mask=there)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=TENSORS)
def to_weight_kernel(
    out, grad, x, count, parts, g_step, x_step, G_STRIDES: tl.constexpr, X_STRIDES: tl.constexpr,
    SOURCE: tl.constexpr, TARGET: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    CHECK: tl.constexpr, LENGTH: tl.constexpr, GROUP: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient to GROUP kernels of one source channel, over a part of the strips."""
    KW: tl.constexpr = KERNEL[1]
    TAPS: tl.constexpr = KERNEL[0] * KERNEL[1]
    STRIPS: tl.constexpr = (TARGET[1] + HIGH - 1) // HIGH
    m = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) % SOURCE[0]
    first = tl.program_id(1) // SOURCE[0] * GROUP
    part = tl.program_id(0)
    grad += m * g_step + first * G_STRIDES[1]
    x += m * x_step + c * X_STRIDES[1]
    totals = zeros(GROUP * TAPS, WIDE)
    for start in range(part * LENGTH, tl.minimum(part * LENGTH + LENGTH, count), WIDE):
        n = start + tl.arange(0, WIDE)
        live = n < count
        b, strip, column = split(n, STRIPS, TARGET[2])
        y = strip * (HIGH * STRIDE[0]) - PADDING[0]
        left = column * STRIDE[1] - PADDING[1]
        values = window(
            x + (b * X_STRIDES[0] + y * X_STRIDES[2] + left * X_STRIDES[3]), y, left, live,
            X_STRIDES, SOURCE, (HIGH - 1) * STRIDE[0] + KERNEL[0], KW, CHECK,
        )  # fmt: skip
        slopes = grad + (b * G_STRIDES[0] + strip * (HIGH * G_STRIDES[2]) + column * G_STRIDES[3])
        for h in tl.static_range(HIGH):
            sums = ()
            for o in tl.static_range(GROUP):
                there = live
                if TARGET[0] % GROUP > 0:
                    there = there & (first + o < TARGET[0])
                if TARGET[1] % HIGH > 0:
                    there = there & (strip * HIGH + h < TARGET[1])
                slope = tl.load(slopes + (o * G_STRIDES[1] + h * G_STRIDES[2]), mask=there, other=0.0)
                for k in tl.static_range(TAPS):
                    sums = sums + (totals[o * TAPS + k] + slope * values[h * STRIDE[0] * KW + k],)
            totals = sums
    out += (m * parts + part) * (TARGET[0] * SOURCE[0] * TAPS)
    for o in tl.static_range(GROUP):
        for k in tl.static_range(TAPS):
            spot = ((first + o) * SOURCE[0] + c) * TAPS + k
            tl.store(out + spot, tl.sum(totals[o * TAPS + k]), mask=first + o < TARGET[0])


def share(count: int, most: int) -> int:
    """The size of the fewest equal shares of at most ``most``."""
    return triton.cdiv(count, triton.cdiv(count, max(1, most)))


def _checks(source: Sequence[int], target: Sequence[int], kernel: Any, stride: Any, padding: Any, high: int) -> Any:
    """Whether windows reach beyond the source, down and across."""
    ends = triton.cdiv(target[1], high) * high, target[2]
    axes = zip(source[1:], ends, kernel, stride, padding, strict=True)
    return tuple(p > 0 or (n - 1) * s + k - p > size for size, n, k, s, p in axes)


class Shape(NamedTuple):
    """How a convolution is cut: a thread's channels, pixels of a strip; a network's strips; a program's, and its warps;
    and the programs of a network."""

    group: int
    high: int
    count: int
    wide: int
    warps: int
    programs: int

    @classmethod
    def of(cls, most: Sequence[int], batch: int, target: Sequence[int], kernel: Any, stride: Any) -> Shape:
        """The shape with at most so many sums and channels a thread, strips a program, in so many warps."""
        sums, channels, wide, warps = most
        sums = min(sums, BODY // math.prod(kernel))
        group = share(target[0], min(channels, sums))
        high = share(target[1], min(sums // group, (WINDOW // kernel[1] - kernel[0]) // stride[0] + 1))
        if high == 1 and wide == WIDE:
            wide *= 2  # a line's strips are a pixel: a thread takes several
        count = batch * triton.cdiv(target[1], high) * target[2]
        return cls(group, high, count, wide, warps, triton.cdiv(count, wide) * triton.cdiv(target[0], group))


def slide(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    turned: bool = False,
) -> Tensor:  # fmt: skip
    """Write the convolutions of x (M, B, C, H, W) with kernels (M, O, C, KH, KW) to ``out`` (M, B, O, OH, OW).

    Arguments:
        out: Where to; its size may be less or more than all of the windows, which see zeros beyond the source.
        x: The sources, with any strides.
        weight: The kernels, with any strides.
        bias: What to add a channel, (M, O).
        stride: From one window to the next.
        padding: How far before the source the first begins; negative for one inside.
        turned: Whether the kernels are (M, C, O, KH, KW) and run backwards, as they do for a gradient.
    """
    kernel, steps, first = tuple(weight.shape[3:]), weight.stride(), 0
    if turned:
        first = sum((n - 1) * s for n, s in zip(kernel, steps[3:], strict=True))
        steps = (steps[0], steps[2], steps[1], -steps[3], -steps[4])
    source, target = tuple(x.shape[2:]), tuple(out.shape[2:])
    shape = Shape.of((SUMS, GROUP, WIDE, WARPS), x.shape[1], target, kernel, stride)
    shared = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    if not shared and shape.programs * len(x) * shape.warps <= FEW:
        shape = Shape.of(SMALL, x.shape[1], target, kernel, stride)
    shift = (0, 0) if bias is None else bias.stride()
    with torch.cuda.device_of(x):
        slide_kernel[(triton.cdiv(shape.count, shape.wide), triton.cdiv(target[0], shape.group), len(x))](
            out, x, weight, bias, shape.count, out.stride(0), x.stride(0), steps[0], shift[0], out.stride()[1:],
            x.stride()[1:], steps[1:], shift[1], first, source, target, kernel, tuple(stride), tuple(padding),
            _checks(source, target, kernel, stride, padding, shape.high), shape.group, shape.high, shape.wide,
            num_warps=shape.warps,
        )  # fmt: skip
    return out


def to_weight(out: Tensor, grad: Tensor, x: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The gradient to kernels of the size of ``out``, in two steps of a sum whose order is fixed."""
    made = parts_shape(grad, x, out.shape[3:])
    sums = out.unsqueeze(1) if made[1] == 1 else out.new_empty(made)
    to_weight_parts(sums, grad, x, stride, padding)
    return out if made[1] == 1 else torch.sum(sums, 1, out=out)


def to_weight_parts(sums: Tensor, grad: Tensor, x: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The first of the two steps: sums over parts of the pixels, (M, parts, O, C, KH, KW)."""
    kernel, source, target = tuple(sums.shape[4:]), tuple(x.shape[2:]), tuple(grad.shape[2:])
    group, high, count = _cut(target, kernel, x.shape[1])
    with torch.cuda.device_of(x):
        to_weight_kernel[(sums.shape[1], triton.cdiv(target[0], group) * source[0], len(x))](
            sums, grad, x, count, sums.shape[1], grad.stride(0), x.stride(0), grad.stride()[1:], x.stride()[1:], source,
            target, kernel, tuple(stride), tuple(padding), _checks(source, target, kernel, stride, padding, high),
            LENGTH, group, high, LANES, num_warps=LANES // 32,
        )  # fmt: skip
    return sums


def parts_shape(grad: Tensor, x: Tensor, kernel: Sequence[int]) -> tuple[int, ...]:
    """The shape of what the first step makes."""
    _, _, count = _cut(tuple(grad.shape[2:]), kernel, x.shape[1])
    return (len(x), triton.cdiv(count, LENGTH), grad.shape[2], x.shape[2], *kernel)


def _cut(target: Sequence[int], kernel: Sequence[int], batch: int) -> tuple[int, int, int]:
    """Channels of a program, pixels of a strip, and strips of a network."""
    taps = math.prod(kernel)
    group = share(target[0], min(MOST, TAPS // taps))
    high = share(target[1], max(1, min(HIGH, BODY // (group * taps))))
    return group, high, batch * triton.cdiv(target[1], high) * target[2]
