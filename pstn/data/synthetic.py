"""Classic artificial time series in which the class is a shape and the nuisance is when and how long."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.data.base import Data


def cbf(n: int, length: int = 128, seed: int = 0) -> Data:
    r"""Cylinder, bell, funnel: :math:`(6 + \eta)\, s(t)\, 1_{[a, b]}(t) + \epsilon(t)` with s flat, rising or falling.

    With :math:`\eta, \epsilon(t) \sim N(0, 1)`, a uniform on [L/8, L/4] and b - a uniform on [L/4, 3L/4]; each series
    is then brought to mean 0 and variance 1, as the UCR archive's are.

    Arguments:
        n: How many series, the classes equally often (as nearly as n allows) and shuffled.
        length: Their length L, at least 16.
        seed: Which draw.

    Returns:
        A data set (n, 1, L).

    References:
        N. Saito, Local feature extraction and its applications using a library of bases, PhD thesis, Yale, 1994.

    Example:
        >>> cbf(30)
        Data('CBF (generated)', 30 examples of (1, 128), 3 classes)
    """
    generator = _generator(n, length, seed)
    y = _labels(n, 3, generator)
    start = _integers(torch.full((n,), length // 8), torch.full((n,), length // 4), generator)
    width = _integers(torch.full((n,), length // 4), torch.full((n,), 3 * length // 4), generator)
    time = torch.arange(1, length + 1)
    progress = (time - start[:, None]) / width[:, None]
    shapes = torch.stack([torch.ones_like(progress), progress, 1 - progress])
    inside = (progress >= 0) & (progress <= 1)
    height = 6 + torch.randn(n, 1, generator=generator)
    x = height * shapes[y, torch.arange(n)] * inside + torch.randn(n, length, generator=generator)
    return Data(_standardised(x)[:, None], y, ("cylinder", "bell", "funnel"), "CBF (generated)")


def two_patterns(n: int, length: int = 128, seed: int = 0) -> Data:
    r"""Two steps in noise: each up (-5, then 5) or down (5, then -5); the class says which came first and second.

    Each step lasts from L/8 to L/4 points, uniformly; the first starts uniformly where both still fit, the second
    uniformly after it. Elsewhere is noise :math:`N(0, 1)`. Each series is then brought to mean 0 and variance 1, as the
    UCR archive's are.

    Arguments:
        n: How many series, the classes equally often (as nearly as n allows) and shuffled.
        length: Their length L, at least 16.
        seed: Which draw.

    Returns:
        A data set (n, 1, L).

    References:
        P. Geurts, Contributions to decision tree induction, PhD thesis, Liège, 2002.

    Example:
        >>> two_patterns(8).classes
        ('down-down', 'up-down', 'down-up', 'up-up')
    """
    generator = _generator(n, length, seed)
    y = _labels(n, 4, generator)
    shortest, longest = torch.full((n,), length // 8), torch.full((n,), length // 4)
    first, second = (_integers(shortest, longest, generator) for _ in range(2))
    room = length - first - second
    start = _integers(torch.zeros_like(room), room, generator)
    gap = _integers(torch.zeros_like(room), room - start, generator)
    time = torch.arange(length)
    x = torch.randn(n, length, generator=generator)
    for begin, duration, up in ((start, first, y % 2), (start + first + gap, second, y // 2)):
        passed = time - begin[:, None]
        late = passed >= (duration[:, None] + 1) // 2
        sign = torch.where(late == up[:, None].bool(), 1.0, -1.0)
        x = torch.where((passed >= 0) & (passed < duration[:, None]), 5 * sign, x)
    classes = ("down-down", "up-down", "down-up", "up-up")
    return Data(_standardised(x)[:, None], y, classes, "TwoPatterns (generated)")


def _generator(n: int, length: int, seed: int) -> torch.Generator:
    if n < 1 or length < 16:
        raise ValueError(f"n is {n} and length {length}; expected at least 1 series of at least 16 points")
    return torch.Generator().manual_seed(seed)


def _labels(n: int, classes: int, generator: torch.Generator) -> Tensor:
    return (torch.arange(n) % classes)[torch.randperm(n, generator=generator)]


def _integers(low: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
    """Whole numbers, uniform from low to high inclusive, entry by entry."""
    uniform = torch.rand(low.shape, generator=generator, dtype=torch.float64)
    return low + (uniform * (high - low + 1)).long()


def _standardised(x: Float[Tensor, "n length"]) -> Float[Tensor, "n length"]:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
