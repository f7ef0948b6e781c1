"""Experiments as data: a table's rows, running them in fleets here or on Ray, results, and paper against ours."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pstn.experiment.catalogue import MissingTable, find, names
    from pstn.experiment.choice import choose
    from pstn.experiment.comparison import Comparison, Result, compare
    from pstn.experiment.engine import run, run_all
    from pstn.experiment.figures import against, curves, histograms, reliability_curves, scatter
    from pstn.experiment.page import render
    from pstn.experiment.results import Results, ResultsError
    from pstn.experiment.row import Experiment, Split, classified, listed
    from pstn.experiment.student import Welch, welch
    from pstn.experiment.table import Claim, Table

#: Where each name lives. They are imported when asked for: `pstn --help` reads this package's settings and no more.
_HOMES = {
    "choice": ("choose",),
    "comparison": ("Comparison", "Result", "compare"),
    "engine": ("run", "run_all"),
    "figures": ("against", "curves", "histograms", "reliability_curves", "scatter"),
    "catalogue": ("MissingTable", "find", "names"),
    "page": ("render",),
    "results": ("Results", "ResultsError"),
    "row": ("Experiment", "Split", "classified", "listed"),
    "table": ("Claim", "Table"),
    "student": ("Welch", "welch"),
}

__all__ = [
    "Claim",
    "Comparison",
    "Experiment",
    "MissingTable",
    "Result",
    "Results",
    "ResultsError",
    "Split",
    "Table",
    "Welch",
    "against",
    "choose",
    "classified",
    "compare",
    "curves",
    "find",
    "histograms",
    "listed",
    "names",
    "reliability_curves",
    "render",
    "run",
    "run_all",
    "scatter",
    "welch",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
