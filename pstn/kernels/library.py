"""Convolutions of networks with many channels, one network after the other, by the library that torch calls.

One network's are large enough to fill a GPU. Its library has kernels for tensor cores that want the channels last, and
a number of them that is a multiple of a few: they are copied so, and zeros added, which costs little beside the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: What the number of channels is made a multiple of.
ALIGNED = 8


def forward(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Write the convolutions of x (M, B, C, H, W) with kernels (M, O, C, KH, KW) to ``out`` (M, B, O, OH, OW)."""
    images, kernels = _last(x, 2), _last(weight, 1, 2)
    for place, image, kernel in zip(out, images, kernels, strict=True):
        place.copy_(torch.conv2d(image, kernel, None, list(stride), list(padding))[:, : weight.shape[1]])
    return out if bias is None else out.add_(bias[:, None, :, None, None])


def to_input(out: Tensor, grad: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The gradients to images of the size of ``out``."""
    slopes, kernels = _last(grad, 2), _last(weight, 1, 2)
    image = _blank(out[0], kernels.shape[2])
    for place, slope, kernel in zip(out, slopes, kernels, strict=True):
        place.copy_(_backward(slope, image, kernel, stride, padding, 0)[:, : weight.shape[2]])
    return out


def to_weight(out: Tensor, grad: Tensor, x: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The gradients to kernels of the size of ``out``."""
    slopes, images = _last(grad, 2), _last(x, 2)
    kernel = out.new_empty(slopes.shape[2], *out.shape[3:], images.shape[2]).permute(0, 3, 1, 2)
    for place, slope, image in zip(out, slopes, images, strict=True):
        place.copy_(_backward(slope, image, kernel, stride, padding, 1)[: out.shape[1], : out.shape[2]])
    return out


def _backward(
    slope: Tensor, image: Tensor, kernel: Tensor, stride: Sequence[int], padding: Sequence[int], which: int
) -> Tensor:
    """A gradient: to the image, or to the kernel."""
    wanted = [which == n for n in range(3)]
    how = (list(stride), list(padding), [1, 1], False, [0, 0], 1)
    found: Tensor = torch.ops.aten.convolution_backward(slope, image, kernel, None, *how, wanted)[which]
    return found


def _last(values: Tensor, *axes: int) -> Tensor:
    """The same (M, N, C, H, W) with channels last in memory, and zeros added along axes."""
    shape = list(values.shape)
    for axis in axes:
        shape[axis] += -shape[axis] % ALIGNED
    m, n, c, h, w = shape
    whole = shape == list(values.shape)
    made = (values.new_empty if whole else values.new_zeros)(m, n, h, w, c).permute(0, 1, 4, 2, 3)
    made[:, : values.shape[1], : values.shape[2]].copy_(values)
    return made


def _blank(images: Tensor, channels: int) -> Tensor:
    """Images of which only the shape matters."""
    b, _, h, w = images.shape
    return images.new_empty(b, h, w, channels).permute(0, 3, 1, 2)
