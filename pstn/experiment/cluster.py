"""Handing a table's work to Ray. Names travel, not data: a worker opens the table's file and builds from there."""

from __future__ import annotations

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
    from pstn.experiment.engine import Executor
    from pstn.experiment.table import Table

#: How often a job whose worker was lost is given to another. It goes on from the lost one's last checkpoint.
RETRIES = 3

#: A network as it travels: its name, its key, and the name of the trained one that it starts from.
Parcel = tuple[Name, str, Name | None]


@contextmanager
def cluster(address: str, table: Table, quick: bool, device: Accelerator, facts: Record) -> Iterator[Executor]:
    """An executor that hands jobs to Ray, one task a job.

    Machines of a cluster need the same checkout, the data, and the folder of runs in common.

    Arguments:
        address: ``"local"`` for a Ray of this machine's own, or a cluster's address.
        table: The table as its file has it.
        quick: Whether its slice is run.
        device: Where to train.
        facts: What to write into each record.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("--ray needs Ray: pip install 'pstn[ray]'") from error
    import torch

    if table.source is None:
        raise ValueError(f"table {table.id!r} is in no file; Ray's workers can only run tables of experiments/")
    # As many threads as here: on a CPU the last digits depend on it.
    threads, where = torch.get_num_threads(), str(table.source)
    mine = not ray.is_initialized()
    if mine:
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {"address": address}
        ray.init(log_to_driver=False, configure_logging=False, **options)
    gpus = 1 if place(device) == "cuda" else 0
    task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(_work)

    def execute(jobs: Sequence[Job]) -> Iterator[tuple[Job, list[Record]]]:
        waiting = {}
        for job in jobs:
            parcels = [_pack(network) for network in job.networks]
            runs = str(job.networks[0].runs)
            waiting[task.remote(where, table.id, quick, job.kind, parcels, runs, device, facts, threads)] = job
        while waiting:
            (first, *_), _ = ray.wait(list(waiting))
            job = waiting.pop(first)
            try:
                records = ray.get(first)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                names = ", ".join(dict.fromkeys(network.row.name for network in job.networks))
                raise ChildProcessError(
                    f"the workers that were to {job.kind} {names} died, {RETRIES + 1} of them, perhaps for want of "
                    "memory; what else is trained is kept"
                ) from error
            yield job, records

    try:
        yield execute
    finally:
        if mine:
            ray.shutdown()


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
