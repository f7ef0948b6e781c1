"""How a model is trained: a frozen record that the command line can fill and a checkpoint can compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from pstn.grid import check_choice
from pstn.objectives import Bound, KLPer

Optimizer = Literal["adam", "adamw", "sgd"]
Schedule = Literal["constant", "step", "cosine"]
Precision = Literal["32-true", "64-true", "bf16-mixed", "16-mixed"]
Accelerator = Literal["auto", "cpu", "cuda", "mps"]
Keep = Literal["last", "best"]


@dataclass(frozen=True)
class Train:
    """The settings of one training run.

    Example:
        >>> Train(epochs=600, batch_size=8, weight_decay=0.01, kl_weight=3e-4).optimizer
        'adam'
    """

    epochs: int = 100
    """Passes over the training data."""
    steps: int | None = None
    """Stop after this many optimizer steps instead, wherever in an epoch that is."""
    batch_size: int = 64
    """Examples a step, over all devices together."""
    drop_last: bool = False
    """Leave out the last batch of an epoch when it is not full."""

    lr: float = 1e-3
    """Learning rate."""
    localizer_lr: float = 0.1
    """The localizer's learning rate, as a multiple of lr."""
    optimizer: Optimizer = "adam"
    """adam adds weight decay to the gradient (L2); adamw decouples it."""
    momentum: float = 0.9
    """Momentum of sgd."""
    nesterov: bool = False
    """Nesterov's momentum in sgd."""
    weight_decay: float = 0.0
    """Weight decay, on all parameters."""
    clip: float | None = None
    """Largest gradient norm; larger gradients are scaled down to it."""

    schedule: Schedule = "constant"
    """How the learning rate goes: it stays, falls by gamma every step_size epochs, or falls to 0 along a cosine."""
    step_size: float | tuple[float, ...] = 10.0
    """Epochs between two falls of the step schedule; several numbers are the epochs of its falls, in order."""
    gamma: float = 0.1
    """Factor of each fall of the step schedule."""
    warmup: float = 0.0
    """Epochs over which the learning rate first rises linearly from 0."""

    samples: int = 1
    """Warps drawn for each example in training."""
    samples_validation: int = 10
    """Warps drawn for each example in validation; their probabilities are averaged."""
    kl_weight: float = 1.0
    """Weight of the KL divergence from the prior."""
    kl_warmup: float = 0.0
    """Epochs over which that weight first rises linearly from 0."""
    kl_per: KLPer | Literal["dataset"] = "dimension"
    """Average the KL divergence over the dimensions of theta, or count it whole for each input; dataset: the average,
    over the square root of the number of training inputs, as far as the network knows their labels. What is learned
    once for all inputs costs each less the more there are; by the root, as in bounds on how far test and training
    differ."""
    bound: Bound = "elbo"
    """The mean log-likelihood over the samples, or the importance-weighted bound."""

    seed: int = 0
    """Fixes the order of the examples and everything drawn while training."""
    precision: Precision = "32-true"
    """Arithmetic: whole runs in 32 or 64 bits, or mixed with a 16-bit format."""
    accelerator: Accelerator = "auto"
    """Where to train; auto is cuda where there is one, else cpu."""
    devices: int = 1
    """How many devices of that kind."""

    validate_every: int = 1
    """Epochs between two validations; the last epoch always has one. 0: only the last."""
    checkpoint_every: float = 30.0
    """Seconds between two checkpoints, so a killed run loses no more than that. 0: every epoch."""
    keep: Keep = "last"
    """Which weights the model ends with: the last, or those of the epoch with the least validation NLL."""

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, get_args(Optimizer))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("accelerator", self.accelerator, get_args(Accelerator))
        check_choice("kl_per", self.kl_per, (*get_args(KLPer), "dataset"))
        check_choice("bound", self.bound, get_args(Bound))
        check_choice("keep", self.keep, get_args(Keep))
        for name in ("epochs", "steps", "batch_size", "samples", "samples_validation", "devices"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), at_least=1)
                if not isinstance(getattr(self, name), Integral):
                    raise TypeError(f"{name} is {getattr(self, name)!r}; expected a whole number")
        for name in ("localizer_lr", "weight_decay", "momentum", "warmup", "kl_weight", "kl_warmup", "validate_every"):
            _check(name, getattr(self, name), at_least=0)
        for name in ("lr", "gamma"):
            _check(name, getattr(self, name), above=0)
        falls = self.step_size if isinstance(self.step_size, tuple) else (self.step_size,)
        for fall in falls:
            _check("step_size", fall, above=0)
        if not falls or list(falls) != sorted(set(falls)):
            raise ValueError(f"step_size is {self.step_size}; expected a number of epochs, or several that increase")
        if self.clip is not None:
            _check("clip", self.clip, above=0)
        if self.checkpoint_every < 0 or math.isnan(self.checkpoint_every):
            raise ValueError(f"checkpoint_every is {self.checkpoint_every}; expected seconds, 0 or more")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError("nesterov needs optimizer='sgd' with momentum above 0")

    def per_epoch(self, examples: int) -> int:
        """How many steps an epoch of so many examples has."""
        whole, rest = divmod(examples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def length(self, examples: int) -> int:
        """How many steps training on so many examples takes.

        Example:
            >>> Train(epochs=3, batch_size=4).length(10)
            9
        """
        return self.steps or self.epochs * self.per_epoch(examples)


def _check(name: str, value: float, *, at_least: float | None = None, above: float | None = None) -> None:
    low = at_least is None or value >= at_least
    if not (math.isfinite(value) and low and (above is None or value > above)):
        wanted = f"at least {at_least}" if at_least is not None else f"more than {above}"
        raise ValueError(f"{name} is {value}; expected a finite number, {wanted}")
