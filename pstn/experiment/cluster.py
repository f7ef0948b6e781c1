"""Handing a table's work to Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from pstn.experiment.parcel import Parcel, pack
from pstn.experiment.results import Record
from pstn.experiment.work import Job, place
from pstn.train.config import Accelerator

if TYPE_CHECKING:
    from pstn.experiment.table import Table

#: How often a job whose worker was lost is given to another. It goes on from the lost one's last checkpoint.
RETRIES = 3


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

        self.how = (quick, device, facts)
        gpus = 1 if place(device) == "cuda" else 0
        self.task = ray.remote(num_cpus=torch.get_num_threads(), num_gpus=gpus, max_retries=RETRIES)(Parcel.do)
        self.begun: dict[Any, Job] = {}

    def start(self, job: Job, table: Table) -> None:
        """Hand a job over."""
        self.begun[self.task.remote(pack(job, table, *self.how))] = job

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
