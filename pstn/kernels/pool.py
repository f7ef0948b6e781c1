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
    out, where, x, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
    WORD: tl.constexpr,
):  # fmt: skip
    """The largest value of each window and which it is: of equals the first, of NaNs the last, as torch has it."""
    index = tl.program_id(0).to(WORD) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = split(index, H // KH, W // KW)
    x += (plane * H + row * KH) * W + column * KW
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    found = tl.zeros((BLOCK,), tl.int32)
    for j in tl.static_range(KH):
        for i in tl.static_range(KW):
            value = tl.load(x + j * W + i, mask=index < count, other=0.0)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            found = tl.where(better, j * KW + i, found)
    tl.store(out + index, best, mask=index < count)
    tl.store(where + index, found.to(tl.int8), mask=index < count)


@triton.jit
def unpool_kernel(
    out, grad, where, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
    WORD: tl.constexpr,
):  # fmt: skip
    """Each window's gradient at the place its value came from, and zero elsewhere."""
    index = tl.program_id(0).to(WORD) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = split(index, H, W)
    live = (index < count) & (row < H // KH * KH) & (column < W // KW * KW)
    source = (plane * (H // KH) + row // KH) * (W // KW) + column // KW
    here = tl.load(where + source, mask=live, other=-1) == row % KH * KW + column % KW
    tl.store(out + index, tl.load(grad + source, mask=here & live, other=0.0), mask=index < count)


def _word(x: Tensor) -> tl.dtype:
    return tl.int32 if x.numel() + BLOCK < 2**31 else tl.int64  # divisions of the long ones are slow


def _pool(x: Tensor, kernel: Sequence[int]) -> tuple[Tensor, Tensor]:
    out, where = _pool_shapes(x, kernel)
    with torch.cuda.device_of(x):
        grid, x = (triton.cdiv(out.numel(), BLOCK),), x.contiguous()
        pool_kernel[grid](out, where, x, out.numel(), *x.shape[-2:], *kernel, BLOCK, _word(x))
    return out, where


def _unpool(grad: Tensor, where: Tensor, size: Sequence[int], kernel: Sequence[int]) -> Tensor:
    out = _unpool_shape(grad, where, size, kernel)
    with torch.cuda.device_of(grad):
        grid, grad, where = (triton.cdiv(out.numel(), BLOCK),), grad.contiguous(), where.contiguous()
        unpool_kernel[grid](out, grad, where, out.numel(), *size, *kernel, BLOCK, _word(out))
    return out


def _pool_shapes(x: Tensor, kernel: Sequence[int]) -> tuple[Tensor, Tensor]:
    size = (*x.shape[:-2], x.shape[-2] // kernel[0], x.shape[-1] // kernel[1])
    return x.new_empty(size), x.new_empty(size, dtype=torch.int8)


def _unpool_shape(grad: Tensor, where: Tensor, size: Sequence[int], kernel: Sequence[int]) -> Tensor:
    return grad.new_empty(*grad.shape[:-2], *size)


def _pull_pool(grad: Tensor, needs: Sequence[bool], x: Tensor, kernel: Any, where: Tensor) -> Any:
    return unpool(grad, where, x.shape[-2:], kernel), None


def _pull_unpool(*_: Any) -> NoReturn:
    raise RuntimeError("the fused pooling has first derivatives only; `with pstn.kernels.reference():` torch's has all")


_pooled = stacked("pool", "(Tensor x, SymInt[] kernel) -> (Tensor, Tensor)", _pool, _pool_shapes, _pull_pool)
unpool = stacked(
    "unpool", "(Tensor grad, Tensor where, SymInt[] size, SymInt[] kernel) -> Tensor",
    _unpool, _unpool_shape, _pull_unpool,
)  # fmt: skip


def pool(x: Float[Tensor, "*n h w"], kernel: Sequence[int]) -> Float[Tensor, "*n oh ow"]:
    """The largest value in each window, the windows side by side, as ``max_pool2d`` has it; first derivatives.

    Of equal values the first gets the gradient, of NaNs the last. What is left of a row or column is not looked at.

    Arguments:
        x: Images, float32, on a GPU.
        kernel: The windows' size, of at most 127 pixels.

    Returns:
        The values, smaller by the windows' size.

    Example:
        >>> pool(torch.empty(3, 8, 2, 9, 8, device="meta"), (2, 2)).shape  # shapes need no GPU
        torch.Size([3, 8, 2, 4, 4])
    """
    return _pooled(x, tuple(kernel))[0]
