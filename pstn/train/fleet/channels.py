"""Convolutions and pooling of stacked networks on a CPU: the networks side by side as channels, channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.overrides import TorchFunctionMode


class Channels(TorchFunctionMode):
    """Inside, under ``vmap``, two-dimensional convolutions and max-pooling work on all networks' channels as one image.

    The rules of ``vmap`` do so for convolutions, but in a layout that pooling then has to undo, and that CPUs are slow
    in: with five networks, both together take two to four times as long as here.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call, side by side where it is one of the two."""
        if function is torch.conv2d and not kwargs and is_batchedtensor(args[1]) and args[0].ndim == 4:
            return _Convolution.apply(*args)
        if function is torch.max_pool2d and not kwargs and is_batchedtensor(args[0]) and args[0].ndim == 4:
            return _Pooling.apply(*args)
        if function is F.group_norm and args and is_batchedtensor(args[0]):
            args = (args[0].contiguous(), *args[1:])  # it asks how images lie, and vmap answers for this layout only
        if function is F.batch_norm and args and is_batchedtensor(args[0]) and args[0].itemsize == 2:
            # vmap takes weights and bias apart, and without them, 16 bits and statistics of 32 do not go together
            return function(args[0].float(), *args[1:], **(kwargs or {})).to(args[0].dtype)
        return function(*args, **(kwargs or {}))


class _Convolution(torch.autograd.Function):
    """``torch.conv2d`` with a rule for ``vmap``; under it, autograd sees the convolution of the whole."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None, *options: Any) -> Tensor:
        return torch.conv2d(x, weight, bias, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, *options: Any
    ) -> tuple[Tensor, int]:
        count = info.batch_size
        stride, padding, dilation, groups = [*options, *[1, 0, 1, 1][len(options) :]]  # type: ignore[misc]
        kernels = weight.movedim(dims[1], 0).flatten(0, 1)
        biases = None if bias is None else _front(bias, dims[2], count).reshape(-1)
        image = _together(x, dims[0], count)
        kernels = kernels.contiguous(memory_format=torch.channels_last)
        if kernels.shape[2:] == (1, 1) and padding in (0, (0, 0), [0, 0]):
            # Only the pixels that are looked at: with a stride, oneDNN's kernels for CPUs without AVX-512 write beyond
            # the end of the gradient to images of fewer than eight channels.
            down, across = (stride, stride) if isinstance(stride, int) else stride
            image = image[..., ::down, ::across].contiguous(memory_format=torch.channels_last)
            stride = 1
        result = torch.conv2d(image, kernels, biases, stride, padding, dilation, groups * count)
        return result.unflatten(1, (count, -1)), 1


class _Pooling(torch.autograd.Function):
    """``torch.max_pool2d`` with a rule for ``vmap``."""

    @staticmethod
    def forward(x: Tensor, *options: Any) -> Tensor:
        return torch.max_pool2d(x, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, *options: Any) -> tuple[Tensor, int]:
        pooled = torch.max_pool2d(_together(x, dims[0], info.batch_size), *options)
        return pooled.unflatten(1, (info.batch_size, -1)), 1


def _front(value: Tensor, dim: int | None, count: int) -> Tensor:
    return value.expand(count, *value.shape) if dim is None else value.movedim(dim, 0)


def _together(x: Tensor, dim: int | None, count: int) -> Tensor:
    """All networks' channels in one image, (B, M C, H, W), channels last in memory."""
    image = _front(x, dim, count).transpose(0, 1).flatten(1, 2)
    return image.contiguous(memory_format=torch.channels_last)
