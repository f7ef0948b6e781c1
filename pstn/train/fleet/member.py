"""A network to be trained with others, and which others those can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from pstn.data import Data
from pstn.train.config import Train
from pstn.train.fleet.likeness import signature
from pstn.train.fleet.stack import Unit
from pstn.train.step import Loss


@dataclass(frozen=True)
class Member:
    """One network of a fleet, with what :func:`pstn.train.fit` would be given for it alone."""

    model: nn.Module
    """Called as ``model(x, samples=S)``, returns a :class:`pstn.stn.Output`; trained in place."""
    train: Data
    """The training data. Members may share it, or have sets of their own."""
    validation: Data | None = None
    """Data to measure NLL and accuracy on."""
    config: Train = Train()  # noqa: RUF009 - frozen
    """The settings."""
    augment: nn.Module | None = None
    """Applied to each training batch."""
    loss: Loss | None = None
    """``loss(output, y)`` instead of the bound."""


def check_config(member: Member) -> None:
    """Raise unless a fleet can do what the settings ask for."""
    config = member.config
    if config.precision not in ("32-true", "bf16-mixed"):
        raise ValueError(f"precision is {config.precision!r}; a fleet trains in '32-true' or 'bf16-mixed'")
    if config.devices != 1:
        raise ValueError(f"devices is {config.devices}; a fleet trains on one: give each device fleets of its own")


def key(member: Member) -> Any:
    """What members of one fleet have in common."""
    shapes = [None if d is None else (len(d), d.x.shape[1:], d.x.dtype) for d in (member.train, member.validation)]
    unit = Unit(member.model, member.augment, member.config, member.loss)
    return (tuple(shapes), signature(unit, member.config))
