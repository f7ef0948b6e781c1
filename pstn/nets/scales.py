"""A classifier of series that looks at several lengths of time at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Slopes(nn.Module):
    """The series and their first differences, (B, C, L) to (B, 2 C, L); a difference of a third counts as one."""

    def forward(self, x: Tensor) -> Tensor:
        """The channels, then their slopes, 0 at the first point."""
        return torch.cat([x, 3 * F.pad(x.diff(dim=-1), (1, 0))], dim=1)


class Scales(nn.Module):
    """Convolutions with kernels of several lengths side by side, (B, C, L) to (B, widths, L).

    Arguments:
        before: How many channels come in.
        width: How many go out, for each kernel.
        kernels: The lengths, odd.
    """

    def __init__(self, before: int, width: int, kernels: Sequence[int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv1d(before, width, k, padding=k // 2, bias=False) for k in kernels)

    def forward(self, x: Tensor) -> Tensor:
        """All of them."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Summary(nn.Module):
    """The mean and the maximum of each channel over space, (B, C, *space) to (B, 2 C)."""

    def forward(self, x: Tensor) -> Tensor:
        """Means, then maxima."""
        flat = x.flatten(2)
        return torch.cat([flat.mean(-1), flat.amax(-1)], dim=1)


def scales_classifier(shape: Sequence[int], classes: int, *, width: int = 1, dropout: float = 0.25) -> nn.Sequential:
    """A classifier of series of any length: values and slopes, kernels of 3 to 41 points, mean and maximum over time.

    Arguments:
        shape: One input's shape, (C, L).
        classes: How many classes.
        width: How many times as many filters in every layer.
        dropout: The dropout of the summary.

    Example:
        >>> sum(p.numel() for p in scales_classifier((1, 128), 10).parameters())
        46682
    """
    channels, length = shape

    def layer(convolution: nn.Module, filters: int, shrinks: bool = False) -> nn.Sequential:
        return nn.Sequential(convolution, nn.BatchNorm1d(filters), *[nn.MaxPool1d(2)] * shrinks, nn.ReLU())

    return nn.Sequential(
        Slopes(),
        layer(Scales(2 * channels, 12 * width, (3, 9, 21, 41)), 48 * width, length >= 16),
        layer(nn.Conv1d(48 * width, 24 * width, 1, bias=False), 24 * width),
        layer(Scales(24 * width, 24 * width, (3, 9, 21)), 72 * width, length >= 32),
        layer(nn.Conv1d(72 * width, 64 * width, 5, padding=2, bias=False), 64 * width),
        Summary(),
        nn.Dropout(dropout),
        nn.Linear(128 * width, classes),
    )
