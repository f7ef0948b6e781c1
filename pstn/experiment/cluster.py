"""Handing a table's work to Ray. Names travel, not data: a worker opens the table's file and builds from there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstn.experiment.catalogue import find
from pstn.experiment.network import Network, original
from pstn.experiment.results import Record
from pstn.experiment.work import Job, Name, place
from pstn.train.config import Accelerator

if TYPE_CHECKING:
    from pstn.experiment.table import Table

#: How often a job whose worker was lost is given to another. It goes on from the lost one's last checkpoint.
RETRIES = 3

#: A network as it travels: its name, its key, and the name of the trained one that it starts from.
Parcel = tuple[Name, str, Name | None]


@contextmanager
def cluster(address: str, quick: bool, device: Accelerator, facts: Record) -> Iterator[Cluster]:
    """Workers of Ray, one task a job.

    Machines of a cluster need the same checkout, the data, and the folder of runs in common.

    Arguments:
        address: ``"local"`` for a Ray of this machine's own, or a cluster's address.
        quick: Whether slices of the tables are run.
        device: Where to train.
        facts: What to write into each record.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("--ray needs Ray: pip install 'pstn[ray]'") from error

    mine = not ray.is_initialized()
    if mine:
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {"address": address}
        ray.init(log_to_driver=False, configure_logging=False, **options)
    try:
        yield Cluster(quick, device, facts)
    finally:
        if mine:
            ray.shutdown()


class Cluster:
    """Jobs in the hands of Ray, which sees to it that no more are done at a time than its machines can."""

    at_once = sys.maxsize

    def __init__(self, quick: bool, device: Accelerator, facts: Record) -> None:
        import ray
        import torch

        # As many threads as here: on a CPU the last digits depend on it.
        self.quick, self.device, self.facts, self.threads = quick, device, facts, torch.get_num_threads()
        gpus = 1 if place(device) == "cuda" else 0
        self.task = ray.remote(num_cpus=self.threads, num_gpus=gpus, max_retries=RETRIES)(_work)
        self.begun: dict[Any, Job] = {}

    def start(self, job: Job, table: Table) -> None:
        """Hand a job over."""
        if table.source is None:
            raise ValueError(f"table {table.id!r} is in no file; Ray's workers can only run tables of experiments/")
        parcels, runs = [_pack(network) for network in job.networks], str(job.networks[0].runs)
        rest = (runs, self.device, self.facts, self.threads)
        self.begun[self.task.remote(str(table.source), table.id, self.quick, job.kind, parcels, *rest)] = job

    def finish(self) -> tuple[Job, list[Record] | Exception]:
        """Wait for a job that was handed over."""
        import ray

        (first, *_), _ = ray.wait(list(self.begun))
        job = self.begun.pop(first)
        try:
            return job, ray.get(first)
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
            return job, ChildProcessError(
                f"{RETRIES + 1} workers died {job}, perhaps for want of memory; what else is trained is kept"
            )
        except ray.exceptions.RayTaskError as error:
            return job, error.as_instanceof_cause()


def _work(
    source: str,
    table_id: str,
    quick: bool,
    kind: Any,
    parcels: Sequence[Parcel],
    runs: str,
    device: Accelerator,
    facts: Record,
    threads: int,
) -> list[Record]:
    """A job, in a worker."""
    import torch

    torch.set_num_threads(threads)
    table = find(table_id, Path(source))
    table = table.sliced() if quick else table
    return Job(kind, tuple(_unpack(parcel, table, Path(runs)) for parcel in parcels)).do(device, facts)


def _pack(network: Network) -> Parcel:
    return network.name, network.key, None if network.pretrained is None else network.pretrained.name


def _unpack(parcel: Parcel, table: Table, runs: Path) -> Network:
    name, key, start = parcel
    network = _named(name, table, runs, None if start is None else _named(start, table, runs))
    if network.key != key:
        raise ValueError(
            f"{name[0]} {name[1]}, fold {name[2]}, has another key here than where the run was started ({key}): the "
            "machines differ in the table's file, the library or the data"
        )
    return network


def _named(name: Name, table: Table, runs: Path, pretrained: Network | None = None) -> Network:
    row = table.row(name[0])
    return Network(row, original(row, name[1]), name[2], runs, pretrained)
