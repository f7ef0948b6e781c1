"""Convolutions of many small networks at once, each with kernels of its own, as torch operators. Imports Triton."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.kernels import halves, slide
from pstn.kernels.halves import Packed
from pstn.kernels.operators import _operator
from pstn.kernels.stacked import stacked

#: From how many target channels, taps of all source channels, and products a network has to sum, tensor cores are
#: faster.
CHANNELS, TAPS, PRODUCTS = 16, 64, 20_000_000


def dense(weight: Sequence[int], windows: int) -> bool:
    """Whether so many windows with kernels of a shape (O, C, KH, KW) are for tensor cores, which round their factors.

    Only where torch lets a library's convolutions round them likewise, as it does by default.
    """
    taps = math.prod(weight[1:])
    enough = weight[0] >= CHANNELS and taps >= TAPS and windows * weight[0] * taps >= PRODUCTS
    return enough and torch.backends.cudnn.allow_tf32 and _cores()


@cache
def _cores() -> bool:
    """Whether the GPU has tensor cores as the kernels want them, and TF32: from the year 2020 on, they do."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 0)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    out = _forward_shape(x, weight, bias, *how)
    if dense(weight.shape[1:], _windows(out)):
        return halves.forward(out, halves.pack_image(x, weight.shape, *how), weight, bias, *how)
    return slide.slide(out, x, weight, bias, *how)


def _to_input(grad: Tensor, weight: Tensor, size: Sequence[int], stride: Any, padding: Any) -> Tensor:
    out = _to_input_shape(grad, weight, size)
    for_cores = dense(weight.shape[1:], _windows(grad))
    if max(stride) > 1:  # as if every position had been asked for, and most of them had no slope
        shape = [(n - 1) * s + 1 for n, s in zip(grad.shape[3:], stride, strict=True)]
        spread = grad.new_zeros(*grad.shape[:3], *shape)
        spread[..., :: stride[0], :: stride[1]] = grad
        grad = spread
    if for_cores:
        return halves.to_input(out, halves.pack(grad), weight, padding)
    around = [k - 1 - p for k, p in zip(weight.shape[3:], padding, strict=True)]
    return slide.slide(out, grad, weight, None, (1, 1), around, turned=True)


def _to_weight(grad: Tensor, x: Tensor, kernel: Sequence[int], *how: Any) -> Tensor:
    out = _to_weight_shape(grad, x, kernel)
    if dense(out.shape[1:], _windows(grad)):
        return halves.to_weight(out, halves.pack(grad), halves.pack_image(x, out.shape, *how), *how)
    return slide.to_weight(out, grad, x, *how)


def _forward_shape(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    sizes = zip(x.shape[3:], weight.shape[3:], *how, strict=True)
    return x.new_empty(*x.shape[:2], weight.shape[1], *((n + 2 * p - k) // s + 1 for n, k, s, p in sizes))


def _to_input_shape(grad: Tensor, weight: Tensor, size: Sequence[int], *_: Any) -> Tensor:
    return grad.new_empty(*grad.shape[:2], weight.shape[2], *size)


def _to_weight_shape(grad: Tensor, x: Tensor, kernel: Sequence[int], *_: Any) -> Tensor:
    return x.new_empty(len(x), grad.shape[2], x.shape[2], *kernel)


def _pull_forward(grad: Tensor, needs: Sequence[bool], x: Tensor, weight: Tensor, bias: Any, *how: Any) -> Any:
    # linear in x and in weight: the three operators are one another's gradients, to every order
    to_x = to_input(grad, weight, x.shape[3:], *how) if needs[0] else None
    to_w = to_weight(grad, x, weight.shape[3:], *how) if needs[1] else None
    return to_x, to_w, grad.sum((1, 3, 4)) if needs[2] else None, None, None


def _pull_to_input(grad: Tensor, needs: Sequence[bool], slope: Tensor, weight: Tensor, size: Any, *how: Any) -> Any:
    to_slope = _convolve(grad, weight, None, *how) if needs[0] else None
    return to_slope, to_weight(slope, grad, weight.shape[3:], *how) if needs[1] else None, None, None, None


def _pull_to_weight(grad: Tensor, needs: Sequence[bool], slope: Tensor, x: Tensor, kernel: Any, *how: Any) -> Any:
    to_slope = _convolve(x, grad, None, *how) if needs[0] else None
    return to_slope, to_input(slope, grad, x.shape[3:], *how) if needs[1] else None, None, None, None


def _windows(images: Tensor) -> int:
    """Windows that a network has: one a pixel of the images it makes."""
    return images.shape[1] * math.prod(images.shape[3:])


_HOW = "SymInt[] stride, SymInt[] padding"
_convolve = stacked(
    "convolve", f"(Tensor x, Tensor weight, Tensor? bias, {_HOW}) -> Tensor", _forward, _forward_shape, _pull_forward
)
to_input = stacked(
    "convolve_to_input", f"(Tensor grad, Tensor weight, SymInt[] size, {_HOW}) -> Tensor",
    _to_input, _to_input_shape, _pull_to_input,
)  # fmt: skip
to_weight = stacked(
    "convolve_to_weight", f"(Tensor grad, Tensor x, SymInt[] kernel, {_HOW}) -> Tensor",
    _to_weight, _to_weight_shape, _pull_to_weight,
)  # fmt: skip

# The same for tensor cores in two steps, the copies and what is read from them: :mod:`pstn.train.fleet.copies` puts
# these in place of the three where several read one copy. And the gradient to kernels whose last sum is left to the
# caller: :mod:`pstn.train.fleet.fewer` lets a compiler take it. They have no gradients.


def _parts_shape(grad: Tensor, x: Tensor, kernel: Sequence[int]) -> Tensor:
    return x.new_empty(slide.parts_shape(grad, x, kernel))


def _packed_shape(values: Tensor, top: Tensor, weight: Tensor, bias: Any, size: Sequence[int], *_: Any) -> Tensor:
    return top.new_empty(*values.shape[:2], weight.shape[1], *size)


def _packed_forward(values: Tensor, top: Tensor, weight: Tensor, bias: Tensor | None, size: Any, *how: Any) -> Tensor:
    out = _packed_shape(values, top, weight, bias, size)
    return halves.forward(out, Packed(values, top), weight, bias, *how)


def _packed_to_input_shape(values: Tensor, top: Tensor, weight: Tensor, size: Sequence[int], *_: Any) -> Tensor:
    return top.new_empty(*values.shape[:2], weight.shape[2], *size)


def _packed_to_input(values: Tensor, top: Tensor, weight: Tensor, size: Sequence[int], padding: Any) -> Tensor:
    out = _packed_to_input_shape(values, top, weight, size)
    return halves.to_input(out, Packed(values, top), weight, padding)


def _packed_to_weight_shape(grad: Tensor, g_top: Tensor, x: Tensor, x_top: Tensor, shape: Any, *_: Any) -> Tensor:
    return g_top.new_empty(len(grad), *shape)


def _packed_to_weight(grad: Tensor, g_top: Tensor, x: Tensor, x_top: Tensor, shape: Any, *how: Any) -> Tensor:
    out = _packed_to_weight_shape(grad, g_top, x, x_top, shape)
    return halves.to_weight(out, Packed(grad, g_top), Packed(x, x_top), *how)


to_weight_parts = _operator(
    "convolve_to_weight_parts", f"(Tensor grad, Tensor x, SymInt[] kernel, {_HOW}) -> Tensor",
    lambda grad, x, kernel, *how: slide.to_weight_parts(_parts_shape(grad, x, kernel), grad, x, *how),
    lambda grad, x, kernel, *how: _parts_shape(grad, x, kernel),
)  # fmt: skip
pack = _operator(
    "pack", "(Tensor x, SymInt across, SymInt padding) -> (Tensor, Tensor)",
    lambda *inputs: tuple(halves.pack(*inputs)), halves.packed_shapes,
)  # fmt: skip
packed_forward = _operator(
    "packed_convolve", f"(Tensor x, Tensor x_top, Tensor weight, Tensor? bias, SymInt[] size, {_HOW}) -> Tensor",
    _packed_forward, _packed_shape,
)  # fmt: skip
packed_to_input = _operator(
    "packed_to_input", "(Tensor grad, Tensor g_top, Tensor weight, SymInt[] size, SymInt[] padding) -> Tensor",
    _packed_to_input, _packed_to_input_shape,
)  # fmt: skip
packed_to_weight = _operator(
    "packed_to_weight", f"(Tensor grad, Tensor g_top, Tensor x, Tensor x_top, SymInt[] shape, {_HOW}) -> Tensor",
    _packed_to_weight, _packed_to_weight_shape,
)  # fmt: skip


def convolve(
    x: Float[Tensor, "m b c h w"], weight: Float[Tensor, "m o c kh kw"], bias: Float[Tensor, "m o"] | None,
    stride: Sequence[int], padding: Sequence[int],
) -> Float[Tensor, "m b o oh ow"]:  # fmt: skip
    """What ``conv2d`` gives for each of M networks; derivatives of every order.

    Sums are of float32 and in an order that does not depend on the other networks. Where tensor cores multiply them,
    factors are rounded to TF32's digits; they do if there is enough to do for them, and
    ``torch.backends.cudnn.allow_tf32`` is true.

    Arguments:
        x: Each network's images, float32, on a GPU, with any strides.
        weight: Each network's kernels.
        bias: What each adds to its channels, or None.
        stride: From one window to the next, down and across.
        padding: Zeros around the images, likewise.

    Returns:
        Each network's images of O channels.

    Example:
        >>> import torch
        >>> x, weight = torch.empty(5, 8, 3, 9, 9, device="meta"), torch.empty(5, 4, 3, 3, 3, device="meta")
        >>> convolve(x, weight, None, (2, 1), (1, 0)).shape  # shapes need no GPU
        torch.Size([5, 8, 4, 5, 7])
    """
    return _convolve(x, weight, bias, tuple(stride), tuple(padding))
