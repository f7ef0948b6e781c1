"""Adam, AdamW and SGD for stacked networks, each with its own settings."""

from __future__ import annotations

import torch
from torch import Tensor

from pstn.train.config import Train
from pstn.train.fleet.stack import Stack

#: The columns of a step's settings: learning rates of body and localizer, KL weight, weight decay, and the two
#: corrections of Adam's averages for having started at zero.
KNOBS = ("lr", "localizer_lr", "kl_weight", "weight_decay", "first", "second")
BETAS, EPS = (0.9, 0.999), 1e-8


class Optimizer:
    """Adam, AdamW or SGD with a learning rate and a weight decay for each row, as torch computes them.

    Arguments:
        config: The kind, momentum and clipping, common to all.
        stack: Whose weights to move, in place.
    """

    def __init__(self, config: Train, stack: Stack) -> None:
        self.config, self.stack = config, stack
        names = ("momentum",) if config.optimizer == "sgd" else ("first", "second")
        self.slots = {name: torch.zeros_like(stack.weights) for name in names}

    def step(self, gradient: Tensor, knobs: Tensor, alive: Tensor) -> None:
        """Move the rows that are alive along their gradients, with the settings :data:`KNOBS` (M, 6)."""
        config, weights = self.config, self.stack.weights
        # A row that is not alive has no gradient (it may be NaN) and no learning rate.
        gradient = torch.where(alive[:, None], gradient, 0.0)
        body, localizer, _, decay, first, second = (knobs * alive[:, None])[..., None].unbind(1)
        rate = torch.where(self.stack.localizer, localizer, body)
        if config.clip is not None:
            norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            gradient.mul_((config.clip / (norm + 1e-6)).clamp_(max=1.0))
        if config.optimizer == "adamw":
            weights.mul_(1 - rate * decay)
        else:
            gradient.addcmul_(weights, decay)
        if config.optimizer == "sgd":
            momentum = self.slots["momentum"].mul_(config.momentum).add_(gradient)
            move = gradient.add_(momentum, alpha=config.momentum) if config.nesterov else momentum
            weights.addcmul_(rate, move, value=-1)
        else:
            mean = self.slots["first"].lerp_(gradient, 1 - BETAS[0])
            square = self.slots["second"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            # Adam's averages start at zero: both are corrected for it, here and in the denominator.
            denominator = square.sqrt().div_(second.clamp_min(EPS)).add_(EPS)
            weights.addcdiv_(rate.div_(first.clamp_min(EPS)).mul_(mean), denominator, value=-1)
