"""How good probabilities are: accuracy, NLL, Brier score, calibration error; and how good poses are.

What judges probabilities takes them as (N, K) with labels (N,), or (N, heads, K) and (N, heads), and returns plain
numbers. What judges poses returns a number for each input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from pstn.families.affine import MatrixFamily
from pstn.grid import identity_grid


@dataclass(frozen=True)
class Reliability:
    """Predictions sorted into bins of equal width by their confidence, the probability of the class they name."""

    edges: Float[Tensor, " bins_plus_1"]
    """The bins' borders, 0 to 1. A bin has its lower border, the last one both."""
    confidence: Float[Tensor, " bins"]
    """The mean confidence in each bin; NaN in an empty one."""
    accuracy: Float[Tensor, " bins"]
    """The share of right predictions in each bin; NaN in an empty one."""
    count: Integer[Tensor, " bins"]
    """How many predictions fell into each bin."""

    @property
    def ece(self) -> float:
        """The expected calibration error: |accuracy - confidence|, averaged over the predictions."""
        gap = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return float((gap * self.count).sum() / self.count.sum())

    @property
    def chance(self) -> float:
        r"""The ECE that confidences would have if they were exactly right: what is left of it by chance.

        Of n predictions that are each right with probability p, about np are right, not always np: a bin's gap is
        :math:`E|X - np|/n` on average, with X binomial. An ECE that is no larger says that no miscalibration is seen.

        References:
            The mean absolute deviation of the binomial distribution is de Moivre's, 1730: with m the whole part of np,
            and one more, :math:`2 m \binom{n}{m} p^m (1 - p)^{n - m + 1}`.

        Example:
            >>> one = torch.tensor([0.5])
            >>> Reliability(torch.tensor([0.0, 1.0]), one, one, torch.tensor([2])).chance  # 0, 1 or 2 right of 2
            0.25
        """
        there = self.count > 0
        n = self.count[there].double()
        p = self.confidence[there].double().clamp(0, 1)
        m = (n * p).floor().clamp(max=n - 1) + 1
        choose = torch.lgamma(n + 1) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)
        gaps = 2 * m * (choose + torch.xlogy(m, p) + torch.xlogy(n - m + 1, 1 - p)).exp()
        return float(gaps.sum() / n.sum())


def accuracy(probs: Float[Tensor, " n *k"], y: Integer[Tensor, " n *heads"]) -> float:
    """The share of inputs whose most probable class is the right one.

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
        0.5
    """
    probs, y = _checked(probs, y)
    return float((probs.argmax(-1) == y).double().mean())


def nll(probs: Float[Tensor, " n *k"], y: Integer[Tensor, " n *heads"]) -> float:
    """The negative log-likelihood, -log p(y), averaged; in nats. A right class of probability zero makes it infinite.

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).

    Example:
        >>> nll(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 0]))  # (log 2 + log 4)/2
        1.0397
    """
    probs, y = _checked(probs, y)
    return float(F.nll_loss(probs.double().log(), y))


def brier(probs: Float[Tensor, " n *k"], y: Integer[Tensor, " n *heads"]) -> float:
    r"""The Brier score :math:`\sum_k (p_k - [y = k])^2`, averaged: 0 is perfect, 2 the worst.

    References:
        Verification of forecasts expressed in terms of probability (Brier, 1950).

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 0]))  # (0.5 + 2)/2
        1.25
    """
    probs, y = _checked(probs, y)
    return float((probs - F.one_hot(y, probs.shape[-1])).square().sum(-1).mean())


def ece(probs: Float[Tensor, " n *k"], y: Integer[Tensor, " n *heads"], bins: int = 15) -> float:
    """The expected calibration error: |accuracy - confidence| in bins of confidence, averaged over the predictions.

    References:
        On Calibration of Modern Neural Networks (Guo et al., 2017).

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).
        bins: How many bins of equal width. The figure depends on it: name it beside the figure.

    Example:
        >>> ece(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))  # sure to 90 %, right in half
        0.4
    """
    return reliability(probs, y, bins).ece


def reliability(probs: Float[Tensor, " n *k"], y: Integer[Tensor, " n *heads"], bins: int = 15) -> Reliability:
    """Confidence against accuracy, bin by bin: the table that a reliability diagram shows.

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).
        bins: How many bins of equal width.

    Example:
        >>> table = reliability(torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2]]), torch.tensor([0, 0, 0]), bins=4)
        >>> table.count, table.accuracy, table.confidence
        (tensor([0, 0, 1, 2]), tensor([nan, nan, 0., 1.]), tensor([   nan,    nan, 0.7000, 0.8500]))
    """
    probs, y = _checked(probs, y)
    if bins < 1:
        raise ValueError(f"bins is {bins}; expected at least 1")
    confidence, named = probs.max(-1)
    edges = torch.linspace(0, 1, bins + 1, dtype=probs.dtype)
    where = (torch.bucketize(confidence, edges, right=True) - 1).clamp(max=bins - 1)
    count = torch.bincount(where, minlength=bins)
    sure, right = ((torch.bincount(where, each.double(), bins) / count).to(probs) for each in (confidence, named == y))
    return Reliability(edges, sure, right, count)


def summary(probs: Float[Tensor, " n *k"], y: Integer[Tensor, " n *heads"], bins: int = 15) -> dict[str, float]:
    """Accuracy, NLL, Brier score and ECE in one dictionary.

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).
        bins: How many bins the ECE has.

    Example:
        >>> summary(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1]))
        {'accuracy': 1.0, 'nll': 0.4904, 'brier': 0.3125, 'ece': 0.375}
    """
    return {
        "accuracy": accuracy(probs, y),
        "nll": nll(probs, y),
        "brier": brier(probs, y),
        "ece": ece(probs, y, bins),
    }


def angle_distance(a: Float[Tensor, "*b"], b: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    r"""How far two angles are apart on the circle, :math:`|a - b|` after whole turns, from 0 to π.

    Arguments:
        a: Angles in radians, not necessarily within one turn.
        b: Others.

    Example:
        >>> angle_distance(torch.tensor([3.0, 0.0]), torch.tensor([-3.0, 6.2832]))
        tensor([0.2832, 0.0000])
    """
    return (torch.remainder(a - b + math.pi, 2 * math.pi) - math.pi).abs()


def overlap(
    family: MatrixFamily, a: Float[Tensor, "*b d"], b: Float[Tensor, "*b d"], points: int = 32
) -> Float[Tensor, "*b"]:
    """The intersection over union of the windows that two transformations look at, turned and sheared ones included.

    The smaller window is sampled at the centres of a lattice of cells, so the figure is right to about 1/points.

    Arguments:
        family: The family of affine maps.
        a: Parameters, (*b, d).
        b: Others.
        points: Cells along each axis.

    Example:
        >>> from pstn.families import Translation
        >>> overlap(Translation(), torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))  # half of one is in the other
        tensor([0.3333])
    """
    k = family.ndim
    size_a, size_b = (torch.linalg.det(family.matrix(theta)[..., :k, :k]).abs() for theta in (a, b))
    swap = (size_a > size_b)[..., None]
    small, large = torch.where(swap, b, a), torch.where(swap, a, b)
    grid = identity_grid((points,) * k, dtype=small.dtype, device=small.device).reshape(-1, k)
    inside = (family.invert(large, family(small, grid)).abs() <= 1).all(-1).to(small.dtype).mean(-1)
    common = inside * torch.minimum(size_a, size_b)
    return common / (size_a + size_b - common).clamp_min(torch.finfo(common.dtype).tiny)  # two points have nothing


def rank_correlation(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    """Spearman's rank correlation, from -1 to 1: whether one quantity rises with the other, in whatever way.

    References:
        The proof and measurement of association between two things (Spearman, 1904).

    Arguments:
        a: A number for each of N inputs.
        b: Another.

    Returns:
        The correlation of the ranks, equal values sharing theirs; NaN where a quantity does not vary, or holds a NaN.

    Example:
        >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0, 100.0]))
        1.0
    """
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"got {tuple(a.shape)} and {tuple(b.shape)} numbers; expected two lists of the same length")
    x, y = (rank - rank.mean() for rank in map(_ranks, (a, b)))
    norm = (x.square().sum() * y.square().sum()).sqrt()
    return float((x * y).sum() / norm) if norm > 0 else math.nan


def _ranks(values: Tensor) -> Tensor:
    """The place of each value among all; equal ones have their mean place."""
    _, which, count = values.detach().double().unique(return_inverse=True, return_counts=True)
    count = count.double()
    return (count.cumsum(0) - (count - 1) / 2)[which].masked_fill(values.isnan(), math.nan)


def _checked(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (M, K) and labels (M,), after a look at both."""
    if probs.ndim < 2 or y.shape != probs.shape[:-1]:
        raise ValueError(
            f"probabilities have shape {tuple(probs.shape)} and labels {tuple(y.shape)}; expected (N, K) and (N,)"
        )
    if probs.numel() == 0:
        raise ValueError("there are no predictions to measure")
    if not probs.is_floating_point():
        raise TypeError(f"probabilities are {probs.dtype}; expected floating point")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"labels are {y.dtype}; expected integers 0 ... K - 1, e.g. y.long()")
    probs, y = probs.detach().flatten(0, -2).cpu(), y.flatten().long().cpu()
    slack = max(1e-3, torch.finfo(probs.dtype).eps)  # probabilities rounded to bfloat16 sum to 1 no better
    probs = probs.to(torch.promote_types(probs.dtype, torch.float32))
    bad = (~probs.isfinite()).any(-1)
    if bad.any():
        raise ValueError(f"{int(bad.sum())} of {len(probs)} predictions have probabilities that are not finite")
    off = (probs < -1e-6).any(-1) | ((probs.sum(-1) - 1).abs() > slack)
    if off.any():
        raise ValueError(
            f"{int(off.sum())} of {len(probs)} predictions are not probabilities: they must be at least 0 and sum to 1 "
            "(logits need softmax, log-probabilities exp)"
        )
    if y.min() < 0 or y.max() >= probs.shape[-1]:
        last = probs.shape[-1] - 1
        raise ValueError(f"labels go from {int(y.min())} to {int(y.max())}; {last + 1} classes need 0 ... {last}")
    return probs.clamp_min(0), y
