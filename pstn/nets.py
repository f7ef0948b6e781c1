"""The papers' localizers and classifiers, by shape and parameter budget."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn


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
    kernel: int = 5,
    hidden: int = 50,
    dropout: float = 0.5,
) -> nn.Sequential:
    """A small convolutional classifier; each child is one layer, so that placements can count them.

    Each layer is a convolution without padding, max-pooling by two and ReLU; then one hidden layer with dropout. The
    default on 28×28 grey images is the P-STN papers' classifier behind the transformer, with 21,840 parameters;
    ``channels=(12, 24), hidden=52`` is their plain CNN of 28,086.

    Arguments:
        shape: One input's shape, (C, L), (C, H, W) or (C, D, H, W).
        classes: How many classes.
        channels: Filters of each convolution.
        kernel: Their size.
        hidden: Units of the hidden layer.
        dropout: Its dropout.

    References:
        Schwöbel et al., Probabilistic Spatial Transformer Networks, UAI 2022

    Example:
        >>> sum(p.numel() for p in classifier((1, 28, 28), 10).parameters())
        21840
    """
    layers = _convolutions(shape, channels, kernel)
    width = _flat(layers, shape)
    head = nn.Sequential(nn.Flatten(), nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(*layers, head, nn.Linear(hidden, classes))


def localizer(
    shape: Sequence[int], *, channels: Sequence[int] = (8, 14), kernel: int = 5, hidden: int | None = None
) -> Localizer:
    """A small convolutional localizer, without its head: what a posterior's head reads.

    The default on 28×28 grey images is the P-STN's; with two linear heads for four parameters it has 4,822 parameters.

    Arguments:
        shape: What it reads: one input's shape, or one feature map's.
        channels: Filters of each convolution.
        kernel: Their size.
        hidden: Units of a hidden layer behind the convolutions, or None.

    Example:
        >>> localizer((1, 28, 28)).out_features
        224
    """
    layers = _convolutions(shape, channels, kernel)
    width = _flat(layers, shape)
    layers.append(nn.Flatten())
    if hidden is not None:
        layers.append(nn.Sequential(nn.Linear(width, hidden), nn.ReLU()))
        width = hidden
    return Localizer(*layers, out_features=width)


def _convolutions(shape: Sequence[int], channels: Sequence[int], kernel: int) -> list[nn.Module]:
    ndim = len(shape) - 1
    if ndim not in (1, 2, 3):
        raise ValueError(f"shape is {tuple(shape)}; expected (C, L), (C, H, W) or (C, D, H, W)")
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[ndim]
    pool = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}[ndim]
    widths = [shape[0], *channels]
    return [nn.Sequential(convolution(a, b, kernel), pool(2), nn.ReLU()) for a, b in itertools.pairwise(widths)]


def _flat(layers: list[nn.Module], shape: Sequence[int]) -> int:
    """How many numbers come out of the layers for one input."""
    x = torch.zeros(1, *shape)
    try:
        with torch.no_grad():
            for layer in layers:
                x = layer(x)
    except RuntimeError as error:
        raise ValueError(f"inputs of shape {tuple(shape)} are too small for {len(layers)} layers: {error}") from error
    return x.numel()
