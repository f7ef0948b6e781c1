"""A network that looks at the same warps of every input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from pstn.distributions import draw
from pstn.stn import STN, Output
from pstn.warp import warp


class Fixed(torch.nn.Module):
    """A network that looks at the same warps of every input, so that an answer does not depend on its neighbours.

    Arguments:
        model: The network; its posterior is the same for all inputs.
        samples: How many warps.
    """

    def __init__(self, model: STN, samples: int) -> None:
        super().__init__()
        self.model = model
        self.samples = samples

    def forward(self, x: Tensor) -> Output:
        """The logits, (S, B, K), as an answer with samples."""
        if not self.model.transformers:
            return self.model(x)
        theta = self.draws(self.posterior(training=False).stddev[0])
        return Output(self.look(x, theta), (), theta[:, None].expand(-1, len(x), -1))

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
