"""A few warps for all inputs, and what a network says of each: how the estimators find a pose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from pstn.distributions import draw
from pstn.stn import STN
from pstn.warp import warp


class Looks:
    """The same warps of every input, of a network whose posterior is the same for all.

    Arguments:
        model: The network.
        samples: How many warps.
    """

    def __init__(self, model: STN, samples: int) -> None:
        self.model, self.samples = model, samples

    def posterior(self, training: bool) -> Any:
        """The posterior of all inputs, as wide as in training or as in evaluation."""
        head: Any = self.model.transformers[0].head
        was = head.training
        try:
            return head.train(training)(head.growth.new_zeros(1, head.features))
        finally:
            head.train(was)

    def draws(self, spread: Tensor) -> Tensor:
        """The warps, (S, d)."""
        q = Independent(Normal(torch.zeros_like(spread), spread), 1)
        return draw(q, self.samples, "sobol", torch.Generator().manual_seed(0))

    def look(self, x: Tensor, theta: Tensor) -> Tensor:
        """The logits of each input for each warp, (S, B, K)."""
        poses = theta[:, None].expand(-1, len(x), -1)
        assert self.model.family is not None
        seen = warp(x, self.model.family, poses, **self.model.options)  # type: ignore[arg-type]
        return self.model.body(seen.flatten(0, 1)).unflatten(0, poses.shape[:2])
