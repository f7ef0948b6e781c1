"""What can be set in the demonstration. Nothing heavy is imported here: ``pstn --help`` reads it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

#: How many embedded digits there are, and of how many classes.
DIGITS, CLASSES = 5000, 10


@dataclass(frozen=True)
class Demo:
    """Train five kinds of network on 100 digits and see how well they read 1,000 others.

    Prints a table and writes a page; about four minutes on two cores. After Ctrl-C, the same command goes on.
    """

    # The kinds are a plain CNN, the same with random augmentation, an STN and a P-STN, all trained alike. The strength
    # of the augmentation and the KL weight are picked on validation digits, which are neither trained nor tested on.

    seeds: int = 5
    """How many networks of each kind, each with training digits and initial weights of its own."""
    train: int = 100
    """Training digits of each network, as many of every class."""
    validation: int = 1000
    """Digits to pick settings on."""
    test: int = 1000
    """Digits to test on, the same for all networks."""

    steps: int = 3000
    """Optimizer steps of each network."""
    batch_size: int = 8
    """Digits a step."""
    lr: float = 2e-3
    """Learning rate, falling to zero along a cosine; a twentieth of it for localizers."""
    samples: int = 10
    """Transformations that a P-STN averages over when it predicts."""
    spreads: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2)
    """Strengths of augmentation to pick from: the deviation of rotation (radians), log-scale and shifts."""
    kl_weights: tuple[float, ...] = (3e-5, 1e-4, 3e-4, 1e-3)
    """KL weights to pick from."""
    tuning_seeds: int = 2
    """How many of the seeds the picking looks at."""

    output: Path = Path("report")
    """Where to write index.html and results.json."""
    runs: Path = Path("runs/demo")
    """Where to keep what is trained; networks found there are not trained again."""
    picture: Path | None = None
    """Also write a small picture of posterior samples to this PNG file."""
    workers: int | None = None
    """How many processes train at a time, one core each; all cores by default."""
    seed: int = 0
    """Another number gives other digits to every part, and other initial weights."""
    quick: bool = False
    """A slice, for a first look: 2 seeds, 300 steps, 2 settings of each grid, 200 test digits; half a minute."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "batch_size", "samples", "tuning_seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("train", "validation", "test"):
            if getattr(self, name) < CLASSES or getattr(self, name) % CLASSES:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; expected a multiple of {CLASSES}, as many digits of every class"
                )
        wanted = self.test + self.validation + self.seeds * self.train
        if wanted > DIGITS:
            raise ValueError(
                f"test, validation and {self.seeds} times {self.train} training digits make {wanted}; there are "
                f"{DIGITS}: ask for less of one of them"
            )
        for name in ("spreads", "kl_weights"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values) or not all(0 <= v < math.inf for v in values):
                raise ValueError(f"{name} are {values}; expected different numbers, zero or above")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}; expected a positive number")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}; expected 1 or more")

    def resolved(self) -> Demo:
        """The settings to run: those of the slice where it is asked for, and a number of workers."""
        chosen = self
        if self.quick:
            chosen = replace(
                self,
                seeds=min(self.seeds, 2),
                tuning_seeds=1,
                steps=min(self.steps, 300),
                validation=min(self.validation, 200),
                test=min(self.test, 200),
                spreads=self.spreads[1:3] or self.spreads,
                kl_weights=self.kl_weights[1:3] or self.kl_weights,
            )
        return replace(chosen, tuning_seeds=min(chosen.tuning_seeds, chosen.seeds), workers=self.workers or _cores())


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
