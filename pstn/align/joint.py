"""Align series, or images, to the mean of their group."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int64
from rich.progress import Progress
from torch import Tensor

from pstn.align.arrays import Arrays, blur, groups, read, resample
from pstn.align.search import minimise
from pstn.families.base import Family
from pstn.families.compose import Compose
from pstn.families.cpab import CPAB
from pstn.families.cpab.prior import covariance
from pstn.grid import check_choice, identity_grid, sample
from pstn.train.display import Display
from pstn.warp import warp

#: How a new array is held against the means: as it is, without alignment; by what remains after alignment and what the
#: warp costs; by what remains alone.
Rule = Literal["unaligned", "cost", "residual"]

#: Points warped at once: more do not fit the cache, and the series do not depend on each other.
_POINTS = 2**17


@dataclass(frozen=True, eq=False)
class Matcher:
    r"""The cost of warping arrays onto targets, in units where the prior is a standard normal.

    Arguments:
        family: The family of warps.
        factor: Cholesky factor of the prior's covariance, (d, d): :math:`\theta = L z`.
        weight: The weight of the prior.
        scale: What squared differences are divided by.
        passes: Blurs, coarse to fine, as parts of each axis.
    """

    family: Family
    factor: Float[Tensor, "d d"]
    weight: float
    scale: float
    passes: tuple[float, ...]

    def look(
        self, z: Float[Tensor, "n d"], x: Float[Tensor, "n c *space"], size: Sequence[int]
    ) -> tuple[Float[Tensor, "n c *size"], Float[Tensor, " n *size"]]:
        r"""The arrays seen through their warps, and how much of the array each point stands for, 1 on average.

        That is :math:`|\det dT/dp|`: with it, sums over the aligned axis are sums over the array's own, and nothing is
        gained by squeezing to a point what does not fit.
        """
        grid = identity_grid(size, dtype=z.dtype, device=z.device)
        points = self.family(z @ self.factor.T, grid.flatten(0, -2)).unflatten(1, tuple(size))
        rows = [
            torch.gradient(points, dim=axis + 1)[0] if n > 1 else torch.ones_like(points) for axis, n in enumerate(size)
        ]
        share = torch.linalg.det(torch.stack(rows[::-1], dim=-2)).abs() if len(size) > 1 else rows[0][..., 0].abs()
        share = share / share.mean(tuple(range(1, share.ndim)), keepdim=True).clamp_min(1e-12)
        return sample(x, points, padding="border"), share

    def terms(self, z: Tensor, x: Tensor, target: Tensor) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """What remains of each array's distance to its target, and what its warp costs."""
        seen, share = self.look(z, x, target.shape[2:])
        residual = ((seen - target).square().mean(1) * share).flatten(1).mean(1) / self.scale
        return residual, self.weight * 0.5 * z.square().sum(1)

    def descend(self, z: Tensor, x: Tensor, target: Tensor, evaluations: int) -> Tensor:
        """Better warps onto the targets, from those at hand."""
        at_once = max(1, _POINTS // math.prod(target.shape[2:]))
        found = []
        for some, xs, ts in zip(z.split(at_once), x.split(at_once), target.split(at_once), strict=True):

            def cost(z: Tensor, xs: Tensor = xs, ts: Tensor = ts) -> Tensor:
                residual, price = self.terms(z, xs, ts)
                return residual + price

            found.append(minimise(cost, some, evaluations)[0])
        return torch.cat(found)

    def size(self, width: float, full: Sequence[int]) -> tuple[int, ...]:
        """How many points show all that is left under a blur: two to a standard deviation."""
        return tuple(min(n, math.ceil(2 / width)) if width > 0 else n for n in full)


@dataclass(frozen=True, eq=False)
class Match:
    """What :meth:`Alignment.match` found for m new arrays."""

    theta: Float[Tensor, "m d"]
    """The warp of each, onto the mean of its class."""
    aligned: Float[Tensor, "m c *space"]
    """The arrays through these warps."""
    labels: list[Any]
    """The class of each: the one given, or the nearest."""
    distances: dict[Rule, Float[Tensor, "m k"]]
    """By each rule the distance to each class's mean; infinite for classes not looked at."""


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """What :func:`align` found. Array i, seen through its warp, is ``aligned[i]``: aligned(p) = series(T(p))."""

    family: Family
    """The family of warps."""
    theta: Float[Tensor, "n d"]
    """The warp of each array; its inverse takes times of the array to times of the mean."""
    aligned: Float[Tensor, "n c *space"]
    """The arrays, all of one length, through their warps."""
    series: Float[Tensor, "n c *space"]
    """The arrays as they were compared: resampled to that length, normalised where asked."""
    means: Float[Tensor, "k c *space"]
    """The mean of each class, points weighted by how much of an array they stand for."""
    y: Int64[Tensor, " n"]
    """The class of each array, as an index into ``classes``."""
    classes: tuple[Any, ...]
    """The labels, sorted; (0,) where none were given."""
    history: list[dict[str, float]]
    """A record a round: blur, within-class variance (in units of the whole variance), price of the warps, cost."""
    lengths: tuple[int, ...]
    """How long each array was before it was resampled (the last axis)."""
    matcher: Matcher
    """How arrays are compared."""
    evaluations: int
    """Evaluations of the cost in each pass over a new array."""
    rule: Rule
    """How :meth:`predict` compares."""
    normalise: bool
    """Whether arrays are brought to mean 0 and variance 1 first."""

    def __repr__(self) -> str:
        before, after = self.variance
        shape = tuple(self.series.shape[1:])
        lengths = "" if len(set(self.lengths)) == 1 else f" from lengths of {min(self.lengths)} to {max(self.lengths)}"
        return (
            f"Alignment({len(self.theta)} of {shape}{lengths}, {len(self.classes)} classes, within-class variance "
            f"{before:.3g} -> {after:.3g} of the whole)"
        )

    @property
    def variance(self) -> tuple[float, float]:
        """The variance within classes, as a part of the whole: before and after."""
        parts = []
        for x in (self.series, self.aligned):
            means = torch.stack([x[self.y == k].mean(0) for k in range(len(self.classes))])
            parts.append(float((x - means[self.y]).square().mean()) / self.matcher.scale)
        return parts[0], parts[1]

    def warping(self, points: Float[Tensor, "p k"] | None = None, *, inverse: bool = False) -> Float[Tensor, "n p k"]:
        """The warping paths: where in each array the aligned axis reads, T(p); or with ``inverse`` the way back.

        Arguments:
            points: Points of the aligned axis (the array's own for ``inverse``), (p, k); the grid by default.
            inverse: Where a point of the array comes to lie once it is aligned.

        Returns:
            The points T(p) for each array, (n, p, k), in [-1, 1].
        """
        if points is None:
            points = identity_grid(self.series.shape[2:], dtype=self.theta.dtype, device=self.theta.device)
            points = points.flatten(0, -2)
        move = self.family.invert if inverse else self.family
        return move(self.theta, points)

    @torch.inference_mode(False)  # it takes gradients to find the warps
    def match(
        self, series: Arrays, y: Sequence[Hashable] | Tensor | np.ndarray | None = None, *, rule: Rule | None = None
    ) -> Match:
        """Align new arrays to the means: each to its class's where ``y`` says which, else to all, keeping the nearest.

        Arguments:
            series: The new arrays, as for :func:`align`.
            y: Their labels.
            rule: What is nearest: ``"unaligned"``, ``"cost"`` or ``"residual"``; the alignment's own rule by default.
        """
        rule = self.rule if rule is None else rule
        check_choice("rule", rule, get_args(Rule))
        x, _ = read(series, self.series.shape[2:], self.normalise, self.series.device)
        x = x.to(self.series.dtype)
        if x.shape[1:] != self.series.shape[1:]:
            raise ValueError(f"arrays of shape {tuple(x.shape[1:])}; the means are {tuple(self.means.shape[1:])}")
        n, k = len(x), len(self.classes)
        if y is None:
            which = torch.arange(k, device=x.device).expand(n, k)
        else:
            numbers, given = groups(y, n)
            if unknown := set(given) - set(self.classes):
                raise ValueError(f"labels {sorted(unknown)} are not among the classes {self.classes}")
            place = torch.tensor([self.classes.index(label) for label in given])
            which = place[numbers].to(x.device)[:, None]
        many = which.shape[1]
        xs, goals = x.repeat_interleave(many, 0), self.means[which.flatten()]
        z = torch.zeros(len(xs), self.family.dim, dtype=x.dtype, device=x.device)
        for width in self.matcher.passes:
            size = self.matcher.size(width, x.shape[2:])
            goal = resample(blur(goals, width), size)
            z = self.matcher.descend(z, blur(xs, width), goal, self.evaluations)
        with torch.no_grad():
            residual, price = self.matcher.terms(z, xs, goals)
            unaligned = (xs - goals).square().flatten(1).mean(1) / self.matcher.scale
            nowhere = torch.full((n, k), math.inf, dtype=x.dtype, device=x.device)
            found: dict[Rule, Tensor] = {"unaligned": unaligned, "cost": residual + price, "residual": residual}
            distances = {name: nowhere.scatter(1, which, d.view(n, many)) for name, d in found.items()}
            nearest = distances[rule].argmin(1)
            chosen = (which == nearest[:, None]).nonzero()[:, 1]
            theta = (z @ self.matcher.factor.T).view(n, many, -1)[torch.arange(n, device=x.device), chosen]
            aligned = warp(x, self.family, theta, padding="border")
            return Match(theta, aligned, [self.classes[i] for i in nearest.tolist()], distances)

    def transform(
        self, series: Arrays, y: Sequence[Hashable] | Tensor | np.ndarray | None = None
    ) -> Float[Tensor, "m c *space"]:
        """New arrays, aligned: to the mean of their class, or without ``y`` to the nearest."""
        return self.match(series, y).aligned

    def predict(self, series: Arrays, *, rule: Rule | None = None) -> list[Any]:
        """The class whose mean is nearest, after alignment to each unless the rule is ``"unaligned"``."""
        if (self.rule if rule is None else rule) != "unaligned":
            return self.match(series, rule=rule).labels
        x, _ = read(series, self.series.shape[2:], self.normalise, self.series.device)
        nearest = torch.cdist(x.to(self.means.dtype).flatten(1), self.means.flatten(1)).argmin(1)
        return [self.classes[i] for i in nearest.tolist()]


@torch.inference_mode(False)  # it takes gradients to find the warps
def align(
    series: Arrays,
    family: Family | None = None,
    *,
    y: Sequence[Hashable] | Tensor | np.ndarray | None = None,
    weight: float = 0.1,
    length_scale: float = 0.25,
    passes: Sequence[float] = (0.06, 0.03, 0.015, 0.0),
    rounds: int = 3,
    evaluations: int = 10,
    length: int | None = None,
    normalise: bool = False,
    rule: Rule = "cost",
    device: torch.device | str | None = None,
    progress: bool | Progress = True,
) -> Alignment:
    r"""Warp every array so that those of one class agree with their mean and the warps stay smooth.

    .. math:: \min_{\theta, \mu} \sum_i \frac{1}{V} \int \left(x_i(t) - \mu_{y_i}(T_{\theta_i}^{-1}(t))\right)^2 dt
        - w \log p(\theta_i)

    with V the variance of all arrays together and p the family's smoothness prior (of variance one: only its ratio to w
    matters). The difference is taken on each array's own axis, so that nothing is gained by squeezing away what does
    not fit. Means and warps are improved in turns, all arrays at once, each with its own step; among the solutions that
    differ by a warp common to a class, the one whose warps average to zero is taken. A first pass sees blurred arrays,
    where only the coarse shape counts, later ones see more and more. Nothing is random.

    Convention: ``aligned(p) = series(T(p))`` on [-1, 1]. Series of unequal lengths are each read on their own axis
    [-1, 1], that is, resampled to one length first; so are new ones.

    Arguments:
        series: Series (n, channels, time), or (n, time) for one channel, or a list of (channels, time_i) of different
            lengths; or images (n, channels, height, width).
        family: The family of warps; ``CPAB(16)`` for series and ``CPAB((3, 3))`` for images by default.
        y: Labels; each class is aligned to its own mean. One class by default. A class of one array is its own mean.
        weight: The weight w of the prior: larger for stiffer warps.
        length_scale: How far the smoothness prior correlates velocities, where the axis has length 2.
        passes: The blur of each pass, a standard deviation as a part of the axis.
        rounds: How often a pass renews the means.
        evaluations: Evaluations of the cost in each round.
        length: The length to resample series to; the longest by default.
        normalise: Whether to bring each channel of each array to mean 0 and variance 1 first.
        rule: How :meth:`Alignment.predict` compares; see :func:`pstn.align.choose`.
        device: Where to compute; where the arrays are by default.
        progress: Whether to show progress on a terminal, or a display to add it to.

    References:
        Shapira Weber et al., Diffeomorphic Temporal Alignment Nets, 2019
        Shapira Weber and Freifeld, Regularization-free Diffeomorphic Temporal Alignment Nets, 2023

    Example:
        >>> t = torch.linspace(-1, 1, 100)
        >>> shifts = torch.linspace(-0.2, 0.2, 8)[:, None]
        >>> found = align(torch.exp(-((t - shifts) / 0.2) ** 2))
        >>> before, after = found.variance
        >>> after < before / 100
        True
    """
    _check("weight", weight, least=0)
    _check("length_scale", length_scale, least=1e-3)
    _check("rounds", rounds, least=1)
    _check("evaluations", evaluations, least=2)
    check_choice("rule", rule, get_args(Rule))
    if not passes or min(passes) < 0:
        raise ValueError(f"passes is {tuple(passes)}; expected at least one blur, none negative (0 is none)")
    x, lengths = read(series, None if length is None else (length,), normalise, device)
    if len(x) < 2:
        raise ValueError("one series only; alignment needs at least two")
    size = x.shape[2:]
    if family is None:
        family = CPAB({1: (16,), 2: (3, 3), 3: (2, 2, 2)}[len(size)])
    if family.ndim != len(size):
        raise ValueError(f"{family.label} acts on {family.ndim}-D arrays; these are {len(size)}-D, {tuple(x.shape)}")
    labels, classes = groups(y, len(x))
    labels = labels.to(x.device)
    scale = float(x.var(dim=(0, *range(2, x.ndim)), correction=0).mean())
    if scale <= (2 * torch.finfo(x.dtype).eps * float(x.abs().max())) ** 2:  # no more than rounding
        raise ValueError("all series are the same constant: there is nothing to align")

    factor = torch.linalg.cholesky(_covariance(family, length_scale)).to(x)
    matcher = Matcher(family, factor, weight, scale, tuple(passes))
    member = torch.nn.functional.one_hot(labels, len(classes)).to(x.dtype)
    part = member / member.sum(0)

    def centred(z: Tensor) -> Tensor:
        return z - (part.T @ z)[labels]

    def means(seen: Tensor, share: Tensor) -> Tensor:
        total = torch.einsum("nk,n...->k...", member, seen * share[:, None])
        return total / torch.einsum("nk,n...->k...", member, share).clamp_min(1e-12)[:, None]

    def record(width: float, mean: Tensor, xs: Tensor) -> None:
        residual, price = (float(term.mean()) for term in matcher.terms(z, xs, mean[labels]))
        history.append({"blur": width, "variance": residual, "price": price, "cost": residual + price})

    history: list[dict[str, float]] = []
    z = torch.zeros(len(x), family.dim, dtype=x.dtype, device=x.device)
    display = Display(progress, len(passes) * rounds, label="align")
    try:
        with torch.no_grad():
            for i, width in enumerate(passes):
                xs, coarse = blur(x, width), matcher.size(width, size)
                for j in range(rounds):
                    mean = means(*matcher.look(z, xs, coarse))
                    record(width, mean, xs)
                    display.show(i * rounds + j, f"blur {width:g}  cost {history[-1]['cost']:.4g}")
                    z = centred(matcher.descend(z, xs, mean[labels], evaluations))
            mean = means(*matcher.look(z, x, size))
            record(0.0, mean, x)
    finally:
        display.close()
    theta = z @ factor.T
    return Alignment(
        family=family,
        theta=theta,
        aligned=warp(x, family, theta, padding="border"),
        series=x,
        means=mean,
        y=labels,
        classes=classes,
        history=history,
        lengths=lengths,
        matcher=matcher,
        evaluations=rounds * evaluations,
        rule=rule,
        normalise=normalise,
    )


def _covariance(family: Family, length_scale: float) -> Float[Tensor, "d d"]:
    """The prior's covariance: of a CPAB field its smoothness prior, of other parameters the identity."""
    if isinstance(family, CPAB):
        return covariance(family.mesh, family.basis, length_scale, 1.0, "nodes", nugget=1e-3)
    if isinstance(family, Compose):
        parts: list[Family] = list(family.families)  # type: ignore[arg-type]
        return torch.block_diag(*(_covariance(part, length_scale) for part in parts))
    return torch.eye(family.dim, dtype=torch.float64)


def _check(name: str, value: float, *, least: float) -> None:
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name} is {value}; expected a finite number, at least {least:g}")
