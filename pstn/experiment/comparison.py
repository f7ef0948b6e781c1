"""The paper's figures beside ours, from the file of results alone."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch

from pstn.experiment.choice import choose
from pstn.experiment.engine import results_path
from pstn.experiment.network import plain, recipe
from pstn.experiment.ranks import Ranks, rank_sum, signed_rank, strays
from pstn.experiment.results import Record, Results
from pstn.experiment.row import Experiment, Setting, words
from pstn.experiment.student import Welch, paired, welch, within_deviation
from pstn.experiment.table import Claim
from pstn.experiment.table import Table as Rows
from pstn.metrics import Reliability
from pstn.report.table import Cell, Column, Measured, Table, figure

#: How scores are shown: words, factor, digits. Any other is shown under its own name, with three digits.
SHOWN = {
    "accuracy": ("accuracy, %", 100.0, 2),
    "nll": ("NLL", 1.0, 3),
    "ece": ("ECE", 1.0, 4),
    "ece_chance": ("ECE by chance", 1.0, 4),
    "brier": ("Brier", 1.0, 3),
    "moved_accuracy": ("accuracy on moved inputs, %", 100.0, 2),
    "gap": ("accuracy lost on moved inputs, points", 100.0, 2),
    "loss": ("test loss, squared error a pixel + w KL", 1.0, 4),
    "moved_loss": ("test loss on moved inputs", 1.0, 4),
    "error": ("squared error a pixel, observed pose", 1.0, 4),
    "moved_error": ("the same on moved inputs", 1.0, 4),
    "invariance": ("distance of twins' codes over that of pictures'", 1.0, 3),
    "pose_error": ("pose error", 1.0, 3),
    "pose_error_mod": ("ε, mod π", 1.0, 3),
    "half_turn_error": ("pose error but for half turns", 1.0, 3),
    "shift_error": ("distance of centres, pixels", 1.0, 2),
    "iou": ("IoU", 1.0, 3),
    "localised": ("localised, %", 100.0, 1),
    "pose_spread": ("pose spread after alignment", 1.0, 2),
    "slope": ("slope of predicted on applied angles", 1.0, 2),
    "numbers": ("whole numbers right, %", 100.0, 2),
    "spread": ("median spread", 1.0, 4),
    "spread_ratio": ("β of hard over easy inputs", 1.0, 3),
    "spread_correlation": ("rank correlation of spread and error", 1.0, 3),
    "variance": ("variance of μ", 1.0, 3),
    "residual_sum": ("Σ residual, 1e-5", 1e5, 2),
    "residual_max": ("largest residual, 1e-6", 1e6, 2),
    "minima": ("local minima an input", 1.0, 2),
}

#: A difference counts from this probability down.
LEVEL = 0.05
#: What becomes of a claim where there may be no difference, and there is none as large as the paper's.
SMALLER = "refuted in size"
#: And where another claim, that the two are alike, is confirmed.
AS_GOOD = "as good"


def _by_chance(bins: Sequence[Sequence[float]]) -> float:
    """That of a reliability table as it is recorded."""
    count, confidence, accuracy = torch.tensor(bins).T
    return Reliability(torch.linspace(0, 1, len(bins) + 1), confidence, accuracy, count.long()).chance


@dataclass(frozen=True)
class Result:
    """What was measured of a row."""

    row: Experiment
    setting: Setting
    """The setting that validation chose."""
    chosen: Sequence[Record]
    """The records of its networks, a fold each, those that diverged left out."""
    every: Sequence[Record]
    """The records of all networks that were trained for the row."""
    further: Sequence[Record] = ()
    """Those of further folds, by which claims alone are tested."""

    @property
    def tested(self) -> Sequence[Record]:
        """What claims are tested by."""
        return [*self.chosen, *self.further]

    @property
    def stand_in(self) -> str:
        """What its data stood in for, in words, whichever is at hand now; empty where it was the paper's."""
        return next((words for record in self.every if (words := record.get("stand_in"))), "")

    def values(self, metric: str, records: Sequence[Record] | None = None) -> tuple[float, ...]:
        """The test scores, a fold each; none where the row does not have the score, or it says nothing (NaN).

        Arguments:
            metric: The score. ``"ece_chance"`` is the ECE that the networks would have if their confidences were
                exactly right.
            records: Of which networks; the row's folds by default.
        """
        tests = [record["test"] for record in (self.chosen if records is None else records)]
        if metric == "ece_chance":
            return tuple(_by_chance(test["reliability"]) for test in tests if "reliability" in test)
        scores = (test.get(metric, math.nan) for test in tests)
        return tuple(score for score in scores if not math.isnan(score))

    def measured(self, metric: str) -> Measured | None:
        """The test scores as they are shown."""
        values = self.values(metric)
        _, factor, digits = shown(metric)
        return Measured(tuple(factor * value for value in values), digits) if values else None

    def against_paper(self, metric: str) -> Welch | None:
        """The t-test against the paper's mean and deviation, which are taken to be of as many folds as the row has."""
        ours, paper = Measured(self.values(metric) or (math.nan,)), self.row.paper.get(metric)
        if paper is None:
            return None
        return welch(ours.mean, ours.deviation, len(ours.values), *paper, self.row.folds)


@dataclass(frozen=True)
class Comparison:
    """A table of a paper with what was measured of it."""

    table: Rows
    results: Sequence[Result]
    """Of the rows that are measured, in the table's order."""
    lost: Sequence[str] = ()
    """Names of the rows whose networks have all diverged: there is nothing to measure of them."""

    @cached_property
    def by_name(self) -> dict[str, Result]:
        """The results by the rows' names."""
        return {result.row.name: result for result in self.results}

    def beside(self, metric: str) -> Table:
        """Paper, recipe as published, best under the same budget: mean ± deviation, and t-tests against the paper."""
        title, factor, digits = shown(metric)
        lines: dict[str, dict[str, Experiment]] = {}
        for row in self.table.rows:
            if row.column != "extra":
                lines.setdefault(row.line, {})[row.column] = row
        rows: list[list[Cell]] = []
        for line, columns in lines.items():
            papers = [row.paper[metric] for row in columns.values() if metric in row.paper]
            cells: list[Cell] = [line]
            cells.append(figure(factor * papers[0][0], factor * papers[0][1], digits) if papers else None)
            for column in ("published", "best"):
                result = self.by_name.get(columns[column].name) if column in columns else None
                cells.append(None if result is None else result.measured(metric))
                test = None if result is None or self.table.slice else result.against_paper(metric)
                cells.append(None if test is None else _probability(test.p).removeprefix("p ").removeprefix("= "))
            if any(cell is not None for cell in cells[1:]):
                rows.append(cells)
        headings = ("paper", "ours, as published", "p", "ours, best", "p")
        return Table([Column("", "left"), *map(Column, headings)], rows, f"{self.table.title}: {title}")

    def details(self) -> Table:
        """Every row that was measured: all its scores, the setting chosen, and what it cost."""
        columns = [Column("", "left"), *(Column(shown(metric)[0]) for metric in self.table.metrics)]
        columns += [Column("chosen", "left"), Column("parameters"), Column("networks"), Column("seconds")]
        rows: list[list[Cell]] = []
        for result in self.results:
            seconds = sum(record["seconds"] for record in result.every)
            lost = sum(record["failure"] is not None for record in result.every)
            networks = f"{len(result.every)}" + (f", {lost} diverged" if lost else "")
            scores: list[Cell] = [result.measured(metric) for metric in self.table.metrics]
            chosen, parameters = words(result.setting) or None, f"{result.every[0]['parameters']:,}"
            rows.append([result.row.label, *scores, chosen, parameters, networks, f"{seconds:.0f}"])
        devices = " and ".join(sorted({one["device"] for result in self.results for one in result.every}))
        note = "Mean ± deviation over folds; seconds of all networks together"
        return Table(columns, rows, "All rows", f"{note}, on {devices}." if devices else "")

    def claims(self) -> Table:
        """What the paper says of its rows, tested on ours."""
        rows: list[list[Cell]] = []
        for claim in self.table.claims:
            found, test = self.tested(claim)
            paper = self.in_paper(claim)
            numbers = "neither varies" if found in ("confirmed", "refuted") else None
            if test is not None:
                means = _apart(test, claim) if claim.alike else _numbers(test)
                numbers = f"{'pairs' if self.shares(claim) else 'Welch'}: {means}"
            if (ranks := self.by_rank(claim)) is not None:
                numbers = "; ".join(filter(None, [numbers, f"ranks: {_ranked(ranks)}"]))
            if found == SMALLER and test is not None and paper is not None:
                numbers = f"{numbers}; from the paper's: {_numbers(test.less(paper))}"
            if found == "confirmed" and claim.control is not None:
                fair, control = self.tested(replace(claim, better=claim.control[0], than=claim.control[1]))
                if control is not None:
                    numbers = f"{numbers}; control: {_numbers(control)}"
                    found = found if fair == "confirmed" else f"confounded: {fair} where nothing else differs"
            ranges = [_range(each, claim.metric) for each in (test, paper)]
            rows.append([claim.words, found, *ranges, numbers, self.folds(claim)])
        columns = ("claim", "here", "difference, 95 %", "in the paper", "test", "folds")
        note = (
            "Pairs decide where both rows learned from the same examples in each fold, and from others in another: "
            "such folds differ by what is in them. Welch's test decides elsewhere. Ranks decide where a network lies "
            "far from seven others or more, as one that has failed does. Refuted in size: the difference is not told "
            "from none, but from the paper's, which is larger. Rows are alike where two one-sided tests tell their "
            "difference from one as large as the test names; a claim that one of them is better then comes out as good."
        )
        return Table([Column(name, "left") for name in columns], rows, "Claims", note)

    def in_paper(self, claim: Claim) -> Welch | None:
        """The difference of two rows as the paper has it, taken to be of as many runs as the rows have folds.

        None where the paper does not say, or where a row is not the paper's: ours that does better, or other data.
        """
        figures = [
            (*result.row.paper[claim.metric], result.row.folds)
            for result in self._rows(claim)
            if claim.metric in result.row.paper and result.row.column != "best" and not result.stand_in
        ]
        return welch(*figures[0], *figures[1]) if len(figures) == 2 else None

    def apart(self, claim: Claim) -> Welch | None:
        """Welch's test of a claim."""
        if not self._rows(claim):
            return None
        a, b = (Measured(result.values(claim.metric, result.tested)) for result in self._rows(claim))
        return welch(a.mean, a.deviation, len(a.values), b.mean, b.deviation, len(b.values))

    def by_fold(self, claim: Claim) -> Welch | None:
        """The test of a claim by the differences of each fold that both rows have."""
        scores = self._pairs(claim)
        return paired(*zip(*scores, strict=True)) if scores else None

    def by_rank(self, claim: Claim) -> Ranks | None:
        """The test of a claim by ranks, where it is to decide: a network that has failed says too much in a mean.

        None where no network is far from the others, or there are too few to tell.
        """
        if claim.alike or not self._rows(claim):
            return None
        if self.shares(claim):
            differences = [0.0 if a == b else a - b for a, b in self._pairs(claim)]  # both may be infinite
            found = signed_rank(differences) if strays(differences) else None
        else:
            a, b = (result.values(claim.metric, result.tested) for result in self._rows(claim))
            found = rank_sum(a, b) if strays(a) or strays(b) else None
        return found if found is not None and found.least <= LEVEL else None

    def shares(self, claim: Claim) -> bool:
        """Whether the two rows learn from the same examples in each of their folds, which differ from fold to fold."""
        records = self._common(claim)
        if not records or len(records[0]) < min(len(result.tested) for result in self._rows(claim)):
            return False
        learned = [[json.dumps(one.get("data", [None])[0]) for one in each] for each in records]
        return learned[0] == learned[1] and len(set(learned[0])) == len(learned[0]) > 1

    def folds(self, claim: Claim) -> str | None:
        """How many folds a claim is tested by, of either row where they differ."""
        counts = dict.fromkeys(len(result.tested) for result in self._rows(claim))
        return " and ".join(map(str, counts)) or None

    def tested(self, claim: Claim) -> tuple[str, Welch | None]:
        """Whether a claim is confirmed, refuted or left open, and the test that decides.

        What is not told from a difference of none may still be told from the paper's: then that is what is refuted; or
        from one that would matter, by a claim of the table that the two are alike.
        Where neither row varies at all there is no test, and two values that differ decide. Where a network is far from
        all others, ranks decide.
        """
        both, shares = self._rows(claim), self.shares(claim)
        if not both:
            return "not run", None
        test = self.by_fold(claim) if shares else self.apart(claim)
        records = self._common(claim) if shares else [result.tested for result in both]
        scores = [result.values(claim.metric, each) for result, each in zip(both, records, strict=True)]
        a, b = (Measured(each).mean for each in scores)
        if claim.alike:
            chance = math.nan if test is None else test.apart(claim.alike)
            return "confirmed" if chance <= LEVEL else "refuted" if chance >= 1 - LEVEL / 2 else "open", test
        ahead = (a > b) == claim.more and a != b
        constant = all(len(each) > 1 and len(set(each)) == 1 for each in scores)
        certain = test is None and constant and math.isfinite(a - b) and a != b
        if (ranks := self.by_rank(claim)) is not None:
            ahead = (ranks.ahead > 0.5) == claim.more and ranks.ahead != 0.5
            sure = "confirmed" if ahead else "refuted"
            return sure if ranks.p <= LEVEL else f"open ({'ahead' if ahead else 'not ahead'} by ranks)", test
        if certain or (test is not None and test.p <= LEVEL):
            return "confirmed" if ahead else "refuted", test
        paper, side = self.in_paper(claim), 1 if claim.more else -1
        if test is not None and paper is not None and side * paper.difference > 0:
            smaller = test.less(paper)
            if smaller.p <= LEVEL and side * smaller.difference < 0:
                return SMALLER, test
        if any(self.tested(each)[0] == "confirmed" for each in self.table.claims if each.denies(claim)):
            return AS_GOOD, test
        return f"open ({'ahead' if ahead else 'not ahead'} by the means)", test

    def _rows(self, claim: Claim) -> list[Result]:
        """What was measured of the two rows of a claim; nothing unless it was of both."""
        names = (claim.better, claim.than)
        return [self.by_name[name] for name in names] if {*names} <= self.by_name.keys() else []

    def _pairs(self, claim: Claim) -> list[tuple[float, float]]:
        """The scores of both rows of a claim in each fold that both have."""
        values = [
            [result.values(claim.metric, [one]) for one in records]
            for result, records in zip(self._rows(claim), self._common(claim), strict=False)
        ]
        return [(a[0], b[0]) for a, b in zip(*values, strict=True) if a and b] if values else []

    def _common(self, claim: Claim) -> list[list[Record]]:
        """The records of the folds that both rows of a claim have, in their order."""
        each = [{one["fold"]: one for one in result.tested} for result in self._rows(claim)]
        return [[one[fold] for fold in each[0] if fold in each[1]] for one in each] if each else []

    def sentences(self) -> list[str]:
        """The comparison in words."""
        metric = self.table.metrics[0]
        near = alike = total = 0
        expected = 0.0
        for result in self.results:
            if result.row.column == "published" and metric in result.row.paper and result.values(metric):
                mean, deviation = result.row.paper[metric]
                if math.isnan(deviation):  # the paper gives none
                    continue
                total += 1
                near += abs(Measured(result.values(metric)).mean - mean) <= deviation
                expected += within_deviation(max(result.row.folds, 2), len(result.values(metric)))
                test = result.against_paper(metric)
                alike += test is not None and test.p > LEVEL
        said = [f"{len(self.results)} of {len(self.table.rows)} rows are measured."]
        if self.lost:
            said.append(f"All networks diverged, at the best of their settings: {', '.join(self.lost)}.")
        if total and not self.table.slice:
            said.append(
                f"{near} of {total} rows as published are within one deviation of the paper's mean (if the paper's own "
                f"runs were repeated, about {expected:.0f} would be), and {alike} do not differ from it by Welch's "
                f"test (p > {LEVEL})."
            )
        return said + sorted({result.stand_in for result in self.results} - {""})

    def notes(self) -> list[str]:
        """What to know beside it."""
        said = list(dict.fromkeys(f"{row.label}: {row.note}" for row in self.table.rows if row.note))
        return [*said, *([self.table.note] if self.table.note else [])]

    def tables(self) -> list[Table]:
        """All tables: one a score that the paper has, the claims, the details."""
        metrics = [m for m in self.table.metrics if any(m in row.paper for row in self.table.rows)]
        found = [self.beside(metric) for metric in metrics or self.table.metrics[:1]]
        return [*found, *([self.claims()] if self.table.claims else []), self.details()]


def compare(table: Rows, *, results: Path = Path("results")) -> Comparison:
    """What a table's file of results says, for the recipes as they are now.

    Neither data nor trained networks are needed. A row counts once it is whole: all its settings, and the folds of the
    chosen one measured on test data.

    Arguments:
        table: The table, or its slice.
        results: The folder of results.
    """
    by_recipe = {(r["recipe"], r["fold"]): r for r in Results(results_path(results, table)).records.values()}
    found, lost = [], []
    for row in table.rows if by_recipe else ():  # a recipe takes building the network: not where there is no record

        def record(by: Experiment, setting: Setting, fold: int) -> Record | None:
            return by_recipe.get((recipe(by, plain(setting)), fold))

        judge = row.trials or row
        setting = choose(judge, partial(record, judge))
        if setting is None:
            continue
        final = [record(row, setting, fold) for fold in range(row.folds)]
        if any(one is None or not (one["test"] or one["failure"]) for one in final):
            continue
        sound = [one for one in final if one is not None and not one["failure"]]
        more = [record(row, setting, fold) for fold in range(row.folds, row.folds + row.further)]
        further = [one for one in more if one is not None and one["test"]]
        cells = itertools.product(dict.fromkeys((judge, row)), row.settings(), range(row.folds + row.further))
        every = [one for cell in cells if (one := record(*cell)) is not None]
        if sound:
            found.append(Result(row, setting, sound, every, further))
        else:
            lost.append(row.name)
    return Comparison(table, found, lost)


def shown(metric: str) -> tuple[str, float, int]:
    """A score's name in words, the factor to show it by, and its digits."""
    return SHOWN.get(metric, (metric, 1.0, 3))


def _range(test: Welch | None, metric: str) -> str | None:
    """A difference as it is shown, and from where to where it is to be expected."""
    if test is None:
        return None
    _, factor, digits = shown(metric)
    middle, low, high = (f"{factor * value:+.{digits}f}" for value in (test.difference, *test.interval(1 - LEVEL)))
    return f"{middle} ({low} to {high})"


def _numbers(test: Welch | None) -> str | None:
    return None if test is None else f"t = {test.t:.2f}, {_probability(test.p)}"


def _ranked(test: Ranks) -> str:
    return f"ahead in {100 * test.ahead:.0f} % of pairs, {_probability(test.p)}"


def _apart(test: Welch, claim: Claim) -> str:
    _, factor, digits = shown(claim.metric)
    return f"apart by {factor * claim.alike:.{digits}f} or more: {_probability(test.apart(claim.alike))}"


def _probability(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
