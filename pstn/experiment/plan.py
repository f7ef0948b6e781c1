"""What a table has, what it lacks, and what can be done about it next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pstn.experiment.choice import choose
from pstn.experiment.network import DataError, Network, plain
from pstn.experiment.results import Record, Results
from pstn.experiment.row import Experiment, Setting
from pstn.experiment.table import Table
from pstn.experiment.work import Job, fleets

#: What a record says of where and when its network was trained.
FACTS = ("command", "started", "versions", "device", "commit", "seconds")


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
                self.rows |= {each.name: each for each in row.chain()}
        self.claimed = {name for claim in table.claims for name in claim.rows}
        self.trials = {row.trials.name for row in self.rows.values() if row.trials is not None}
        self.costs: dict[str, float] = {}
        self.planned: set[str] = set()  # the keys of networks that are handed out to be trained or tested
        self.networks: dict[tuple[str, str, int], Network] = {}
        self.fresh: dict[str, Record] = {}  # what is trained but not yet recorded
        self.left: list[tuple[list[str], DataError]] = []  # rows that are left out for want of their data

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
        judge = row.trials or row
        return choose(judge, lambda setting, fold: self.record(self.network(judge, setting, fold)))

    def todo(self, row: Experiment) -> tuple[str, list[Network]]:
        """What comes next for a row: networks to ``"train"``, some to ``"test"``, or just ``"wait"`` or ``"done"``."""
        before = [each for each in (row.needs, row.trials) if each is not None]
        if any(self.todo(each)[0] != "done" for each in before):
            return "wait", []
        if missing := [network for network in self._tuning(row) if self.record(network) is None]:
            return "train", self._needed(missing)
        if row.name in self.trials:  # they are to choose by, not to be measured
            return "done", []
        final = self._final(row)
        if missing := [network for network in final if self.record(network) is None]:
            return "train", self._needed(missing)
        untested = [network for network in final if not (self._of(network)["test"] or self._of(network)["failure"])]
        # Chosen by what the results say, but the weights are gone: there is no way but to train them again.
        if missing := [network for network in untested if not network.path.exists()]:
            return "train", self._needed(missing)
        return ("test", untested) if untested else ("done", [])

    def jobs(self) -> list[Job]:
        """What can be begun now and has not been handed out before; finished rows are recorded.

        Networks that become due together are sorted into fleets together, so that how fast each fleet is trained does
        not decide on its company.
        """
        train: list[Network] = []
        tests: list[Job] = []
        for row in tuple(self.rows.values()):
            if row.name not in self.rows:  # left out with another
                continue
            try:
                kind, networks = self.todo(row)
            except DataError as error:
                self._leave(row, error)
                continue
            if kind == "done":
                self.settle(row)
            fresh = [network for network in networks if network.key not in self.planned]
            if kind == "train":
                train += fresh
            elif kind == "test" and fresh:
                tests.append(Job("test", tuple(fresh)))
        known = {network.key: network for network in self.networks.values()}
        found = [*tests, *fleets(list(dict.fromkeys(train)), self.table.fleet, known)]
        self.planned |= {network.key for job in found for network in job.networks}
        return found

    def urgency(self, job: Job) -> float:
        """A rough measure of how long it takes from a job's beginning until all is done that waits for it."""
        return job.cost + max(map(self._behind, {network.row.name: network.row for network in job.networks}.values()))

    def close(self, job: Job, records: Sequence[Record]) -> None:
        """Take in what came of a job."""
        self.planned -= {network.key for network in job.networks}
        for record in records:
            self.note(record)

    def settle(self, row: Experiment) -> None:
        """Record the networks of a finished row that are not recorded yet."""
        final = [] if row.name in self.trials else self._final(row)
        keys = dict.fromkeys(network.key for network in (*self._tuning(row), *final))
        if new := [self.fresh.pop(key) for key in keys if key in self.fresh]:
            self.results.add(new)

    def note(self, record: Mapping[str, Any]) -> None:
        """Take in what a worker found out.

        Where weights were lost and trained again, what the choice was made by stays on record. But scores on test data
        are those of the weights that were tested, and so is what is said of where and when they were trained.
        """
        key = record["key"]
        known = self.results.records.get(key, {})
        if known and not record["test"]:
            return
        self.fresh[key] = {**known, **self.fresh.get(key, {}), **record}
        if known and not known["test"]:
            trained = next(network for network in self.networks.values() if network.key == key).record()
            if trained is not None and trained["started"] != known["started"]:
                facts, first = ({name: each[name] for name in FACTS} for each in (trained, known))
                self.fresh[key] |= {**facts, "chosen_by": first}

    def _behind(self, row: Experiment) -> float:
        """How long the longest chain of rows takes that wait for a row, one after the other."""
        after = [each for each in self.rows.values() if row in (each.needs, each.trials)]
        return max((self._cost(each) + self._behind(each) for each in after), default=0.0)

    def _cost(self, row: Experiment) -> float:
        """What it costs to train a row's networks, as a job's cost."""
        if row.name not in self.costs:
            count = row.folds if row.trials is not None else len(row.settings()) * row.tuned
            try:
                self.costs[row.name] = Job("train", (Network(row, row.settings()[0], 0, self.runs),) * count).cost
            except DataError:  # which is said when it is wanted
                self.costs[row.name] = 0.0
        return self.costs[row.name]

    def _leave(self, row: Experiment, error: DataError) -> None:
        """Leave out a row whose data cannot be had, and those that want the same data or start from such a row."""
        left = [name for name, one in self.rows.items() if any(each.data == row.data for each in one.chain())]
        self.left.append((left, error))
        self.rows = {name: one for name, one in self.rows.items() if name not in left}
        self.networks = {name: network for name, network in self.networks.items() if name[0] not in left}

    def _needed(self, networks: list[Network]) -> list[Network]:
        """The networks, or those of them that must be trained again first because these start from them."""
        gone = [n.pretrained for n in networks if n.pretrained is not None and not n.pretrained.path.exists()]
        return self._needed(list(dict.fromkeys(gone))) if gone else networks

    def _tuning(self, row: Experiment) -> list[Network]:
        """The networks that a row's setting is chosen by, and that are its own."""
        if row.trials is not None:
            return []
        return [self.network(row, setting, fold) for setting in row.settings() for fold in range(row.tuned)]

    def _final(self, row: Experiment) -> list[Network]:
        setting = self.chosen(row)
        assert setting is not None
        folds = row.folds + (row.further if row.name in self.claimed else 0)
        return [self.network(row, setting, fold) for fold in range(folds)]

    def _of(self, network: Network) -> Record:
        found = self.record(network)
        assert found is not None
        return found
