"""Running tables: train what is missing, choose on validation data, measure the choice on test data, record."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pstn.experiment.catalogue import MissingTable
from pstn.experiment.lines import Lines
from pstn.experiment.plan import Plan
from pstn.experiment.results import Results
from pstn.experiment.row import Experiment
from pstn.experiment.table import Table
from pstn.experiment.work import Job
from pstn.experiment.workers import Here, Processes, Workers
from pstn.train.config import Accelerator


def run(table: Table, **options: Any) -> Results:
    """Run one table; :func:`run_all` with its arguments.

    Arguments:
        table: The table.
        options: As for :func:`run_all`.

    Returns:
        The records.
    """
    return run_all([table], **options)[0]


def run_all(
    tables: Sequence[Table],
    *,
    quick: bool = False,
    device: Accelerator = "auto",
    rows: Sequence[str] = (),
    runs: Path = Path("runs"),
    results: Path = Path("results"),
    jobs: int = 1,
    ray: str | None = None,
    command: str = "",
    console: Console | None = None,
) -> list[Results]:
    """Train, choose, measure and record what tables still lack; a second run does nothing.

    Everything that takes long is kept as soon as it is there: a fleet that is training in its checkpoints, a trained
    network in ``runs``, a finished row in ``results``. A run that was stopped, however that was, goes on from there
    and ends with the same numbers.

    Arguments:
        tables: The tables. Their work is one heap, from which each free worker takes what takes longest.
        quick: Run slices of them, recorded apart.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        rows: Names of the rows to run, or patterns such as ``"cnn-*"``, for one table alone ``"pstn22/table2:cnn-*"``;
            all by default.
        runs: The folder to keep trained networks in. What two tables have in common there is trained once.
        results: The folder to record in, as ``<paper>/<table>.jsonl``.
        jobs: How many fleets to train at a time, each in a process of its own. Small networks leave a GPU idle between
            their kernels, however many are stacked: several fleets fill it. The numbers are the same.
        ray: Hand the work to Ray: ``"local"``, or a cluster's address, whose machines share the folder ``runs``.
        command: The command that was given, for the records.
        console: Where to show progress; nowhere by default.

    Returns:
        The records of each.
    """
    console = console or Console(quiet=True)
    sources = {table.sliced() if quick else table: table for table in tables}
    plans: dict[Plan, Table] = {}
    for table, wanted in _wanted(list(sources), rows).items():
        plan = Plan(table, wanted, runs.absolute(), Results(results_path(results, table)))
        plans[plan] = sources[table]
        for name, what in plan.lacking.items():
            console.print(f"{table.id}: {name} is left out: {what}", markup=False, highlight=False, soft_wrap=True)
    facts = {"command": command}
    with _progress(console) as progress:
        if ray is None and jobs == 1:
            _drive(plans, Here(device, facts, progress), progress, console)
        elif ray is None:
            with Processes(jobs, quick, device, facts, progress) as workers:
                _drive(plans, workers, progress, console)
        else:
            from pstn.experiment.cluster import cluster

            with cluster(ray, quick, device, facts) as workers:
                _drive(plans, workers, progress, console)
    return [plan.results for plan in plans]


def results_path(results: Path, table: Table) -> Path:
    """The file of a table's results."""
    return results / f"{table.id}.jsonl"


def _drive(plans: dict[Plan, Table], workers: Workers, progress: Progress, console: Console) -> None:
    """Hand out work until there is none."""
    waiting: list[tuple[Plan, Job]] = []
    running: dict[Job, Plan] = {}
    failures: list[Exception] = []
    going = list(plans)  # the tables that nothing is wrong with
    taken: set[Path] = set()  # the networks that somebody trains or has trained
    shown = {plan: Bar(plan.table.id, progress, console) for plan in plans}
    while True:
        for plan in tuple(going):
            try:
                found = plan.jobs()
            except Exception as error:  # of what is kept, or of the table
                failures.append(error)
                if len(plans) > 1:  # of one table alone, it is what the run ends with
                    console.print(f"{plan.table.id} is left: {error}", markup=False, highlight=False, soft_wrap=True)
                going.remove(plan)
                continue
            while plan.left:
                names, lack = plan.left.pop()
                failures.append(lack)
                words = f"{plan.table.id}: without {', '.join(names)}: {lack}"
                console.print(words, markup=False, highlight=False, soft_wrap=True)
            waiting += [(plan, job) for job in found]
            for job in found:
                shown[plan].expect(job)
        # Tests first: they are short, and what they finish is recorded. Then, where there are several workers, what
        # takes longest as far as can be told, with all that waits for it, or its end is waited for by all others.
        several = workers.at_once > 1
        waiting.sort(
            key=lambda pair: (pair[1].kind == "test", several and pair[0].urgency(pair[1])), reverse=True
        )  # fmt: skip
        news = False
        for plan, job in list(waiting):
            if len(running) == workers.at_once:
                break
            waiting.remove((plan, job))
            paths = {network.path for network in job.networks} if job.kind == "train" else set()
            if paths & taken:  # by another table, which has the same network: look again once there is news
                plan.close(job, [])
                shown[plan].expect(job, -1)
                news |= any(plan.record(network) for network in job.networks)
                continue
            taken |= paths
            running[job] = plan
            workers.start(job, plans[plan])
        if not running:
            if news:
                continue
            break
        job, outcome = workers.finish()
        plan = running.pop(job)
        if isinstance(outcome, Exception):  # the rest goes on; what came to grief is not tried again
            failures.append(outcome)
            console.print(f"{plan.table.id}: {job} failed: {outcome!r}", markup=False, highlight=False, soft_wrap=True)
            continue
        plan.close(job, outcome)
        shown[plan].count(job)
    if failures:
        raise failures[0]


class Bar:
    """How far a table is, as a line that is updated or, where there is no terminal, as lines."""

    def __init__(self, name: str, progress: Progress, console: Console) -> None:
        self.name, self.progress, self.console = name, progress, console
        self.done = self.total = 0
        # without a terminal, networks are told of one by one
        shown = console.is_terminal
        self.task: TaskID | None = (
            progress.add_task(name, total=None, status="looking at what is there") if shown else None
        )

    def expect(self, job: Job, more: int = 1) -> None:
        """There is more to do, or less."""
        self.total += more * len(job.networks)
        self._show()

    def count(self, job: Job) -> None:
        """A job is done."""
        self.done += len(job.networks)
        self._show()
        if not self.console.is_terminal:
            self.console.print(f"{self.name}: {job} done ({self.done}/{self.total})", highlight=False)

    def _show(self) -> None:
        status = f"{self.done}/{self.total} networks"
        if self.task is not None:
            self.progress.update(self.task, total=self.total, completed=self.done, status=status)


def _progress(console: Console) -> Progress:
    if not console.is_terminal:
        return Lines(console)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        console=console,
    )


def _wanted(tables: Sequence[Table], rows: Sequence[str]) -> dict[Table, list[Experiment]]:
    """The tables with those of their rows whose names fit any of the patterns."""
    unknown = [one for one in rows if not any(_fits(one, table, row) for table in tables for row in table.rows)]
    if unknown:
        known = "; ".join(f"{table.id} has {', '.join(row.name for row in table.rows)}" for table in tables)
        raise MissingTable(f"there is no row {' or '.join(unknown)}: {known}")
    found = {t: [row for row in t.rows if not rows or any(_fits(one, t, row) for one in rows)] for t in tables}
    return {table: fitting for table, fitting in found.items() if fitting}


def _fits(pattern: str, table: Table, row: Experiment) -> bool:
    """Whether a row is meant by a pattern of names, which may begin with a table's."""
    name = f"{table.id.removesuffix('-quick')}:{row.name}"
    return fnmatchcase(name, pattern if ":" in pattern else f"*:{pattern}")
