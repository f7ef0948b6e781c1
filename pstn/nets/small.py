"""Small convolutional localizers and classifiers without padding, as the papers have them, by shape and budget."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Localizer(nn.Sequential):
    """A ``nn.Sequential`` that knows how many features it returns."""

    def __init__(self, *layers: nn.Module, out_features: int) -> None:
        super().__init__(*layers)
        self.out_features = out_features


def classifier(
    shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = (10, 20),
    kernel: int | Sequence[int] = 5,
    hidden: int = 50,
    dropout: float = 0.5,
    channel_dropout: float = 0.0,
) -> nn.Sequential:
    """A small convolutional classifier; each child is one layer, so that placements can count them.

    Each layer is a convolution without padding, max-pooling by two and ReLU; then one hidden layer with dropout. The
    default on 28×28 grey images is the P-STN papers' classifier behind the transformer, with 21,840 parameters;
    ``channels=(12, 24), hidden=52`` is their plain CNN of 28,086; ``channels=(10, 20, 40), hidden=200,
    channel_dropout=0.5`` on 64×64 images is that of larger ones, 154,422 for three colours and two classes.

    Arguments:
        shape: One input's shape, (C, L), (C, H, W) or (C, D, H, W).
        classes: How many classes.
        channels: Filters of each convolution.
        kernel: Their size, or one size each.
        hidden: Units of the hidden layer.
        dropout: Its dropout.
        channel_dropout: The dropout of whole channels behind every convolution but the first.

    References:
        Schwöbel et al., Probabilistic Spatial Transformer Networks, UAI 2022

    Example:
        >>> sum(p.numel() for p in classifier((1, 28, 28), 10).parameters())
        21840
    """
    layers = _convolutions(shape, channels, kernel, channel_dropout)
    width = _flat(layers, shape)
    head = nn.Sequential(nn.Flatten(), nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(*layers, head, nn.Linear(hidden, classes))


def normed_classifier(
    shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = (12, 24, 36),
    hidden: int = 50,
    dropout: float = 0.5,
) -> nn.Sequential:
    """A small classifier of images with padding and batch normalisation: what :mod:`pstn.recipe` trains.

    Convolutions, of 5×5 pixels and then 3×3, each followed by max-pooling by two; one hidden layer with dropout. The
    default on 28×28 grey images has 27,572 parameters, as many as the papers' classifier may have.

    Arguments:
        shape: One input's shape, (C, H, W).
        classes: How many classes.
        channels: Filters of each convolution.
        hidden: Units of the hidden layer.
        dropout: Its dropout.

    Example:
        >>> sum(p.numel() for p in normed_classifier((1, 28, 28), 10).parameters())
        27572
    """
    before, *size = shape
    layers: list[nn.Module] = []
    for n, width in enumerate(channels):
        kernel = 3 if n else 5
        convolution = nn.Conv2d(before, width, kernel, padding=kernel // 2, bias=False)
        layers.append(nn.Sequential(convolution, nn.BatchNorm2d(width), nn.MaxPool2d(2), nn.ReLU()))
        before, size = width, [n // 2 for n in size]
    if min(size) < 1:
        raise ValueError(f"inputs of shape {tuple(shape)} are too small for {len(channels)} layers that halve them")
    last = [nn.Flatten(), nn.Linear(before * math.prod(size), hidden), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, *last, nn.Linear(hidden, classes))


def features(
    shape: Sequence[int],
    *,
    channels: Sequence[int] = (10, 20),
    kernel: int | Sequence[int] = 5,
    channel_dropout: float = 0.0,
) -> Localizer:
    """The convolutions of :func:`classifier` alone, flattened: a branch that one of several looks goes through.

    Arguments:
        shape: One input's shape.
        channels: Filters of each convolution.
        kernel: Their size, or one size each.
        channel_dropout: The dropout of whole channels behind every convolution but the first.

    Example:
        >>> features((1, 64, 64), channels=(10, 20, 40)).out_features
        640
    """
    layers = _convolutions(shape, channels, kernel, channel_dropout)
    return Localizer(*layers, nn.Flatten(), out_features=_flat(layers, shape))


def localizer(
    shape: Sequence[int],
    *,
    channels: Sequence[int] = (8, 14),
    kernel: int | Sequence[int] = 5,
    hidden: int | None = None,
) -> Localizer:
    """A small convolutional localizer, without its head: what a posterior's head reads.

    The default on 28×28 grey images is the P-STN's; with two linear heads for four parameters it has 4,822 parameters.

    Arguments:
        shape: What it reads: one input's shape, or one feature map's.
        channels: Filters of each convolution.
        kernel: Their size, or one size each.
        hidden: Units of a hidden layer behind the convolutions, or None.

    Example:
        >>> localizer((1, 28, 28)).out_features
        224
    """
    found = features(shape, channels=channels, kernel=kernel)
    if hidden is None:
        return found
    last = nn.Sequential(nn.Linear(found.out_features, hidden), nn.ReLU())
    return Localizer(*found, last, out_features=hidden)


def _convolutions(
    shape: Sequence[int], channels: Sequence[int], kernel: int | Sequence[int], dropout: float = 0.0
) -> list[nn.Module]:
    ndim = len(shape) - 1
    if ndim not in (1, 2, 3):
        raise ValueError(f"shape is {tuple(shape)}; expected (C, L), (C, H, W) or (C, D, H, W)")
    kernels = [kernel] * len(channels) if isinstance(kernel, int) else list(kernel)
    if len(kernels) != len(channels):
        raise ValueError(f"channels are {tuple(channels)} and kernels {tuple(kernels)}; expected as many of each")
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[ndim]
    drop = {1: nn.Dropout1d, 2: nn.Dropout2d, 3: nn.Dropout3d}[ndim]
    pool = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}[ndim]
    layers: list[nn.Module] = []
    for (a, b), size in zip(itertools.pairwise([shape[0], *channels]), kernels, strict=True):
        dropped = [drop(dropout)] if dropout and layers else []
        layers.append(nn.Sequential(convolution(a, b, size), *dropped, pool(2), nn.ReLU()))
    return layers


def _flat(layers: list[nn.Module], shape: Sequence[int]) -> int:
    """How many numbers come out of the layers for one input."""
    x = torch.zeros(1, *shape)
    try:
        with torch.no_grad():
            for layer in layers:
                x = layer.eval()(x)  # a dropout is not to draw: what is built next is the same with or without it
                layer.train()
    except RuntimeError as error:
        raise ValueError(f"inputs of shape {tuple(shape)} are too small for {len(layers)} layers: {error}") from error
    return x.numel()


class Blind(nn.Module):
    """One feature, zero, whatever is seen: for posteriors that are the same for every input."""

    out_features = 1

    def forward(self, x: Tensor) -> Tensor:
        """Zeros, (N, 1)."""
        return x.new_zeros(x.shape[0], 1)


def blind() -> Blind:
    """A localizer that does not look and has no parameters: what :class:`pstn.posterior.Learned` needs.

    Example:
        >>> blind()(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 1])
    """
    return Blind()
