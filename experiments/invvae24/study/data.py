"""Fashion-MNIST, normalised, and the same pictures nudged once, by a seed: the two sets that the study compares."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import torch

from pstn.data import Data, Normalise, fashion_mnist
from pstn.experiment import Split
from pstn.vae import Nudge

SHAPE, NORMALISE = (1, 28, 28), Normalise(mean=0.2860, std=0.3530)
FILL = float(NORMALISE.fill)
#: The seeds of the one draw that training and test pictures are nudged by.
SEEDS = {"train": 24, "test": 25}


@dataclass(frozen=True, eq=False, repr=False)
class Exam(Data):
    """Test pictures with their nudged twins, and the training pictures whose codes a classifier learns from.

    Those as they are, those nudged, and which of the two are the arm's own.
    """

    moved: torch.Tensor = field(kw_only=True)
    studies: tuple[Data, Data] = field(kw_only=True)
    own: int = field(kw_only=True)

    @property
    def study(self) -> Data:
        """The arm's own training pictures."""
        return self.studies[self.own]

    def to(self, device: torch.device | str) -> Exam:
        """The same data on another device."""
        base, nudged = (data.to(device) for data in self.studies)
        x, y, moved = (values.to(device) for values in (self.x, self.y, self.moved))
        return replace(self, x=x, y=y, moved=moved, studies=(base, nudged))


@dataclass(frozen=True)
class Clothes:
    """What an arm is trained on, and both test sets.

    ``"base"`` pictures as they are, ``"augmented"`` ones, nudged once; ``"fresh"``: as they are, for training to nudge
    anew each time; ``"pairs"``: augmented ones with what they were as a second channel.
    """

    train: Literal["base", "augmented", "fresh", "pairs"]
    limit: int | None = None

    def __call__(self, fold: int) -> Split:
        return _split(self)


def nudge() -> Nudge:
    """The paper's transformations."""
    return Nudge(SHAPE[1:], fill=FILL)


def whole(split: Literal["train", "test"]) -> Data:
    """The data set as it is published."""
    return fashion_mnist(split)


@cache
def _pictures(split: Literal["train", "test"], limit: int | None) -> tuple[Data, Data]:
    """The pictures as they are, and nudged."""
    data = whole(split).normalised(NORMALISE)
    data = data if limit is None else data.subset(range(min(limit, len(data))))
    moved = nudge().data(data, SEEDS[split])
    return data, Data(moved.x, moved.y, moved.classes, moved.name)


@cache
def _split(source: Clothes) -> Split:
    (base, augmented), (test, moved) = (_pictures(split, source.limit) for split in ("train", "test"))
    if source.train == "pairs":
        train, exam = (
            replace(data, x=torch.cat([twin.x, data.x], dim=1), name=f"{data.name}, pairs")
            for data, twin in ((base, augmented), (test, moved))
        )
        return Split(train, None, exam)
    name, own = f"{test.name}, codes of {source.train}", int(source.train != "base")
    exam = Exam(test.x, test.y, test.classes, name, moved=moved.x, studies=(base, augmented), own=own)
    return Split(augmented if source.train == "augmented" else base, None, exam)
