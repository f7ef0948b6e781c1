"""Where a network looks, what it warps and what it shares: the architectures of the papers as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """Where the transformers of an :class:`~pstn.STN` stand.

    Depth X is the place behind the first X children of the network's body, a ``nn.Sequential``. The usual ones have
    names: :data:`CNN`, :func:`C`, :func:`DL`, :func:`SL`.

    References:
        Finnveden, Jansson, Lindeberg, Understanding when spatial transformer networks do not support invariance, and
        what to do about it, ICPR 2020
    """

    depths: tuple[int, ...] = (0,)
    """Where the localizers read; none for a plain network. Several depths look one after the other."""
    warps: Literal["features", "input"] = "features"
    """What is warped: the features at that depth, or the original input, with the parameters composed."""
    shared: bool = False
    """Whether a localizer reads the body's own first layers (and trains them) or copies of its own."""
    iterations: int = 1
    """How often each localizer looks in training."""
    test_iterations: int | None = None
    """How often at test; as in training by default."""
    parallel: int = 1
    """How many transformers look at the same input side by side."""
    merge: Literal["channels", "branches"] = "channels"
    """What happens to parallel looks: stacked as channels, or each through a branch of its own, features joined."""
    tile: float | None = None
    """The size of the starting crops of parallel looks, spread evenly over the input; None: all start at the whole."""
    starts: tuple[tuple[float, ...], ...] = ()
    """Parameters to start looking from, such as :func:`turns`. One localizer looks from each of them, corrects it and
    judges it; the answers are mixed as probable as it judges them. None: one look, from the identity."""

    def __post_init__(self) -> None:
        if any(d < 0 for d in self.depths) or list(self.depths) != sorted(set(self.depths)):
            raise ValueError(f"depths are {self.depths}; expected increasing whole numbers from 0")
        if self.iterations < 1 or (self.test_iterations is not None and self.test_iterations < 1):
            raise ValueError("iterations and test_iterations count looks: at least 1")
        if self.warps not in ("features", "input"):
            raise ValueError(f"warps is {self.warps!r}; expected 'features' or 'input'")
        if self.merge not in ("channels", "branches"):
            raise ValueError(f"merge is {self.merge!r}; expected 'channels' or 'branches'")
        if self.shared and self.warps != "input":
            raise ValueError("shared=True reads the body's layers to warp the input: it needs warps='input'")
        if self.parallel < 1:
            raise ValueError(f"parallel is {self.parallel}; at least one transformer")
        if self.parallel > 1 and (len(self.depths) != 1 or self.looks(True) + self.looks(False) > 2):
            raise ValueError("parallel transformers look once, from one depth")
        if self.parallel > 1 and self.warps == "features" and self.depths != (0,):
            raise ValueError("parallel transformers warp the input: use depth 0, or warps='input'")
        if self.tile is not None and not 0 < self.tile <= 1:
            raise ValueError(f"tile is {self.tile}; expected the size of a crop, between 0 and 1")
        if self.starts and (self.depths != (0,) or self.shared or self.parallel > 1 or self.looks(True) > 1):
            raise ValueError("several starts are for one transformer in front of the body that looks once from each")
        if self.starts and self.looks(False) > 1:
            raise ValueError("test_iterations is for looks one after the other; from several starts there is one each")
        if len({len(start) for start in self.starts}) > 1:
            raise ValueError(f"starts are {self.starts}; expected as many parameters for each")

    @property
    def composes(self) -> bool:
        """Whether parameters of several looks are composed, which the family must be able to do."""
        several = max(self.looks(True), self.looks(False)) > 1 or (self.warps == "input" and len(self.depths) > 1)
        return several or bool(self.starts)

    def looks(self, training: bool) -> int:
        """How often each localizer looks."""
        return self.iterations if training or self.test_iterations is None else self.test_iterations

    def windows(self, ndim: int) -> Tensor | None:
        """The starting crops of the parallel looks, (parallel, 1 + ndim): scale and shift of each; None without tiles.

        Example:
            >>> Placement(parallel=2, tile=0.5).windows(2)
            tensor([[ 0.5000, -0.5000,  0.0000],
                    [ 0.5000,  0.5000,  0.0000]])
        """
        if self.tile is None:
            return None
        columns = math.ceil(self.parallel ** (1 / min(ndim, 2)))
        rows = math.ceil(self.parallel / columns)
        windows = torch.zeros(self.parallel, 1 + ndim)
        windows[:, 0] = self.tile
        for n in range(self.parallel):
            for axis, (place, count) in enumerate([(n % columns, columns), (n // columns, rows)][:ndim]):
                if count > 1:
                    windows[n, 1 + axis] = (1 - self.tile) * (2 * place / (count - 1) - 1)
        return windows


#: A plain network: no transformer.
CNN = Placement(depths=())


def C(*depths: int, **options: object) -> Placement:
    """STN-C: localizers at these depths, each warping the features it reads. ``C(0)`` is the classical STN.

    Example:
        >>> C(0) == Placement()
        True
    """
    return Placement(depths=depths or (0,), warps="features", **options)  # type: ignore[arg-type]


def DL(*depths: int, **options: object) -> Placement:
    """STN-DL: the input is warped; each localizer has its own copy of the body's first layers in front.

    Example:
        >>> DL(2).shared
        False
    """
    return Placement(depths=depths, warps="input", **options)  # type: ignore[arg-type]


def SL(*depths: int, **options: object) -> Placement:
    """STN-SL: the input is warped; localizers read the body's own first layers, which they help to train.

    Example:
        >>> SL(0, 1, 2, 3).composes
        True
    """
    return Placement(depths=depths, warps="input", shared=True, **options)  # type: ignore[arg-type]


def turns(count: int) -> tuple[tuple[float, ...], ...]:
    r"""Starts for :class:`~pstn.families.Rotation` in 2-D: angles :math:`2\pi k/K` in (-π, π], the identity first.

    A picture turned by any angle is at most :math:`\pi/K` from one of them, and those half a turn apart are both
    there: what a single look, which moves its angle by small steps, does not get from one to the other.

    Example:
        >>> C(0, starts=turns(4)).starts
        ((0.0,), (1.5707963267948966,), (3.141592653589793,), (-1.5707963267948966,))
    """
    if count < 1:
        raise ValueError(f"{count} starts; expected at least one")
    return tuple((2 * math.pi * (k if 2 * k <= count else k - count) / count,) for k in range(count))
