"""A table whose first worker is killed in mid-fleet, where TOY_FUSE names a file that is not there yet.

Where TOY_STOP names one, that worker instead interrupts the process that gives out the work, and takes its time.

Every beginning of a fleet is noted in the file that TOY_JOURNAL names: how many networks, from which step on.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from trials.shared import TRAIN, Few, cnn, pstn

from pstn.experiment import Experiment, Table
from pstn.train.fleet import Fleet

LONG = replace(TRAIN, steps=150)
GO, SAVE = Fleet.go, Fleet.save


def go(fleet, *arguments):
    if journal := os.environ.get("TOY_JOURNAL"):
        with open(journal, "a") as file:
            file.write(f"{len(fleet.members)} {fleet.members[0].config.seed} {fleet.step}\n")
    return GO(fleet, *arguments)


def save(fleet, now):
    SAVE(fleet, now)
    fuse = Path(os.environ.get("TOY_FUSE", os.devnull))
    if fleet.step < fleet.total and not fuse.exists():
        fuse.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    stop = Path(os.environ.get("TOY_STOP", os.devnull))
    if fleet.step < fleet.total and not stop.exists():
        stop.touch()
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(2)


if GO.__module__ == Fleet.__module__:  # not twice, where the file is read twice
    Fleet.go, Fleet.save = go, save

TABLE = Table(
    "toy/fused",
    "A fuse",
    [
        Experiment("cnn", Few(40), cnn, LONG, folds=2, samples=2),
        Experiment("pstn", Few(40), pstn, LONG, folds=2, samples=2, grid={"kl_weight": (1e-4, 1e-2)}),
    ],
    fleet=2,
)
