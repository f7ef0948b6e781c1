"""Convolutions with a kernel of its own for each network: fused, or as matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.overrides import TorchFunctionMode

from pstn import kernels

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_POOLS = {torch.max_pool1d: 1, torch.max_pool2d: 2, F.max_pool1d: 1, F.max_pool2d: 2}
#: What the kernels without tensor cores are made for: the most products of channels, and the longest side.
CHANNELS, SIDE = 2048, 11
#: From how many numbers in its windows, a network and batch, and from how many channels, a convolution of more than a
#: few channels is better off as a product than with them.
MANY, WIDE, FEW = 500_000, 48, 3
#: The most numbers to copy out.
MOST = 2**26
#: The rows of a matrix product that a gradient sums one after the other.
GROUP = 2048


class Products(TorchFunctionMode):
    """Inside, under ``vmap``, convolutions whose kernels are stacked become matrix products, fused where they can be.

    The rule of ``vmap`` is a grouped convolution, one group a network. Libraries for GPUs run the groups one after the
    other, or with kernels made for one channel a group. Convolutions and max-pooling of float32 go to
    :mod:`pstn.kernels.convolve` and :mod:`pstn.kernels.pool`; for those that they are not made for, or without Triton,
    the windows are copied out and multiplied. Where networks share their kernels, as a frozen classifier's, it is the
    same: a library's choice for few channels may be ten times as slow.
    """

    def __init__(self) -> None:
        super().__init__()
        self.multiplied = False  # whether windows were copied out and multiplied

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call, or what stands in its place."""
        kwargs = kwargs or {}
        if function in _CONVOLUTIONS and (is_batchedtensor(args[0]) or is_batchedtensor(args[1])):
            found = _plain(*args, **kwargs)
            if found is not None and _possible(*found) and _suited(*found, shared=not is_batchedtensor(args[1])):
                return fused(*found)
            if found is not None and is_batchedtensor(args[1]):
                self.multiplied = True
                return convolve(*found)
        if function in _POOLS and is_batchedtensor(args[0]):
            windows = _windows(_POOLS[function], *args, **kwargs)
            if windows is not None:
                return pooled(args[0], *windows)
        if function is F.batch_norm and is_batchedtensor(args[0]):
            return normalised(*args, **kwargs)
        return function(*args, **kwargs)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int] = (0, 0, 0)
) -> Tensor:
    """The convolution of (B, C, *space) with (O, C, *kernel), as a product of windows and kernels.

    Example:
        >>> x, weight = torch.randn(2, 3, 9, 8), torch.randn(5, 3, 4, 3)
        >>> torch.allclose(convolve(x, weight, None, (2, 1)), F.conv2d(x, weight, stride=(2, 1)), atol=1e-5)
        True
    """
    k = weight.ndim - 2
    around = [n for p in reversed(padding[:k]) for n in (p, p)]
    windows = F.pad(x, around) if any(around) else x
    for axis, (length, step) in enumerate(zip(weight.shape[2:], stride, strict=True)):
        windows = windows.unfold(axis + 2, length, step)  # (B, C, *out, *kernel) in the end
    size = windows.shape[2 : 2 + k]
    order = (0, *range(2, 2 + k), 1, *range(2 + k, 2 + 2 * k))
    count = x.shape[0] * math.prod(size)
    # The kernels' gradient is a sum over all rows, which a library takes one by one: in groups it takes many at once.
    group = next((n for n in range(GROUP, count) if count % n == 0), count)
    rows = windows.permute(order).reshape(count // max(group, 1), group, math.prod(weight.shape[1:]))
    taps = weight.flatten(1).t().expand(len(rows), -1, -1)
    out = torch.bmm(rows, taps) if bias is None else torch.baddbmm(bias, rows, taps)
    return out.view(x.shape[0], *size, -1).movedim(-1, 1)


def fused(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The convolution of (B, C, *space) with (O, C, *kernel) in one or two dimensions, by Triton."""
    from pstn.kernels.convolve import convolve as kernel

    line = weight.ndim == 3
    if line:
        x, weight, stride, padding = x.unsqueeze(2), weight.unsqueeze(2), (1, *stride), (0, *padding)
    out = kernel(x[None], weight[None], None if bias is None else bias[None], stride, padding)
    # In no view's name: what an operator returned as one must not be written to, as activations in place do.
    return torch.ops.aten._unsafe_view(out, out.shape[1:3] + out.shape[4 if line else 3 :])


def pooled(x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """The largest value in each window of (B, C, *space), in one or two dimensions, by Triton."""
    from pstn.kernels.pool import pool

    line = len(size) == 1
    if line:
        x, size, stride, padding = x.unsqueeze(2), (1, *size), (1, *stride), (0, *padding)
    out = pool(x, size, stride, padding)
    return torch.ops.aten._unsafe_view(out, out.shape[:2] + out.shape[3 if line else 2 :])  # as in `fused`


def normalised(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalisation by torch's own kernels, called by name: ``F.batch_norm`` asks first how images lie in memory
    (cuDNN might do), which under ``vmap`` on a GPU is an error."""
    return torch.native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def _at_hand(*tensors: Tensor | None) -> bool:
    """Whether these are for the kernels."""
    return kernels._TRITON and all(
        t is None
        or (
            t.device.type in kernels._DEVICES
            and t.dtype == torch.float32
            and not torch.is_autocast_enabled(t.device.type)
        )
        for t in tensors
    )


def _possible(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether the kernels can do a convolution."""
    return (
        _at_hand(x, weight, bias)
        and x.numel() > 0
        and weight.ndim in (3, 4)
        and all(n + 2 * p >= k for n, k, p in zip(x.shape[2:], weight.shape[2:], padding, strict=True))
        # within one network, places are 32-bit numbers, also where columns have become channels
        and x.shape[0]
        * max(x.shape[1] * max(SIDE, weight.shape[-1]), weight.shape[0])
        * math.prod(n + 2 * SIDE for n in x.shape[2:])
        < 2**31
    )


def _suited(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], *, shared: bool
) -> bool:
    """Whether the kernels are faster than a matrix product, or than a library where networks share their kernels."""
    from pstn.kernels.convolve import dense

    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, strict=True)
    windows = x.shape[0] * math.prod((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)
    kernel = weight.shape if weight.ndim == 4 else (*weight.shape[:2], 1, weight.shape[2])
    if dense(kernel, windows):
        return True
    # Without tensor cores, the kernels go over a window once a channel, which may be more than to copy it out.
    many = MANY <= windows * math.prod(weight.shape[1:]) <= MOST
    copied = not shared and weight.shape[1] > FEW and weight.shape[0] >= WIDE and many
    return weight.shape[0] * weight.shape[1] <= CHANNELS and max(weight.shape[2:]) <= SIDE and not copied


def _each(value: int | Sequence[int], k: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * k if len(values) == 1 else values


def _windows(
    k: int,
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Size, stride and padding of a pooling in k dimensions that the kernels can do; None for any other."""
    plain = set(_each(dilation, k)) == {1} and not ceil_mode and not return_indices
    if not plain or x.ndim != k + 2 or x.numel() == 0 or not _at_hand(x):
        return None
    size, around = _each(kernel_size, k), _each(padding, k)
    step = size if stride is None else _each(stride, k) or size
    axes = zip(x.shape[2:], size, step, around, strict=True)
    # what torch refuses is left for it to refuse
    fits = all(0 < n <= m + 2 * p and s > 0 and 0 <= 2 * p <= n for m, n, s, p in axes) and math.prod(size) <= 64
    return (size, step, around) if fits else None


def _plain(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, ...], tuple[int, ...]] | None:
    """The arguments of an undilated, ungrouped convolution, in full; None for any other."""
    k = weight.ndim - 2
    if groups != 1 or set(_each(dilation, k)) != {1} or isinstance(padding, str) or x.ndim != k + 2:
        return None
    return x, weight, bias, _each(stride, k), _each(padding, k)
