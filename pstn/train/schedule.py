"""The learning rate as a pure function of the step, so that a resumed run needs no state to follow it."""

from __future__ import annotations

import math

from pstn.train.config import Train


def factor(config: Train, step: int, total: int, per_epoch: int) -> float:
    r"""What the learning rate is multiplied by at a step: :math:`\min(1, (t + 1)/w) \cdot f(t)`.

    The rise over w = warmup steps is times f, which is 1 (constant), :math:`\gamma^{\lfloor t/s \rfloor}` (step; with
    several step sizes, γ to the number of those that t has reached) or :math:`(1 + \cos(\pi\, t / T))/2` with t counted
    from the end of the warmup (cosine).

    Arguments:
        config: The schedule and its numbers, in epochs.
        step: The step t about to be taken, counted from 0.
        total: How many steps T the run has.
        per_epoch: How many steps an epoch has.

    Example:
        >>> config = Train(schedule="step", step_size=2, gamma=0.1)
        >>> [factor(config, step, total=12, per_epoch=3) for step in (0, 5, 6, 11)]
        [1.0, 1.0, 0.1, 0.1]
    """
    warmup = round(config.warmup * per_epoch)
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    if config.schedule == "step":
        if isinstance(config.step_size, tuple):
            falls = sum(step >= round(epoch * per_epoch) for epoch in config.step_size)
        else:
            falls = step // max(1, round(config.step_size * per_epoch))
        return rise * float(config.gamma) ** falls
    if config.schedule == "cosine":
        done = max(0, step - warmup) / max(1, total - warmup)
        return rise * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return rise
