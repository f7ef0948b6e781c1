"""A job as it travels to another process. Names travel, not data: whoever gets it opens the table's file and builds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich.progress import Progress

from pstn.experiment.catalogue import find
from pstn.experiment.network import Network, original
from pstn.experiment.results import Record
from pstn.experiment.table import Table
from pstn.experiment.work import Job, Name, place
from pstn.train.config import Accelerator


@dataclass(frozen=True)
class Parcel:
    """A job by names.

    Arguments:
        source: The folder of tables.
        table: Which of them.
        quick: Whether a slice of it is run.
        kind: What to do.
        networks: Each network's name, its key, and the name of the trained one that it starts from.
        runs: The folder of runs.
        device: Where to train.
        facts: What to write into each record.
        threads: How many threads to use on a CPU, where the last digits depend on it. Beside a GPU, a process has its
            share of the cores.
    """

    source: str
    table: str
    quick: bool
    kind: Literal["train", "test"]
    networks: tuple[tuple[Name, str, Name | None], ...]
    runs: str
    device: Accelerator
    facts: Record
    threads: int

    def do(self, progress: bool | Progress = False) -> list[Record]:
        """Open it, and do the job."""
        if place(self.device) == "cpu":
            torch.set_num_threads(self.threads)
        table = find(self.table, Path(self.source))
        table = table.sliced() if self.quick else table
        networks = tuple(self._network(*names, table) for names in self.networks)
        return Job(self.kind, networks).do(self.device, self.facts, progress)

    def _network(self, name: Name, key: str, start: Name | None, table: Table) -> Network:
        network = self._named(name, table, None if start is None else self._named(start, table))
        if network.key != key:
            raise ValueError(
                f"{name[0]} {name[1]}, fold {name[2]}, has another key here than where the run was started ({key}): "
                "they differ in the table's file, the library or the data"
            )
        return network

    def _named(self, name: Name, table: Table, pretrained: Network | None = None) -> Network:
        row = table.row(name[0])
        return Network(row, original(row, name[1]), name[2], Path(self.runs), pretrained)


def pack(job: Job, table: Table, quick: bool, device: Accelerator, facts: Record) -> Parcel:
    """A job of a table (the whole one, where a slice of it is run) as a parcel."""
    if table.source is None:
        raise ValueError(f"table {table.id!r} is in no file; other processes can only run tables of experiments/")
    networks = tuple((n.name, n.key, None if n.pretrained is None else n.pretrained.name) for n in job.networks)
    runs = str(job.networks[0].runs)
    return Parcel(
        str(table.source), table.id, quick, job.kind, networks, runs, device, facts, torch.get_num_threads()
    )  # fmt: skip
