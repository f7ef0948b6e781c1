"""A table of a paper: its rows, what the paper claims of them, the figures to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstn.experiment.row import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How many rows a quick look takes, where the table does not say which.
QUICK_ROWS = 6


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that says that one row is better than another, or that the two are alike.

    Arguments:
        words: The claim.
        better: The name of the row that is said to be better.
        than: The name of the other.
        metric: By which score.
        more: Whether more of it is better.
        alike: For a claim that neither is better: how far apart the means of rows that are alike may be, in the score's
            own unit. A difference that is not told from none does not show that; an interval this small does.
        control: The names of two rows that differ in what the claim is about and in nothing else. A claim that holds
            where its control does not is confounded.
    """

    words: str
    better: str
    than: str
    metric: str = "accuracy"
    more: bool = True
    alike: float = 0.0
    control: tuple[str, str] | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of all rows that it speaks of."""
        return (self.better, self.than, *(self.control or ()))

    def denies(self, other: Claim) -> bool:
        """Whether it says of the same rows and score that neither is better, where the other says that one is."""
        same = {self.better, self.than} == {other.better, other.than} and self.metric == other.metric
        return same and bool(self.alike) and not other.alike


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a paper.

    Arguments:
        id: Paper and table, as the file is called: ``"pstn22/table2"``.
        title: What it is about.
        rows: The rows.
        metrics: The scores to show; the first is the one that is compared with the paper.
        claims: What the paper says of its rows, to be tested.
        figures: Functions that draw from the rows' results, by the name of the picture; None where there is nothing to
            draw.
        quick: Names of the rows that a quick look takes; the first few by default.
        fleet: How many networks are trained together at most. Their last digits depend on it.
        note: What to know beside the table.
    """

    id: str
    title: str
    rows: Sequence[Experiment]
    metrics: Sequence[str] = ("accuracy", "nll", "ece")
    claims: Sequence[Claim] = ()
    figures: Mapping[str, Callable[[Sequence[Any]], Figure | None]] = field(default_factory=dict)
    quick: Sequence[str] = ()
    fleet: int = 100
    note: str = ""
    source: Path | None = None
    """The folder of experiments that the table was found in."""
    slice: bool = False
    """Whether it is cut down for a quick look, which the paper's figures are not to be held against."""

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        twice = sorted({name for name in names if names.count(name) > 1})
        unknown = {*self.quick, *(name for claim in self.claims for name in claim.rows)} - set(names)
        if not names or twice or unknown:
            raise ValueError(
                f"table {self.id!r} has {len(names)} rows, of the same name {twice}, and speaks of {sorted(unknown)}, "
                "which it does not have; expected rows with names of their own"
            )

    def row(self, name: str) -> Experiment:
        """The row of a name, be it only one that comes before another."""
        for row in self.every():
            if row.name == name:
                return row
        raise KeyError(f"{self.id} has no row {name!r}; it has {', '.join(row.name for row in self.rows)}")

    def every(self) -> list[Experiment]:
        """The rows with those that come before them, in order."""
        return list({each.name: each for row in self.rows for each in row.chain()}.values())

    def sliced(self) -> Table:
        """The table cut down for a quick look, under another id, so that its results stay apart."""
        names = self.quick or [row.name for row in self.rows[:QUICK_ROWS]]
        rows = [row.sliced() for row in self.rows if row.name in names]
        note = "A quick look at a slice of the table: it shows that all runs, and nothing about the paper."
        return replace(self, id=f"{self.id}-quick", rows=rows, claims=(), quick=(), note=note, slice=True)
