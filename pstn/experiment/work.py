"""What a worker does: train a fleet of networks, or measure trained ones on test data. Here or on another machine."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import Progress

from pstn.experiment.lock import lock
from pstn.experiment.network import Network, checksum
from pstn.experiment.results import Record
from pstn.train import fit_fleet
from pstn.train.checkpoint import write
from pstn.train.config import Accelerator
from pstn.train.log import environment

#: What tells networks of a table apart: row, setting as JSON, fold.
Name = tuple[str, str, int]
MEMBERS = "members.json"


@dataclass(frozen=True, eq=False)
class Job:
    """Networks to train or to test together.

    Arguments:
        kind: What to do.
        networks: With which.
    """

    kind: Literal["train", "test"]
    networks: tuple[Network, ...]

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(network.row.name for network in self.networks))
        return f"{self.kind}ing {len(self.networks)} of {names}"

    @cached_property
    def cost(self) -> float:
        """A rough measure of how long the job takes, to tell long ones from short ones; none to test.

        The steps, times the root of what there is to multiply in each: numbers that go in by parameters. The root, for
        the more there is to do at once, the less of the machine is left idle.
        """
        if self.kind == "test":
            return 0.0
        first = self.networks[0]  # the others of its fleet have the same shapes and lengths
        return first.steps * math.sqrt(len(self.networks) * first.products)

    @property
    def folder(self) -> Path:
        """Where the job keeps its checkpoints. Named by its members: another fleet is another folder."""
        return self.networks[0].runs / "fleets" / checksum([network.key for network in self.networks])

    def do(self, device: Accelerator, facts: Record, progress: bool | Progress = False) -> list[Record]:
        """Do the job, from the last checkpoint on if it was begun before.

        Arguments:
            device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
            facts: What to write into each record.
            progress: A display to add a line to.

        Returns:
            A record for each network.
        """
        facts = {**facts, **environment(torch.device(place(device)))}
        if self.kind == "test":
            return [{"key": network.key, "test": network.test(place(device))} for network in self.networks]
        with _held(self.folder):
            # The list is written first: whoever finds the folder knows which fleet was begun in it.
            write(self.folder / MEMBERS, json.dumps([network.key for network in self.networks]).encode())
            members = [network.member(device) for network in self.networks]
            runs = fit_fleet(members, directory=self.folder, progress=progress)
            records = [network.finish(run, facts) for network, run in zip(self.networks, runs, strict=True)]
            shutil.rmtree(self.folder)
        return records


def fleets(networks: Sequence[Network], size: int, known: Mapping[str, Network] | None = None) -> list[Job]:
    """Jobs that train networks, those that can be trained together in fleets of up to ``size``.

    A fleet that an earlier run began and did not finish is taken up as it was. The rest is cut in the same way whether
    or not some of it is done already, and wherever it is to be trained: a network's last digits may depend on its
    companions.

    Arguments:
        networks: What to train.
        size: How many together at most.
        known: All of the table's networks by their keys, among which the companions of a begun fleet are.
    """
    waiting = {network.key: network for network in networks}
    known, jobs = {**(known or {}), **waiting}, []
    for keys in _begun({network.runs for network in networks}):
        if any(key in waiting for key in keys) and all(key in known for key in keys):
            jobs.append(Job("train", tuple(known[key] for key in keys)))
            for key in keys:
                waiting.pop(key, None)
    groups: dict[str, list[Network]] = {}
    for network in waiting.values():
        groups.setdefault(network.architecture, []).append(network)
    for group in groups.values():
        jobs += [Job("train", tuple(group[i : i + size])) for i in range(0, len(group), size)]
    return jobs


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Inside, the folder is this process's; an error if it is another's, which trains the same networks."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        try:
            lock(file, wait=False)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"another run is training these networks, in {folder}: wait for it, or stop it"
            ) from error
        yield


def place(device: Accelerator) -> str:
    """The device that ``"auto"`` stands for."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def _begun(runs: set[Path]) -> Iterator[list[Any]]:
    for folder in sorted(runs):
        for path in sorted((folder / "fleets").glob(f"*/{MEMBERS}")):
            with suppress(FileNotFoundError):  # of a fleet that another process has finished just now
                yield json.loads(path.read_bytes())
