"""Networks for inputs of any length: convolutions with batch normalisation, then the mean over space."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from pstn.nets.small import Localizer


class Mean(nn.Module):
    """The mean of each channel over space, (B, C, *space) to (B, C)."""

    def forward(self, x: Tensor) -> Tensor:
        """The means."""
        return x.flatten(2).mean(-1)


def pooled_classifier(
    shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = (196, 256, 256, 256, 64),
    kernels: Sequence[int] = (8, 8, 5, 5, 3),
    dropout: float = 0.25,
) -> nn.Sequential:
    """A classifier of inputs of any size; each child is one layer, so that placements can count them.

    Each layer is a convolution without padding, batch normalisation and ReLU; then the mean over space, dropout and one
    linear layer. The default is the P-STN papers' classifier of time series behind the transformer, 1,110,572
    parameters and 65 a class; ``channels=(164, 256, 256, 256, 256)`` is their plain CNN, 1,192,716 and 257 a class.

    Arguments:
        shape: One input's shape, (C, L), (C, H, W) or (C, D, H, W).
        classes: How many classes.
        channels: Filters of each convolution.
        kernels: Their sizes.
        dropout: The dropout of the means.

    References:
        Schwöbel et al., Probabilistic Spatial Transformer Networks, UAI 2022

    Example:
        >>> sum(p.numel() for p in pooled_classifier((1, 128), 4).parameters())
        1110832
    """
    layers = _normalised(shape, channels, kernels)
    return nn.Sequential(*layers, Mean(), nn.Dropout(dropout), nn.Linear(channels[-1], classes))


def pooled_localizer(
    shape: Sequence[int],
    *,
    channels: Sequence[int] = (64, 164, 64),
    kernels: Sequence[int] = (8, 5, 3),
    dropout: float = 0.5,
) -> Localizer:
    """A localizer of inputs of any size, without its head: layers as in :func:`pooled_classifier`.

    The default is the P-STN papers' for time series; with a linear head for nine parameters it has 85,941 parameters,
    with two 86,526.

    Arguments:
        shape: What it reads: one input's shape, or one feature map's.
        channels: Filters of each convolution.
        kernels: Their sizes.
        dropout: The dropout of the means.

    Example:
        >>> pooled_localizer((1, 128)).out_features
        64
    """
    layers = _normalised(shape, channels, kernels)
    return Localizer(*layers, Mean(), nn.Dropout(dropout), out_features=channels[-1])


def _normalised(shape: Sequence[int], channels: Sequence[int], kernels: Sequence[int]) -> list[nn.Module]:
    ndim = len(shape) - 1
    if ndim not in (1, 2, 3):
        raise ValueError(f"shape is {tuple(shape)}; expected (C, L), (C, H, W) or (C, D, H, W)")
    if len(channels) != len(kernels) or not channels:
        raise ValueError(f"channels are {tuple(channels)} and kernels {tuple(kernels)}; expected as many of each")
    shortest = sum(kernels) - len(kernels) + 1
    if min(shape[1:]) < shortest:
        raise ValueError(f"inputs of shape {tuple(shape)} are too small; {len(kernels)} layers need {shortest} points")
    convolution: type[nn.Module] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[ndim]
    norm: type[nn.Module] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[ndim]
    widths = itertools.pairwise([shape[0], *channels])
    return [
        nn.Sequential(convolution(a, b, kernel), norm(b), nn.ReLU())
        for (a, b), kernel in zip(widths, kernels, strict=True)
    ]
