"""Running a table: train what is missing, choose on validation data, measure the choice on test data, record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pstn.experiment.catalogue import MissingTable
from pstn.experiment.choice import choose
from pstn.experiment.network import Network, plain
from pstn.experiment.results import Record, Results
from pstn.experiment.row import Experiment, Setting
from pstn.experiment.table import Table
from pstn.experiment.work import Job, fleets, place
from pstn.train.config import Accelerator
from pstn.train.signals import Signals

Executor = Callable[[Sequence[Job]], Iterator[tuple[Job, list[Record]]]]


def run(
    table: Table,
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
) -> Results:
    """Train, choose, measure and record what a table still lacks; a second run does nothing.

    Everything that takes long is kept as soon as it is there: a fleet that is training in its checkpoints, a trained
    network in ``runs``, a finished row in ``results``. A run that was stopped, however that was, goes on from there
    and ends with the same numbers.

    Arguments:
        table: The table.
        quick: Run a slice of it, recorded apart.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        rows: Names of the rows to run, or patterns such as ``"cnn-*"``; all by default.
        runs: The folder to keep trained networks in. What two tables have in common there is trained once.
        results: The folder to record in, as ``<paper>/<table>.jsonl``.
        jobs: How many fleets to train at a time. Small networks leave a GPU idle between their kernels, however many
            are stacked: several fleets fill it. The numbers are the same.
        ray: Hand the work to Ray: ``"local"``, or a cluster's address, whose machines share the folder ``runs``.
        command: The command that was given, for the records.
        console: Where to show progress; nowhere by default.

    Returns:
        The records.
    """
    whole, console = table, console or Console(quiet=True)
    table = table.sliced() if quick else table
    plan = Plan(table, _wanted(table, rows), runs.absolute(), Results(results_path(results, table)))
    for name, what in plan.lacking.items():
        console.print(f"{table.id}: {name} is left out: {what}", markup=False, highlight=False, soft_wrap=True)
    facts = {"command": command}
    with _progress(console) as progress:
        if ray is None:
            _drive(plan, _here(device, facts, progress, jobs), progress, console)
        else:
            from pstn.experiment.cluster import cluster

            with cluster(ray, whole, quick, device, facts) as executor:
                _drive(plan, executor, progress, console)
    return plan.results


def results_path(results: Path, table: Table) -> Path:
    """The file of a table's results."""
    return results / f"{table.id}.jsonl"


class Plan:
    """What a table has and what it lacks.

    Arguments:
        table: The table.
        rows: The rows to run.
        runs: The folder of trained networks.
        results: The table's records.
    """

    def __init__(self, table: Table, rows: Sequence[Experiment], runs: Path, results: Results) -> None:
        self.table, self.runs, self.results = table, runs, results
        self.lacking = {row.name: what for row in rows if (what := row.lacks)}
        self.rows: dict[str, Experiment] = {}
        for row in rows:
            if row.name not in self.lacking:
                needed = row.needs
                while needed is not None:
                    self.rows.setdefault(needed.name, needed)
                    needed = needed.needs
                self.rows[row.name] = row
        self.networks: dict[tuple[str, str, int], Network] = {}
        self.fresh: dict[str, Record] = {}  # what is trained but not yet recorded

    def network(self, row: Experiment, setting: Setting, fold: int) -> Network:
        """The network of a row at a setting and a fold."""
        name = (row.name, plain(setting), fold)
        if name not in self.networks:
            pretrained = None
            if row.needs is not None:
                chosen = self.chosen(row.needs)
                assert chosen is not None, f"{row.needs.name} comes before {row.name}"
                pretrained = self.network(row.needs, chosen, fold % row.needs.folds)
            self.networks[name] = Network(row, setting, fold, self.runs, pretrained)
        return self.networks[name]

    def record(self, network: Network) -> Record | None:
        """What is known of a network: its record in the results, or what training left; None if it is not trained."""
        key = network.key
        if key not in self.fresh and key not in self.results.records:
            found = network.record()
            if found is None:
                return None
            self.fresh[key] = found
        return self.fresh.get(key) or self.results.records[key]

    def chosen(self, row: Experiment) -> Setting | None:
        """The setting that validation picks; None as long as networks are missing."""
        return choose(row, lambda setting, fold: self.record(self.network(row, setting, fold)))

    def todo(self, row: Experiment) -> tuple[str, list[Network]]:
        """What comes next for a row: networks to ``"train"``, some to ``"test"``, or just ``"wait"`` or ``"done"``."""
        if row.needs is not None and self.todo(row.needs)[0] != "done":
            return "wait", []
        tuning = [self.network(row, setting, fold) for setting in row.settings() for fold in range(row.tuned)]
        if missing := [network for network in tuning if self.record(network) is None]:
            return "train", self._needed(missing)
        final = self._final(row)
        if missing := [network for network in final if self.record(network) is None]:
            return "train", self._needed(missing)
        untested = [network for network in final if not (self._of(network)["test"] or self._of(network)["failure"])]
        # Chosen by what the results say, but the weights are gone: there is no way but to train them again.
        if missing := [network for network in untested if not network.path.exists()]:
            return "train", self._needed(missing)
        return ("test", untested) if untested else ("done", [])

    def settle(self, row: Experiment) -> None:
        """Record the networks of a finished row that are not recorded yet."""
        tuning = [self.network(row, setting, fold) for setting in row.settings() for fold in range(row.tuned)]
        keys = dict.fromkeys(network.key for network in (*tuning, *self._final(row)))
        if new := [self.fresh.pop(key) for key in keys if key in self.fresh]:
            self.results.add(new)

    def note(self, record: Mapping[str, Any]) -> None:
        """Take in what a worker found out. Weights that were lost and trained again change nothing on record."""
        key = record["key"]
        if key in self.results.records and not record["test"]:
            return
        self.fresh[key] = {**self.results.records.get(key, {}), **self.fresh.get(key, {}), **record}

    def _needed(self, networks: list[Network]) -> list[Network]:
        """The networks, or those of them that must be trained again first because these start from them."""
        gone = [n.pretrained for n in networks if n.pretrained is not None and not n.pretrained.path.exists()]
        return self._needed(list(dict.fromkeys(gone))) if gone else networks

    def _final(self, row: Experiment) -> list[Network]:
        setting = self.chosen(row)
        assert setting is not None
        return [self.network(row, setting, fold) for fold in range(row.folds)]

    def _of(self, network: Network) -> Record:
        found = self.record(network)
        assert found is not None
        return found


def _drive(plan: Plan, execute: Executor, progress: Progress, console: Console) -> None:
    """Do what is to be done until nothing is."""
    bar = progress.add_task(plan.table.id, total=None, status="looking at what is there")
    while True:
        train: list[Network] = []
        jobs: list[Job] = []
        for row in plan.rows.values():
            kind, networks = plan.todo(row)
            if kind == "train":
                train += networks
            elif kind == "test":
                jobs.append(Job("test", tuple(networks)))
            elif kind == "done":
                plan.settle(row)
        known = {network.key: network for network in plan.networks.values()}
        jobs = [*jobs, *fleets(list(dict.fromkeys(train)), plan.table.fleet, known)]
        if not jobs:
            return
        count, done = sum(len(job.networks) for job in jobs), 0
        progress.update(bar, total=count, completed=0, status=f"0/{count} networks")
        for job, records in execute(jobs):
            for record in records:
                plan.note(record)
            done += len(records)
            verb = "trained" if job.kind == "train" else "tested"
            progress.update(bar, completed=done, status=f"{done}/{count} networks {verb}")
            if not console.is_terminal:
                names = ", ".join(dict.fromkeys(network.row.name for network in job.networks))
                console.print(f"{plan.table.id}: {verb} {len(records)} of {names} ({done}/{count})", highlight=False)


def _here(device: Accelerator, facts: Record, progress: Progress, at_once: int) -> Executor:
    """An executor that does the jobs in this process, so many at a time."""

    def work(job: Job) -> list[Record]:
        cuda = place(device) == "cuda"
        with torch.cuda.stream(torch.cuda.Stream()) if cuda else nullcontext():
            return job.do(device, facts, progress)

    def one_by_one(jobs: Sequence[Job]) -> Iterator[tuple[Job, list[Record]]]:
        for job in jobs:
            yield job, job.do(device, facts, progress)

    def side_by_side(jobs: Sequence[Job]) -> Iterator[tuple[Job, list[Record]]]:
        with Signals() as signals, ThreadPoolExecutor(at_once) as pool:
            found = {pool.submit(work, job): job for job in jobs}
            try:
                for future in as_completed(found):
                    yield found[future], future.result()
            except BaseException:  # those that run see the signal too, and save what they have
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            if signals.received is not None:
                signals.throw("stopped between two jobs")

    return one_by_one if at_once == 1 else side_by_side


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _wanted(table: Table, rows: Sequence[str]) -> list[Experiment]:
    """The rows whose names fit any of the patterns."""
    found = [row for row in table.rows if not rows or any(fnmatchcase(row.name, pattern) for pattern in rows)]
    if not found:
        known = ", ".join(row.name for row in table.rows)
        raise MissingTable(f"{table.id} has no row {' or '.join(rows)}; it has {known}")
    return found
