"""Settings of an alignment for classification, chosen on the training data alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from pstn.align.arrays import Arrays, groups, read
from pstn.align.joint import Rule, align
from pstn.data.base import shuffled_by_class
from pstn.families.base import Family


@dataclass(frozen=True)
class Choice:
    """What :func:`choose` found."""

    best: dict[str, Any]
    """Arguments for :func:`pstn.align.align`: weight, length_scale and rule."""
    accuracy: float
    """Their accuracy in cross-validation."""
    table: list[dict[str, Any]]
    """All that was tried, with its cross-entropy and accuracy, the best first."""


def choose(
    series: Arrays,
    y: Sequence[Hashable] | Tensor | np.ndarray,
    family: Family | None = None,
    *,
    weights: Sequence[float] = (0.03, 0.3, 3.0, 30.0),
    length_scales: Sequence[float] = (0.25, 0.5),
    folds: int = 3,
    seed: int = 0,
    device: torch.device | str | None = None,
    **options: Any,
) -> Choice:
    """Weight, length scale and rule for nearest-mean classification, by cross-validation on the series at hand.

    What is minimised is the cross-entropy of held-out labels under softmax(-distance / temperature), at the best
    temperature: of a few dozen series the accuracy alone says too little.

    Arguments:
        series: The training series, as for :func:`pstn.align.align`.
        y: Their labels.
        family: The family of warps.
        weights: Weights of the prior to try.
        length_scales: Length scales to try.
        folds: How many parts the training data is cut into; each is predicted from the others.
        seed: How it is cut.
        device: Where to compute.
        options: More arguments of :func:`pstn.align.align`, the same for all.

    Returns:
        The arguments chosen, and all that was tried.

    Example:
        >>> from pstn.data import cbf
        >>> data = cbf(12, seed=1)
        >>> found = choose(data.x, data.y, weights=(0.3,), length_scales=(0.5,), folds=2, passes=(0.06,), rounds=1)
        >>> sorted(found.best)
        ['length_scale', 'rule', 'weight']
    """
    normalise = options.pop("normalise", False)
    length = options.pop("length", None)
    x, _ = read(series, None if length is None else (length,), normalise, device)
    labels, classes = groups(y, len(x))
    fewest = int(torch.bincount(labels).min())
    folds = min(folds, fewest)
    if len(classes) < 2 or folds < 2:
        raise ValueError(
            f"{len(classes)} classes, the smallest of {fewest} series; cross-validation needs two classes of two each"
        )
    order, rank = shuffled_by_class(labels, torch.Generator().manual_seed(seed))
    fold = torch.empty_like(rank)
    fold[order] = rank % folds

    table: list[dict[str, Any]] = []
    rules: tuple[Rule, ...] = get_args(Rule)
    for weight, length_scale in product(weights, length_scales):
        settings = {"weight": weight, "length_scale": length_scale, "progress": False, **options}
        distances = {rule: torch.empty(len(x), len(classes), dtype=torch.float64) for rule in rules}
        for k in range(folds):
            inside, outside = (fold != k).to(x.device), (fold == k).to(x.device)
            found = align(x[inside], family, y=labels[fold != k], **settings)
            for rule, distance in found.match(x[outside]).distances.items():
                distances[rule][fold == k] = distance.to(distances[rule])
        for rule, distance in distances.items():
            scores = {"loss": log_loss(distance, labels), "accuracy": accuracy(distance, labels)}
            table.append({"weight": weight, "length_scale": length_scale, "rule": rule, **scores})
    table.sort(key=lambda row: row["loss"])
    best = {name: table[0][name] for name in ("weight", "length_scale", "rule")}
    return Choice(best, table[0]["accuracy"], table)


def accuracy(distances: Float[Tensor, "n k"], y: Int64[Tensor, " n"]) -> float:
    """How often the nearest class is the right one."""
    return float((distances.argmin(1) == y).double().mean())


def log_loss(distances: Float[Tensor, "n k"], y: Int64[Tensor, " n"]) -> float:
    """The mean of -log p(y), where p is softmax(-distances / temperature), at the temperature where it is least.

    Example:
        >>> log_loss(torch.tensor([[0.0, 1.0], [3.0, 2.0], [0.0, 0.1]]), torch.tensor([0, 1, 1]))
        0.3143
    """
    unit = float(distances.std()) or 1.0
    temperatures = unit * torch.logspace(-3, 2, 101, dtype=torch.float64, device=distances.device)
    return min(float(F.cross_entropy(-distances / t, y)) for t in temperatures)
