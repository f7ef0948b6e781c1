"""Processes that train a fleet each, and the display of how far they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pstn.demo.fleet import Fleet, muster
from pstn.demo.job import Job
from pstn.demo.models import KINDS

#: Seconds between two looks at the processes.
LOOK_EVERY = 0.2

#: In a worker: how many steps each job has behind it, shared with the process that asked.
_steps: Any = None


class Crew:
    """A context that has networks trained by processes of one thread each, and shows a bar a kind of network.

    On leaving by an exception, Ctrl-C included, the processes are told to stop: each writes a checkpoint first.

    Arguments:
        workers: How many processes.
        planned: How many networks of each kind will be asked for, by the kind's name.
        steps: How many steps each takes.
        console: Where to show the progress; off a terminal, a line a finished network.
    """

    def __init__(self, workers: int, planned: dict[str, int], steps: int, console: Console) -> None:
        self.workers, self.steps, self.console = workers, steps, console
        context = multiprocessing.get_context("spawn")
        self.done = context.Array("l", sum(planned.values()), lock=False)
        self.jobs: list[Job] = []
        self.executor = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(self.done,))
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}", justify="right"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.planned = planned
        self.bars: dict[str, TaskID] = {
            name: self.progress.add_task(KINDS[name].label, total=count * steps, status=f"0/{count}")
            for name, count in planned.items()
        }
        cost = sum(KINDS[name].cost * count * steps for name, count in planned.items())
        self.whole = self.progress.add_task("all", total=cost, status="")

    def __enter__(self) -> Crew:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        if kind is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
        self.executor.shutdown()

    def train(self, jobs: Sequence[Job]) -> None:
        """Train the networks that are not trained yet, in fleets."""
        places = {job: place for place, job in enumerate(jobs, len(self.jobs))}
        self.jobs += jobs
        for job in jobs:
            self.done[places[job]] = self.steps if job.trained else 0
        todo = {}
        for fleet in muster(jobs, self.workers):
            fresh = fleet.untrained
            todo[self.executor.submit(_train, fleet, [places[job] for job in fresh])] = fresh
        self._await(todo)

    def test(self, jobs: Sequence[Job]) -> None:
        """Test the networks that are not tested yet."""
        self._await({self.executor.submit(Job.test, job): () for job in jobs if not job.tested})

    def name(self, kind: str, words: str) -> None:
        """Change what the bar of a kind is called."""
        self.progress.update(self.bars[kind], description=words)

    def _await(self, todo: dict[Future[None], tuple[Job, ...]]) -> None:
        """Wait for the futures; off a terminal, say which jobs are trained with each."""
        waiting = set(todo)
        self._show()
        while waiting:
            finished, waiting = wait(waiting, LOOK_EVERY, FIRST_COMPLETED)
            for future in finished:
                future.result()
                for job in () if self.console.is_terminal else todo[future]:
                    scores = job.result()["validation"]
                    self.console.print(f"trained {job.label}: validation accuracy {scores['accuracy']:.1%}")
            self._show()

    def _show(self) -> None:
        behind = dict.fromkeys(self.bars, 0)
        finished = dict.fromkeys(self.bars, 0)
        for job, steps in zip(self.jobs, self.done, strict=False):
            behind[job.kind] += steps
            finished[job.kind] += steps >= self.steps
        for name, bar in self.bars.items():
            self.progress.update(bar, completed=behind[name], status=f"{finished[name]}/{self.planned[name]}")
        self.progress.update(self.whole, completed=sum(KINDS[name].cost * steps for name, steps in behind.items()))


def _begin(steps: Any) -> None:
    """What a worker does first."""
    import torch

    global _steps
    _steps = steps
    torch.set_num_threads(1)
    # Ctrl-C reaches every process of the terminal; only the first decides, and tells the others by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the display has the terminal)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """End this process when the one that started it has ended, however that was."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _train(fleet: Fleet, places: Sequence[int]) -> None:
    """Train a fleet in a worker, and note at these places how far it is."""

    def tell(step: int) -> None:
        for place in places:
            _steps[place] = step

    try:
        fleet.train(tell)
    except SystemExit as stop:  # told to stop; the checkpoint is written, and the executor would start the next fleet
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    tell(fleet.jobs[0].demo.steps)  # one that was stopped after its last step takes none
