"""The five kinds of network and the digits they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from pstn import nets
from pstn.data import Data, Normalise, digits
from pstn.demo.settings import CLASSES, DIGITS, Demo
from pstn.families import Affine, Similarity
from pstn.inference import Augment
from pstn.posterior import Learned, Point, StudentT
from pstn.stn import STN

NORMALISE = Normalise(mean=0.1307, std=0.3081)
SHAPE = (1, 28, 28)

#: Validation digits that are looked at while training, about ten times: for the curves only.
GLANCE = 100


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    Arguments:
        name: Its name in files.
        label: Its name in tables.
        tuned: What is picked on validation digits, in words; "" where nothing is.
        cost: Roughly what a step in a fleet costs for each network, in milliseconds: for sharing out the work, and for
            the estimate of the time left.
        paper: (mean, deviation) that the P-STN paper reports for 100 digits of MNIST: accuracy in per cent from table
            2, ECE from figure 11.
    """

    name: str
    label: str
    tuned: str = ""
    cost: float = 1.0
    paper: Mapping[str, tuple[float, float]] = field(default_factory=dict)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("cnn", "CNN", cost=0.8, paper={"accuracy": (87.29, 0.58), "ece": (0.0743, 0.0094)}),
        Kind("augment", "CNN + augmentation", tuned="σ", cost=1.2),
        Kind("stn", "STN", cost=2.1, paper={"accuracy": (82.16, 2.30), "ece": (0.1160, 0.0205)}),
        Kind("pstn", "P-STN", tuned="w", cost=2.1, paper={"accuracy": (92.70, 0.74), "ece": (0.0567, 0.0065)}),
        Kind("learned", "P-STN, learned spread", cost=2.6),
    )
}


def build(kind: str) -> STN:
    """A fresh network of a kind: the paper's, and one of as many parameters with batch normalisation.

    Example:
        >>> {kind: sum(p.numel() for p in build(kind).parameters()) for kind in KINDS}
        {'cnn': 28086, 'augment': 28086, 'stn': 28726, 'pstn': 26662, 'learned': 27578}
    """
    fill = float(NORMALISE.fill)
    if kind in ("cnn", "augment"):
        return STN(nets.classifier(SHAPE, CLASSES, channels=(12, 24), hidden=52))
    if kind == "learned":
        return STN(nets.normed_classifier(SHAPE, CLASSES), nets.blind(), Affine(), Learned(), fill=fill)
    body = nets.classifier(SHAPE, CLASSES)
    if kind == "stn":
        return STN(body, nets.localizer(SHAPE, channels=(12, 18)), Similarity(), Point(), fill=fill)
    return STN(body, nets.localizer(SHAPE), Similarity(), StudentT(), fill=fill)


def augmentation(spread: float) -> Augment:
    """Random similarities of the given strength, on the digits' own background."""
    return Augment(Similarity(), spread, fill=float(NORMALISE.fill))


class Parts(NamedTuple):
    """Digits that no two parts share."""

    train: tuple[Data, ...]
    validation: Data
    test: Data


@lru_cache(maxsize=2)
def parts(demo: Demo) -> Parts:
    """The digits of the demonstration, normalised: a training set a seed, validation and test; all class-balanced."""
    # In this order the classes take turns, so that every stretch of a multiple of ten digits is balanced.
    everything = digits().normalised(NORMALISE).balanced_subset(DIGITS // CLASSES, seed=demo.seed)
    sizes = [demo.test, demo.validation, *[demo.train] * demo.seeds]
    names = ["test", "validation", *[f"train {seed}" for seed in range(demo.seeds)]]
    start, made = 0, []
    for size, name in zip(sizes, names, strict=True):
        made.append(everything.subset(range(start, start + size), f"digits, {name}"))
        start += size
    return Parts(tuple(made[2:]), made[1], made[0])


@lru_cache(maxsize=2)
def glance(demo: Demo) -> Data:
    """The validation digits that are looked at while training."""
    validation = parts(demo).validation
    return validation.subset(range(min(GLANCE, len(validation))), "a glance at validation")
