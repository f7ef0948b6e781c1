"""Who does the jobs: this process, or several others."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from typing import Any, Protocol, Self

import torch
from rich.progress import Progress, TaskID

from pstn.experiment.parcel import Parcel, pack
from pstn.experiment.results import Record
from pstn.experiment.settings import JOBS
from pstn.experiment.share import shared_gpu
from pstn.experiment.table import Table
from pstn.experiment.work import Job, place
from pstn.train.config import Accelerator
from pstn.train.signals import Signals

#: Seconds between two looks at what other processes report.
LOOK = 0.2
#: The process whose kernels go first where several share a GPU: it is given what all others would wait for in the end.
FIRST = 0


class Workers(Protocol):
    """Those who do jobs."""

    @property
    def at_once(self) -> int:
        """How many jobs can be begun before one is finished."""

    def start(self, job: Job, table: Table) -> None:
        """Begin a job of a table (the whole one, where a slice of it is run)."""

    def finish(self) -> tuple[Job, list[Record] | Exception]:
        """Wait for a job that was begun; what came of it, or what went wrong."""


class Here:
    """This process, one job at a time.

    Arguments:
        device: Where to train.
        facts: What to write into each record.
        progress: A display for each fleet to add a line to.
    """

    at_once = 1

    def __init__(self, device: Accelerator, facts: Record, progress: Progress) -> None:
        self.device, self.facts, self.progress = device, facts, progress

    def start(self, job: Job, table: Table) -> None:
        """Note a job."""
        self.job = job

    def finish(self) -> tuple[Job, list[Record] | Exception]:
        """Do it."""
        try:
            return self.job, self.job.do(self.device, self.facts, self.progress)
        except torch.AcceleratorError as error:
            if "out of memory" in str(error):
                return self.job, error
            raise RuntimeError(
                f"the GPU failed, which was seen first while {self.job}, and this process cannot use it any more; what "
                "was finished is kept: the same command goes on from there"
            ) from error
        except Exception as error:
            return self.job, error


class Processes:
    """Several processes, one job at a time each.

    They share a GPU as :func:`pstn.experiment.share.shared_gpu` has it. Each starts its fleets on a core of its own,
    which takes tens of seconds of Python; a GPU that fails one of them, or a process that dies, costs that one's fleet
    alone.

    Arguments:
        at_once: How many.
        quick: Whether slices of the tables are run.
        device: Where to train.
        facts: What to write into each record.
        progress: A display for each fleet to add a line to.
    """

    def __init__(self, at_once: int, quick: bool, device: Accelerator, facts: Record, progress: Progress) -> None:
        if not 1 <= at_once <= JOBS:
            raise ValueError(f"{at_once} jobs at a time; expected 1 to {JOBS}")
        self.at_once, self.how, self.progress = at_once, (quick, device, facts), progress
        self.begun: dict[Future[list[Record] | Exception], tuple[Job, int]] = {}
        self.lines: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.signals = stack.enter_context(Signals())
            self.shares = place(self.how[1]) == "cuda"
            if self.shares:
                stack.enter_context(shared_gpu())
            self.context = multiprocessing.get_context("spawn")
            self.reports: Any = self.context.Queue()  # has room for all that is not looked at yet
            self.pools = [self._pool(seat) for seat in range(self.at_once)]
            stack.callback(self._dismiss)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def start(self, job: Job, table: Table) -> None:
        """Give a job to a process that has none."""
        busy = {seat for _, seat in self.begun.values()}
        seat = next(seat for seat in range(self.at_once) if seat not in busy)
        self.begun[self.pools[seat].submit(_work, pack(job, table, *self.how))] = job, seat

    def finish(self) -> tuple[Job, list[Record] | Exception]:
        """Wait for a job that was begun."""
        while True:
            done, _ = wait(self.begun, timeout=LOOK, return_when=FIRST_COMPLETED)
            self._show()
            if self.signals.received is not None:
                self._signal(signal.SIGTERM)
                wait(self.begun)  # they save what they have, and then end by themselves
                self.begun.clear()
                self.signals.throw("stopped; what was begun is kept: the same command goes on from there")
            if done:
                break
        future = next(iter(done))
        job, seat = self.begun.pop(future)
        try:
            outcome = future.result()
        except BrokenProcessPool:
            outcome = ChildProcessError(
                f"the process that was {job} died, perhaps for want of memory; what else is trained is kept, and the "
                "same command goes on from its last checkpoint"
            )
        if isinstance(outcome, (torch.AcceleratorError, ChildProcessError)):  # it cannot go on
            self.pools[seat].shutdown(wait=False, cancel_futures=True)
            self.pools[seat] = self._pool(seat)
            if seat in self.lines:
                self.progress.remove_task(self.lines.pop(seat))
        return job, outcome

    def _pool(self, seat: int) -> ProcessPoolExecutor:
        shown = None if self.progress.console.quiet else self.reports
        others = self.at_once if self.shares else None
        return ProcessPoolExecutor(1, self.context, initializer=_begin, initargs=(seat, shown, others))

    def _signal(self, number: int) -> None:
        for pool in self.pools:
            for pid in tuple(pool._processes or ()):
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, number)

    def _dismiss(self) -> None:
        if self.begun:  # left in the middle of something: there is nobody to give results to
            self._signal(signal.SIGKILL)
        for pool in self.pools:
            pool.shutdown(cancel_futures=True)

    def _show(self) -> None:
        """Repeat on the display here what processes have shown on theirs."""
        while not self.reports.empty():
            seat, what, values = self.reports.get()
            if what == "add":
                self.lines[seat] = self.progress.add_task(**values)
            elif seat in self.lines and what == "update":
                self.progress.update(self.lines[seat], **values)
            elif seat in self.lines:
                self.progress.remove_task(self.lines.pop(seat))


class Reported(Progress):
    """A display of one line, which another process shows."""

    def __init__(self, seat: int, reports: Any) -> None:
        super().__init__(disable=True)
        self.seat, self.reports = seat, reports

    def add_task(self, description: str, **values: Any) -> TaskID:  # type: ignore[override]
        """Have a line shown."""
        self.reports.put((self.seat, "add", {"description": description, **values}))
        return TaskID(0)

    def update(self, task_id: TaskID, *, refresh: bool = False, **values: Any) -> None:
        """Have it changed."""
        self.reports.put((self.seat, "update", values))

    def remove_task(self, task_id: TaskID) -> None:
        """Have it taken away."""
        self.reports.put((self.seat, "remove", {}))


_DISPLAY: bool | Progress = False


def _begin(seat: int, reports: Any, others: int | None) -> None:
    """What a process does first; ``others`` is how many use the GPU, itself among them."""
    global _DISPLAY
    if others is not None:
        # Or each would have as many threads, and as many processes to compile in, as there are cores for all.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // others))
        # Read when the process first uses the GPU. 1 is "below normal"; there is nothing above normal.
        os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", "0" if seat == FIRST else "1")
    if reports is not None:
        reports.cancel_join_thread()  # a process may end with some of it not looked at
        _DISPLAY = Reported(seat, reports)
    # One that has no job when it is told to end cleans up after itself all the same, as it would not by default.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Ctrl-C goes to all processes of a terminal; here it comes once, from the one that gives out jobs.
    if sys.platform != "win32":
        os.setpgrp()
    if sys.platform == "linux":  # and if that one is killed, this one saves what it has and ends
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _work(parcel: Parcel) -> list[Record] | Exception:
    """A job, in a process of its own. What went wrong is returned, if it can travel, or else told in words."""
    try:
        return parcel.do(_DISPLAY)
    except Exception as error:
        try:
            return pickle.loads(pickle.dumps(error))
        except Exception:
            return RuntimeError(repr(error))
