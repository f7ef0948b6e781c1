"""What comes in: series of one or many lengths, images, labels; checked, resampled, blurred."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pstn.grid import identity_grid, resized, sample

#: Series (n, time) or (n, channels, time), images (n, channels, height, width), volumes; or a list of series of
#: different lengths, each (time) or (channels, time). Tables have a series a row.
Arrays = Tensor | np.ndarray | Sequence[Tensor] | Sequence[np.ndarray] | Sequence[Any]


def read(
    series: Arrays, size: Sequence[int] | None, normalise: bool, device: torch.device | str | None
) -> tuple[Float[Tensor, "n c *space"], tuple[int, ...]]:
    """One array of all series, each resampled to ``size`` on its own axis [-1, 1], and the lengths they had.

    Convention: as everywhere, [-1, 1] spans the outer edges of the first and the last point.
    """
    if not isinstance(series, Tensor) and hasattr(series, "__array__"):  # tables, too
        array = np.asarray(series)
        series = list(array) if array.dtype == object else array
    if isinstance(series, Tensor | np.ndarray):
        whole = _tensor(series, device)
        parts = [whole[:, None] if whole.ndim == 2 else whole]
        lengths: tuple[int, ...] = (whole.shape[-1],) * len(whole)
    else:
        tensors = [_tensor(one, device) for one in series]
        parts = [one[None, None] if one.ndim == 1 else one[None] for one in tensors]
        lengths = tuple(one.shape[-1] for one in tensors)
    if not parts or not len(parts[0]):
        raise ValueError("no series given; expected at least one")
    channels = {part.shape[1] for part in parts if part.ndim > 2}
    if len(channels) > 1 or len({part.ndim for part in parts}) > 1 or parts[0].ndim not in (3, 4, 5):
        raise ValueError(
            f"series have shapes {sorted({tuple(part.shape[1:]) for part in parts})}; expected the same number of "
            "channels for all: (channels, time), or (channels, height, width) for images"
        )
    if len(parts) > 1 and parts[0].ndim > 3 and len({part.shape for part in parts}) > 1:
        raise ValueError("images of different sizes; only series may differ in length: resize the images first")
    _check_finite(parts)
    if size is None:
        size = max((part.shape[2:] for part in parts), key=math.prod)
    x = torch.cat([resized(part, size) for part in parts]) if len(parts) > 1 else resized(parts[0], size)
    return (_normalised(x) if normalise else x), lengths


def resample(x: Float[Tensor, "n c *space"], size: Sequence[int]) -> Float[Tensor, "n c *size"]:
    """The arrays at another size, by linear interpolation; the outer edges stay where they are."""
    if tuple(x.shape[2:]) == tuple(size):
        return x
    grid = identity_grid(size, dtype=x.dtype, device=x.device)
    return sample(x, grid.expand(len(x), *grid.shape), padding="border")


def blur(x: Float[Tensor, "n c *space"], width: float) -> Float[Tensor, "n c *space"]:
    """The arrays under a Gaussian whose standard deviation is ``width`` of each axis, the border continued."""
    for axis in range(2, x.ndim):
        sigma = width * x.shape[axis]
        if sigma < 0.1:  # of a point: the neighbours' weights are nothing
            continue
        reach = math.ceil(3 * sigma)
        steps = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
        weights = (-0.5 * (steps / sigma).square()).exp()
        lines = x.movedim(axis, -1)
        flat = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), mode="replicate")
        x = F.conv1d(flat, (weights / weights.sum())[None, None]).view(lines.shape).movedim(-1, axis)
    return x


def groups(y: Sequence[Hashable] | Tensor | np.ndarray | None, n: int) -> tuple[Tensor, tuple[Any, ...]]:
    """Labels as numbers (n,), and the classes they stand for, sorted; one class where there are no labels."""
    if y is None:
        return torch.zeros(n, dtype=torch.int64), (0,)
    labels = y.tolist() if isinstance(y, Tensor | np.ndarray) else list(y)
    if len(labels) != n:
        raise ValueError(f"y has {len(labels)} labels for {n} series; expected one for each")
    classes = tuple(sorted(set(labels)))
    number = {label: i for i, label in enumerate(classes)}
    return torch.tensor([number[label] for label in labels]), classes


def _tensor(x: Any, device: torch.device | str | None) -> Tensor:
    if not isinstance(x, Tensor) and hasattr(x, "__array__"):
        x = np.asarray(x)  # a tensor cannot run backwards, be read-only, or have its bytes in another order
        x = np.require(x, x.dtype.newbyteorder("="), ["C", "W"])
    tensor = torch.as_tensor(x)
    tensor = tensor.clone() if tensor.is_inference() else tensor  # no gradient goes past what inference mode made
    if not tensor.is_floating_point():
        single, double = tensor.float(), tensor.double()  # counters may need more digits than float32 has
        tensor = single if torch.equal(single.double(), double) else double
    return tensor.detach().to(device=device, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _check_finite(parts: list[Tensor]) -> None:
    bad = [bool(i) for part in parts for i in (~part.isfinite()).flatten(1).any(1)]
    if any(bad):
        raise ValueError(
            f"{sum(bad)} of {len(bad)} series have NaN or infinite values, the first at index {bad.index(True)}; fill "
            "them in or drop these series (series of different lengths go in as a list, not padded)"
        )


def _normalised(x: Tensor) -> Tensor:
    axes = tuple(range(2, x.ndim))
    deviation = x.std(axes, correction=0, keepdim=True)
    flat = (deviation <= 2 * torch.finfo(x.dtype).eps * x.abs().amax(axes, keepdim=True)).flatten(1)
    if flat.all(1).any():
        where = int(flat.all(1).nonzero()[0])
        raise ValueError(f"series {where} (counted from 0) is constant: normalise=True divides by its deviation")
    # a constant channel of a series that has others becomes zero
    return (x - x.mean(axes, keepdim=True)) / torch.where(flat.view(deviation.shape), 1.0, deviation)
