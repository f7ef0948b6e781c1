"""Networks of one kind that a process trains at once, and how a stage's networks are shared out among processes."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pstn.demo.job import Job
from pstn.demo.models import KINDS
from pstn.train import fit_fleet

#: What a fleet's step costs on top of its networks, in networks.
OVERHEAD = 2


@dataclass(frozen=True)
class Fleet:
    """Jobs of one kind, to be trained together.

    Arguments:
        jobs: The networks.
    """

    jobs: tuple[Job, ...]

    @property
    def cost(self) -> float:
        """Roughly what a step costs, in milliseconds."""
        return KINDS[self.jobs[0].kind].cost * (OVERHEAD + len(self.jobs))

    @property
    def folder(self) -> Path:
        """Where it is kept while it trains. The name holds a checksum of who is in it: others, another folder."""
        names = "/".join(job.folder.name for job in self.jobs)
        return self.jobs[0].demo.runs / f"fleet-{self.jobs[0].kind}-{zlib.crc32(names.encode()):08x}"

    @property
    def untrained(self) -> tuple[Job, ...]:
        """Those that are not trained yet."""
        return tuple(job for job in self.jobs if not job.trained)

    def train(self, on_step: Callable[[int], object] = lambda step: None) -> None:
        """Train and validate all, from the last checkpoint on if there is one; ``on_step`` is told how far they are."""
        runs = fit_fleet([job.member() for job in self.jobs], directory=self.folder, progress=False, on_step=on_step)
        for job, run in zip(self.jobs, runs, strict=True):
            if run.failure is not None:
                raise FloatingPointError(f"{job.label}: {run.failure}")
        for job, run in zip(self.jobs, runs, strict=True):
            if not job.trained:
                job.keep(run)
        shutil.rmtree(self.folder)


def muster(jobs: Sequence[Job], workers: int) -> list[Fleet]:
    """The fleets that leave no job untrained, those that take longest first.

    Large fleets cost less a network, small ones are easier to share out: of all bounds on their size, the one with
    which the processes are done soonest is taken. It does not depend on what is trained already, so that a stage that
    was stopped finds its fleets again.

    Arguments:
        jobs: The networks that are wanted, of any kinds.
        workers: How many processes will train.

    Example:
        >>> from pstn.demo.settings import Demo
        >>> demo = Demo(runs=Path("where nothing is trained yet"))
        >>> jobs = [Job(demo, "stn", seed) for seed in range(5)]
        >>> [[job.seed for job in fleet.jobs] for fleet in muster(jobs, workers=2)]
        [[0, 2, 4], [1, 3]]
    """
    plans = [_split(jobs, most) for most in range(len(jobs), 0, -1)]
    best = min(plans, key=lambda fleets: _duration(fleets, workers), default=[])
    # One that has begun goes on as it is, even if it was stopped while its networks were being kept one by one.
    left = [fleet if fleet.folder.exists() else Fleet(fleet.untrained) for fleet in best if fleet.untrained]
    return sorted(left, key=lambda fleet: -fleet.cost)


def _split(jobs: Sequence[Job], most: int) -> list[Fleet]:
    """The jobs of each kind in as few fleets as hold no more than so many, of about equal size; costliest first."""
    kinds: dict[str, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job.kind, []).append(job)
    counts = {kind: -(-len(mine) // most) for kind, mine in kinds.items()}
    fleets = [Fleet(tuple(mine[i :: counts[kind]])) for kind, mine in kinds.items() for i in range(counts[kind])]
    return sorted(fleets, key=lambda fleet: -fleet.cost)


def _duration(fleets: Sequence[Fleet], workers: int) -> float:
    """When the last process is done, if each takes the next fleet as soon as it is free."""
    busy = [0.0] * workers
    for fleet in fleets:
        busy[busy.index(min(busy))] += fleet.cost
    return max(busy)
