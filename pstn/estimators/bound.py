"""What the estimators minimise: the bound of :class:`pstn.posterior.Learned`, each example with its weight."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from pstn.objectives import log_likelihood
from pstn.stn import Output
from pstn.train import Train
from pstn.train.step import known


@dataclass(frozen=True)
class Bound:
    r"""The negative bound :math:`-w_i \log p(y_i|x_i, \theta) + KL`, as a loss of an output and the rows i in it.

    Labels are rows, not classes: so a loss that is given labels alone can look up the weights too.

    Arguments:
        y: The labels of all examples, (N,).
        weight: Their weights, (N,), of mean 1.
        config: The settings, with the weight of the divergence for a data set.
    """

    y: Integer[Tensor, " n"]
    weight: Float[Tensor, " n"]
    config: Train

    def __call__(self, out: Output, rows: Integer[Tensor, " b"]) -> Float[Tensor, ""]:
        """The mean over the batch."""
        y = self.y[rows]
        likelihood = self.weight[rows] * log_likelihood(out.logits, y).mean(0)
        if not out.stages:
            return -likelihood.mean()
        dim = out.stages[0].posterior.event_shape[0]
        share = self.config.kl_weight / math.sqrt(len(self.y)) * known(out, y) / dim
        return (share * out.kl - likelihood).mean()


def merged(
    x: Float[Tensor, "n ..."], y: np.ndarray, weight: np.ndarray
) -> tuple[Integer[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The rows to learn from in an order of their own, and their weights, of mean 1.

    An example given twice is one of twice the weight, one of no weight is not there, and the order they come in is
    forgotten: what is learned depends on the examples alone.

    Arguments:
        x: The examples, (n, ...).
        y: Their labels as numbers, (n,).
        weight: Their weights, (n,), none negative.

    Returns:
        m rows and m weights.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [1.0], [3.0]])
        >>> rows, weight = merged(x, np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 1.0, 0.0]))
        >>> sorted(rows.tolist()), sorted(weight.round(3).tolist())
        ([0, 1], [0.667, 1.333])
    """
    found: dict[bytes, tuple[int, float]] = {}
    for row, (label, w) in enumerate(zip(y.tolist(), weight.tolist(), strict=True)):
        if w > 0:
            digest = hashlib.blake2b(x[row].contiguous().numpy().tobytes(), digest_size=16)
            digest.update(repr(label).encode())
            first, total = found.get(digest.digest(), (row, 0.0))
            found[digest.digest()] = (first, total + w)
    ordered = [found[key] for key in sorted(found)]
    rows = np.array([row for row, _ in ordered], dtype=np.int64)
    weights = np.array([w for _, w in ordered])
    return rows, weights / weights.mean()


def held_out(y: Integer[np.ndarray, " n"], fraction: float, seed: int) -> np.ndarray:
    """Which examples are set aside to stop by: a share of each class, at least one, and never the only one.

    Example:
        >>> int(held_out(np.array([0, 0, 0, 0, 1, 1]), 0.25, seed=0).sum())
        2
    """
    if not 0 < fraction < 1:
        raise ValueError(f"validation_fraction is {fraction}; expected a share between 0 and 1, such as 0.2")
    chosen = np.zeros(len(y), dtype=bool)
    generator = torch.Generator().manual_seed(seed)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        chosen[rows[torch.randperm(len(rows), generator=generator)[:count].numpy()]] = True
    return chosen
