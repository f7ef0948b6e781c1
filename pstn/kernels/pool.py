# Triton's language, not quite Python: its tensors have no annotations.
# ruff: noqa: ANN001, ANN201
# mypy: allow-untyped-defs
"""Max-pooling of many images at once, as torch operators: values and places in one pass. Imports Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from pstn.kernels.slide import split
from pstn.kernels.stacked import stacked

#: Elements that a program works on.
BLOCK = 1024


@triton.jit
def pool_kernel(
    out, where, x, count, SIZE: tl.constexpr, TARGET: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, BLOCK: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """The largest value of each window and which it is: of equals the first, of NaNs the last, as torch has it."""
    KH: tl.constexpr = KERNEL[0]
    KW: tl.constexpr = KERNEL[1]
    index = tl.program_id(0).to(WORD) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = split(index, TARGET[0], TARGET[1])
    # counted from the padding's corner: nothing is negative
    y, left = row * STRIDE[0], column * STRIDE[1]
    x += (plane * SIZE[0] + y) * SIZE[1] + left
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    found = tl.zeros((BLOCK,), tl.int32)  # the first pixel, for where none is more than -inf
    if PADDING[0] > 0:
        found += (PADDING[0] - tl.minimum(y, PADDING[0])).to(tl.int32) * KW
    if PADDING[1] > 0:
        found += (PADDING[1] - tl.minimum(left, PADDING[1])).to(tl.int32)
    for j in tl.static_range(KH):
        down = index < count
        if j < PADDING[0]:
            down = down & (y + j >= PADDING[0])
        if (TARGET[0] - 1) * STRIDE[0] + j >= SIZE[0] + PADDING[0]:
            down = down & (y + j < SIZE[0] + PADDING[0])
        for i in tl.static_range(KW):
            there = down
            if i < PADDING[1]:
                there = there & (left + i >= PADDING[1])
            if (TARGET[1] - 1) * STRIDE[1] + i >= SIZE[1] + PADDING[1]:
                there = there & (left + i < SIZE[1] + PADDING[1])
            value = tl.load(x + ((j - PADDING[0]) * SIZE[1] + i - PADDING[1]), mask=there, other=float("-inf"))
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            found = tl.where(better, j * KW + i, found)
    tl.store(out + index, best, mask=index < count)
    tl.store(where + index, found.to(tl.int8), mask=index < count)


@triton.jit
def covers(
    window, inside, n: tl.constexpr, SIZE: tl.constexpr, TARGET: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """Whether the n-th window before the last to begin at or before a place is there and covers it, along an axis.

    Only what the sizes leave open is asked: nothing, where windows lie side by side and leave no rest.
    """
    there = True
    if n > 0:
        there = there & (window >= n)
    if (SIZE - 1 + PADDING) // STRIDE - n >= TARGET:
        there = there & (window < TARGET + n)
    if (n + 1) * STRIDE > KERNEL:
        there = there & (inside < KERNEL - n * STRIDE)
    return there


@triton.jit
def unpool_kernel(
    out, grad, where, count, SIZE: tl.constexpr, TARGET: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, BLOCK: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """At each pixel, the gradients of the windows whose value came from it, from the first window to the last."""
    DOWN: tl.constexpr = (KERNEL[0] + STRIDE[0] - 1) // STRIDE[0]
    ACROSS: tl.constexpr = (KERNEL[1] + STRIDE[1] - 1) // STRIDE[1]
    index = tl.program_id(0).to(WORD) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = split(index, SIZE[0], SIZE[1])
    row += PADDING[0]
    column += PADDING[1]
    # the last window to begin here or before, and where in it this is
    y, j = row // STRIDE[0], row % STRIDE[0]
    left, i = column // STRIDE[1], column % STRIDE[1]
    source = (plane * TARGET[0] + y) * TARGET[1] + left
    where += source
    grad += source
    place = j * KERNEL[1] + i
    total = tl.zeros((BLOCK,), tl.float32)
    for n in tl.static_range(DOWN - 1, -1, -1):
        down = (index < count) & covers(y, j, n, SIZE[0], TARGET[0], KERNEL[0], STRIDE[0], PADDING[0])
        for m in tl.static_range(ACROSS - 1, -1, -1):
            there = down & covers(left, i, m, SIZE[1], TARGET[1], KERNEL[1], STRIDE[1], PADDING[1])
            found = tl.load(where - (n * TARGET[1] + m), mask=there, other=-1)
            here = found == place + (n * STRIDE[0] * KERNEL[1] + m * STRIDE[1])
            total += tl.load(grad - (n * TARGET[1] + m), mask=here, other=0.0)
    tl.store(out + index, total, mask=index < count)


def _word(*tensors: Tensor) -> tl.dtype:
    """The numbers to count with: divisions of the long ones are slow, and of those with a sign twice as long."""
    return tl.uint32 if max(tensor.numel() for tensor in tensors) + BLOCK < 2**31 else tl.int64


def _pool(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    out, where = _pool_shapes(x, kernel, stride, padding)
    how = (tuple(each) for each in (x.shape[-2:], out.shape[-2:], kernel, stride, padding))
    with torch.cuda.device_of(x):
        grid, x = (triton.cdiv(out.numel(), BLOCK),), x.contiguous()
        pool_kernel[grid](out, where, x, out.numel(), *how, BLOCK, _word(x, out))
    return out, where


def _unpool(
    grad: Tensor, where: Tensor, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:  # fmt: skip
    out = _unpool_shape(grad, where, size, kernel, stride, padding)
    how = (tuple(each) for each in (size, grad.shape[-2:], kernel, stride, padding))
    with torch.cuda.device_of(grad):
        grid, grad, where = (triton.cdiv(out.numel(), BLOCK),), grad.contiguous(), where.contiguous()
        unpool_kernel[grid](out, grad, where, out.numel(), *how, BLOCK, _word(out, grad))
    return out


def _pool_shapes(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, Tensor]:
    axes = zip(x.shape[-2:], kernel, stride, padding, strict=True)
    size = (*x.shape[:-2], *((n + 2 * p - k) // s + 1 for n, k, s, p in axes))
    return x.new_empty(size), x.new_empty(size, dtype=torch.int8)


def _unpool_shape(grad: Tensor, where: Tensor, size: Sequence[int], *how: Sequence[int]) -> Tensor:
    return grad.new_empty(*grad.shape[:-2], *size)


def _pull_pool(
    grad: Tensor, needs: Sequence[bool], x: Tensor, kernel: Any, stride: Any, padding: Any, where: Tensor
) -> Any:
    return unpool(grad, where, x.shape[-2:], kernel, stride, padding), None, None, None


def _pull_unpool(*_: Any) -> NoReturn:
    raise RuntimeError("the fused pooling has first derivatives only; `with pstn.kernels.reference():` torch's has all")


_pooled = stacked(
    "pool", "(Tensor x, SymInt[] kernel, SymInt[] stride, SymInt[] padding) -> (Tensor, Tensor)",
    _pool, _pool_shapes, _pull_pool,
)  # fmt: skip
unpool = stacked(
    "unpool",
    "(Tensor grad, Tensor where, SymInt[] size, SymInt[] kernel, SymInt[] stride, SymInt[] padding) -> Tensor",
    _unpool, _unpool_shape, _pull_unpool,
)  # fmt: skip


def pool(
    x: Float[Tensor, "*n h w"],
    kernel: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] = (0, 0),
) -> Float[Tensor, "*n oh ow"]:
    """The largest value in each window, as ``max_pool2d`` has it; first derivatives.

    Of equal values the first gets the gradient, of NaNs the last. What is left of a row or column is not looked at.

    Arguments:
        x: Images, float32, on a GPU.
        kernel: The windows' size, of at most 127 pixels.
        stride: From one window to the next; None for windows side by side.
        padding: How far before the image the first window begins, and how far behind it the last may end: at most
            half a window.

    Returns:
        The values, one a window.

    Example:
        >>> pool(torch.empty(3, 8, 2, 9, 8, device="meta"), (2, 2)).shape  # shapes need no GPU
        torch.Size([3, 8, 2, 4, 4])
        >>> pool(torch.empty(3, 8, 2, 9, 8, device="meta"), (3, 3), (2, 2), (1, 1)).shape
        torch.Size([3, 8, 2, 5, 4])
    """
    return _pooled(x, tuple(kernel), tuple(kernel if stride is None else stride), tuple(padding))[0]
