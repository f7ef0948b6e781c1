"""Shifting and scaling the channels of a data set, and what that makes of its background."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Normalise:
    r"""The map :math:`x \mapsto (x - \text{mean})/\text{std}`, channel by channel.

    A warp fills what lies outside the image with the background's value *after* normalisation: that is :attr:`fill`.
    Zero would be grey, not black, and a transformer learns to zoom in order to see or avoid it.

    Arguments:
        mean: One number, or one a channel.
        std: One positive number, or one a channel.
        background: The background's value before normalisation.

    Example:
        >>> mnist = Normalise(mean=0.1307, std=0.3081)
        >>> round(mnist.fill, 4)
        -0.4242
        >>> mnist.inverse(mnist(torch.ones(2, 1, 3))).mean().item()
        1.0
    """

    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    background: float = 0.0

    def __post_init__(self) -> None:
        if not (_column(self.std) > 0).all() or not torch.cat([_column(self.mean), _column(self.std)]).isfinite().all():
            raise ValueError(f"mean is {self.mean} and std {self.std}; expected finite numbers, and std above 0")

    @classmethod
    def of(cls, x: Float[Tensor, "n c *space"], background: float = 0.0) -> Normalise:
        """The mean and the deviation of each channel of ``x``; a constant channel keeps its scale.

        Example:
            >>> Normalise.of(torch.tensor([[[0.0, 2.0], [5.0, 5.0]]]))
            Normalise(mean=(1.0, 5.0), std=(1.0, 1.0), background=0.0)
        """
        channels = x.transpose(0, 1).flatten(1)
        std, mean = torch.std_mean(channels, dim=1, correction=0)
        std = torch.where(std > 0, std, torch.ones_like(std))
        return cls(tuple(mean.tolist()), tuple(std.tolist()), background)

    def __call__(self, x: Float[Tensor, "n c *space"]) -> Float[Tensor, "n c *space"]:
        """The normalised array."""
        mean, std = self._like(x)
        return (x - mean) / std

    def inverse(self, x: Float[Tensor, "n c *space"]) -> Float[Tensor, "n c *space"]:
        """The array before normalisation."""
        mean, std = self._like(x)
        return x * std + mean

    @property
    def fill(self) -> float | Float[Tensor, " c"]:
        """The background after normalisation: one number where the channels agree, or one a channel."""
        values = (self.background - _column(self.mean)) / _column(self.std)
        return float(values[0]) if bool((values == values[0]).all()) else values.float()

    def _like(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not x.is_floating_point():  # mean and deviation would be rounded to whole numbers, too
            raise TypeError(f"x is {x.dtype}; expected floating point: convert it first, e.g. x.float() / 255")
        mean, std = (_column(v).to(x).reshape(-1, *[1] * (x.ndim - 2)) for v in (self.mean, self.std))
        if len(mean) not in (1, x.shape[1]) or len(std) not in (1, x.shape[1]):
            raise ValueError(f"mean has {len(mean)} numbers and std {len(std)}; x has {x.shape[1]} channels")
        return mean, std


def _column(value: float | tuple[float, ...]) -> Tensor:
    return torch.tensor(value, dtype=torch.float64).reshape(-1)
