"""Who does the jobs: this process, one or several at a time."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from typing import Protocol, Self

import torch
from rich.progress import Progress

from pstn.experiment.results import Record
from pstn.experiment.settings import JOBS
from pstn.experiment.table import Table
from pstn.experiment.work import Job, place
from pstn.train.config import Accelerator
from pstn.train.fleet import Fleet
from pstn.train.signals import Signals

#: Seconds after which a thread that runs Python lets others have a turn. By Python's own 5 ms, a fleet that is being
#: recorded would keep every step of all others waiting for twenty times as long as it takes.
TURN = 1e-4


class Workers(Protocol):
    """Those who do jobs."""

    @property
    def at_once(self) -> int:
        """How many jobs can be begun before one is finished."""

    def start(self, job: Job, table: Table) -> None:
        """Begin a job of a table (the whole one, where a slice of it is run)."""

    def finish(self) -> tuple[Job, list[Record] | Exception]:
        """Wait for a job that was begun; what came of it, or what went wrong."""


class Threads:
    """Workers in this process: one, which is this thread, or several, each a thread with a stream of its own on a GPU.

    Arguments:
        at_once: How many.
        device: Where to train.
        facts: What to write into each record.
        progress: A display for each fleet to add a line to.
    """

    def __init__(self, at_once: int, device: Accelerator, facts: Record, progress: Progress) -> None:
        if not 1 <= at_once <= JOBS:
            raise ValueError(f"{at_once} jobs at a time; expected 1 to {JOBS}")
        self.at_once, self.device, self.facts, self.progress = at_once, device, facts, progress
        if at_once > 1:  # as many queues as a GPU has, unless it is in use already: by default, streams share eight
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.own = threading.local()
        self.begun: dict[Future[list[Record] | Exception], Job] = {}
        self.job: Job | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.at_once > 1:
                self.signals = stack.enter_context(Signals())
                self.pool = stack.enter_context(ThreadPoolExecutor(self.at_once))
                Fleet.at_once = self.at_once
                stack.callback(setattr, Fleet, "at_once", 1)
                stack.callback(sys.setswitchinterval, sys.getswitchinterval())
                sys.setswitchinterval(TURN)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()  # waits for those that run; they have seen the signal too, and save what they have

    def start(self, job: Job, table: Table) -> None:
        """Begin a job."""
        if self.at_once == 1:
            self.job = job
        else:
            self.begun[self.pool.submit(self._work, job)] = job

    def finish(self) -> tuple[Job, list[Record] | Exception]:
        """Wait for a job that was begun."""
        if self.job is not None:
            job, self.job = self.job, None
            return job, self._work(job)
        (future, *_), _ = wait(self.begun, return_when=FIRST_COMPLETED)
        job, found = self.begun.pop(future), future.result()
        if self.signals.received is not None:
            self.signals.throw("stopped between two jobs")
        return job, found

    def _work(self, job: Job) -> list[Record] | Exception:
        with torch.cuda.stream(self._stream()) if self.at_once > 1 and place(self.device) == "cuda" else nullcontext():
            try:
                return job.do(self.device, self.facts, self.progress)
            except Exception as error:
                return error

    def _stream(self) -> torch.cuda.Stream:
        """The stream of this thread, the same for all of its jobs: torch has no more than :data:`JOBS` and one."""
        if not hasattr(self.own, "stream"):
            self.own.stream = torch.cuda.Stream()
        return self.own.stream
