"""What a step changes: weights, batch statistics, and what Adam, AdamW and SGD remember of each stacked network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pstn.train.config import Train

#: The columns of a step's settings: learning rates of body and localizer, KL weight, weight decay, and the two
#: corrections of Adam's averages for having started at zero.
KNOBS = ("lr", "localizer_lr", "kl_weight", "weight_decay", "first", "second")
BETAS, EPS = (0.9, 0.999), 1e-8

#: Losses (M,), their terms (M, T), and gradients (M, P).
Triple = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class State:
    """The numbers of M networks that a step changes, in place, a row a network."""

    weights: Tensor
    """The trained ones, (M, P)."""
    slots: dict[str, Tensor]
    """What the optimizer remembers of each, (M, P)."""
    still: dict[str, Tensor]
    """What else a network holds, such as batch statistics, (M, ...)."""
    alive: Tensor
    """Which networks have not diverged, (M,)."""
    sums: Tensor
    """The terms of the loss, added up over examples, (M, T)."""

    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [self.weights, *self.slots.values(), *self.still.values(), self.alive, self.sums]

    def clone(self) -> State:
        """A copy of all of them."""
        slots, still = ({name: value.clone() for name, value in each.items()} for each in (self.slots, self.still))
        return State(self.weights.clone(), slots, still, self.alive.clone(), self.sums.clone())

    def step(
        self, config: Train, localizer: Tensor, knobs: Tensor, size: int, differentiate: Callable[[], Triple]
    ) -> None:
        """One step of every network; nothing here waits for the device.

        Arguments:
            config: The optimizer, its momentum and clipping, common to all.
            localizer: Which weights are a localizer's, (P,).
            knobs: The settings :data:`KNOBS` of each network, (M, 6).
            size: Examples of a batch.
            differentiate: Gives the losses, and may change what is still.
        """
        before = {name: value.clone() for name, value in self.still.items()}
        loss, terms, gradient = differentiate()
        # A diverged network's numbers stay as they were before it did.
        self.alive.logical_and_(loss.isfinite() & gradient.isfinite().all(1))
        for name, value in self.still.items():
            value.copy_(torch.where(self.alive.view(-1, *[1] * (value.ndim - 1)), value, before[name]))
        self._move(config, localizer, knobs, gradient)
        self.sums.add_(terms.double(), alpha=size)

    def _move(self, config: Train, localizer: Tensor, knobs: Tensor, gradient: Tensor) -> None:
        """Move the rows that are alive along their gradients, as torch computes it."""
        # A row that is not alive has no gradient (it may be NaN) and no learning rate.
        gradient = torch.where(self.alive[:, None], gradient, 0.0)
        body, found, _, decay, first, second = (knobs * self.alive[:, None])[..., None].unbind(1)
        rate = torch.where(localizer, found, body)
        if config.clip is not None:
            norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            gradient.mul_((config.clip / (norm + 1e-6)).clamp_(max=1.0))
        if config.optimizer == "adamw":
            self.weights.mul_(1 - rate * decay)
        else:
            gradient.addcmul_(self.weights, decay)
        if config.optimizer == "sgd":
            momentum = self.slots["momentum"].mul_(config.momentum).add_(gradient)
            step = gradient.add_(momentum, alpha=config.momentum) if config.nesterov else momentum
            self.weights.addcmul_(rate, step, value=-1)
        else:
            mean = self.slots["first"].lerp_(gradient, 1 - BETAS[0])
            square = self.slots["second"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            # Adam's averages start at zero: both are corrected for it, here and in the denominator.
            denominator = square.sqrt().div_(second.clamp_min(EPS)).add_(EPS)
            self.weights.addcdiv_(rate.div_(first.clamp_min(EPS)).mul_(mean), denominator, value=-1)


def slots(config: Train, weights: Tensor) -> dict[str, Tensor]:
    """What an optimizer remembers, before the first step."""
    names = ("momentum",) if config.optimizer == "sgd" else ("first", "second")
    return {name: torch.zeros_like(weights) for name in names}
