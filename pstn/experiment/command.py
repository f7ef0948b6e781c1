"""``pstn reproduce``: list tables, run them, print paper against ours, write their pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from pstn.experiment.catalogue import MissingTable, find, names
from pstn.experiment.comparison import compare
from pstn.experiment.engine import results_path, run_all
from pstn.experiment.page import render
from pstn.experiment.settings import Reproduce
from pstn.experiment.table import Table
from pstn.report.table import Column
from pstn.report.table import Table as Shown


def reproduce(settings: Reproduce, console: Console, command: str = "pstn reproduce") -> None:
    """Do what the settings ask for.

    Arguments:
        settings: The settings.
        console: Where to show progress and tables.
        command: The command that was given, for the records.
    """
    tables = [find(id, settings.experiments) for id in _ids(settings.tables, settings.experiments)]
    if settings.list:
        console.print(listing(tables, settings.results).rich())
        console.print("\n".join(remarks(tables)), markup=False, highlight=False, soft_wrap=True)
        return
    known = names(settings.experiments)
    if settings.ray and settings.ray[0] in known:
        raise MissingTable(f"--ray has the address {settings.ray[0]!r}, which is a table: name tables before --ray")
    if taken := [name for name in settings.rows if name in known]:
        raise MissingTable(f"--rows has {taken[0]!r}, which is a table: name tables before --rows")
    ray = None if settings.ray is None else settings.ray[0] if settings.ray else "local"
    if not settings.render:
        if settings.device == "cuda" and ray is None and not torch.cuda.is_available():
            raise OSError("--device is cuda, and torch finds no GPU here; expected cpu or auto")
        run_all(
            tables,
            quick=settings.quick,
            device=settings.device,
            rows=settings.rows,
            runs=settings.runs,
            results=settings.results,
            jobs=settings.jobs,
            ray=ray,
            command=command,
            console=console,
        )
    for table in tables:
        comparison = compare(table.sliced() if settings.quick else table, results=settings.results)
        if settings.render and not (settings.tables or comparison.results):
            continue  # of all tables, those that have something to show
        if settings.render:
            console.print(f"wrote {render(comparison, settings.docs)}", highlight=False, soft_wrap=True)
            continue
        for shown in comparison.tables():
            console.print(shown.rich())
        lines = [*comparison.sentences(), *comparison.notes()]
        lines.append(f"records: {results_path(settings.results, comparison.table)}")
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def listing(tables: Sequence[Table], results: Path) -> Shown:
    """Every table with its state, and how many of its rows the comparison would show."""
    rows = []
    for table in tables:
        states = [row.state for row in table.rows]
        # The weakest of the rows' states is the table's, but a table of which some rows run is not without data.
        state = next((s for s in ("stand-in", "full") if s in states), "needs data")
        lacking = [row for row, s in zip(table.rows, states, strict=True) if s == "needs data"]
        state += f" ({len(lacking)} rows need data)" if lacking and state != "needs data" else ""
        # By recipe, as the page has them: a network that rows have in common is recorded under the name of one.
        done = f"{len(compare(table, results=results).results)}/{len(table.rows)}"
        rows.append([table.id, table.title, state, done])
    headings = ("what", "state", "rows measured")
    return Shown([Column("table", "left", whole=True), *(Column(name, "left") for name in headings)], rows)


def remarks(tables: Sequence[Table]) -> list[str]:
    """What tables lack and what stands in for something else, each said once, with the tables that it is said of."""
    said: dict[str, list[str]] = {}
    for table in tables:
        lacks = dict.fromkeys(f"needs {what}" for row in table.rows if (what := row.lacks))
        stands = dict.fromkeys(f"stand-in: {row.stand_in}" for row in table.rows if row.stand_in)
        for words in (*lacks, *stands):
            said.setdefault(words, []).append(table.id)
    return [f"{', '.join(ids)}: {words}" for words, ids in said.items()]


def _ids(wanted: Sequence[str], root: Path | None) -> list[str]:
    """The ids that are meant: tables, or all tables of a paper."""
    known = names(root)
    found: list[str] = []
    for name in wanted or known:
        meant = [id for id in known if name.strip("/") in (id, id.partition("/")[0])]
        if not meant:
            raise MissingTable(f"there is no table or paper {name!r}; there are {', '.join(known) or 'none'}")
        found += meant
    return list(dict.fromkeys(found))
