"""Figures of a table from the lists that its records keep beside the scores: reliability, scatter plots, curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pstn.experiment.page import matplotlib_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pstn.experiment.comparison import Result

Draw = Callable[[Sequence["Result"]], "Figure"]


def reliability_curves(*rows: str) -> Draw:
    """Accuracy against confidence, a curve a row: the mean over the folds, and its deviation.

    Arguments:
        rows: Names of the rows to show; all by default.
    """

    def draw(results: Sequence[Result]) -> Figure:
        figure = matplotlib_figure()(figsize=(5.4, 4.8), layout="constrained")
        panel = figure.subplots()
        panel.plot([0, 1], [0, 1], color="0.5", linewidth=0.8, linestyle="--")
        for result in _with("reliability", results, rows):
            folds = [record["test"]["reliability"] for record in result.chosen]
            points = []
            for each in zip(*folds, strict=True):
                full = [(confidence, accuracy) for count, confidence, accuracy in each if count]
                if full:
                    at, height = zip(*full, strict=True)
                    spread = statistics.stdev(height) if len(height) > 1 else 0.0
                    points.append((statistics.fmean(at), statistics.fmean(height), spread))
            at, height, spread = zip(*points, strict=True)
            error = statistics.fmean(result.values("ece"))
            label = f"{result.row.label}: ECE {error:.3f}"
            panel.errorbar(at, height, spread, label=label, marker=".", capsize=2, linewidth=1)
        panel.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        panel.legend(fontsize=7)
        return figure

    return draw


def scatter(name: str, columns: tuple[int, int], labels: tuple[str, str], diagonal: bool = False) -> Draw:
    """A point an input, a panel a row, of the first fold.

    Arguments:
        name: The list of the records that has a row of numbers for each input.
        columns: Which of the numbers are the axes.
        labels: What they are called.
        diagonal: Whether to draw the line on which both are equal.
    """

    def draw(results: Sequence[Result]) -> Figure:
        # an input without the numbers (a transformer without spread has none) is no point
        shown = [
            (result.row.label, [[line[i] for i in columns] for line in result.chosen[0]["test"][name]])
            for result in _with(name, results)
            if max(columns) < len(result.chosen[0]["test"][name][0])
        ]
        figure = matplotlib_figure()(figsize=(3.4 * max(len(shown), 1), 3.4), layout="constrained")
        panels = figure.subplots(1, max(len(shown), 1), squeeze=False)[0]
        for i, (panel, (label, points)) in enumerate(zip(panels, shown, strict=False)):
            x, y = zip(*points, strict=True)
            panel.plot(x, y, ".", color=f"C{i}", markersize=3, alpha=0.6)
            if diagonal:
                panel.plot([min(x), max(x)], [min(x), max(x)], color="0.5", linewidth=0.8, linestyle="--")
            panel.set(title=label, xlabel=labels[0], ylabel=labels[1])
        return figure

    return draw


def curves(name: str, xlabel: str, ylabel: str, tag: str = "task") -> Draw:
    """Curves of single inputs: a column an input, a line of panels for each value of a tag, a curve a row.

    Arguments:
        name: The list of the records: the positions on the axis, then the values of each input.
        xlabel: What the axis is.
        ylabel: What the values are.
        tag: The tag of the rows that belong in the same panels.
    """

    def draw(results: Sequence[Result]) -> Figure:
        groups: dict[Any, list[Result]] = {}
        for result in _with(name, results):
            groups.setdefault(result.row.tags.get(tag), []).append(result)
        width = max((len(r.chosen[0]["test"][name]) - 1 for group in groups.values() for r in group), default=1)
        figure = matplotlib_figure()(figsize=(9.6, 2.6 * max(len(groups), 1)), layout="constrained")
        panels = figure.subplots(max(len(groups), 1), width, squeeze=False)
        for line, (value, group) in zip(panels, groups.items(), strict=False):
            for result in group:
                at, *inputs = result.chosen[0]["test"][name]
                for panel, heights in zip(line, inputs, strict=False):
                    panel.plot(at, heights, linewidth=1, label=result.row.label)
            line[0].set(ylabel=f"{value}: {ylabel}" if value else ylabel)
            line[0].legend(fontsize=7)
        for panel in panels[-1]:
            panel.set(xlabel=xlabel)
        return figure

    return draw


def histograms(name: str, xlabel: str, bins: int = 40) -> Draw:
    """How a list of numbers is distributed, a panel a row, all folds together.

    Arguments:
        name: The list of the records.
        xlabel: What the numbers are.
        bins: How many bars.
    """

    def draw(results: Sequence[Result]) -> Figure:
        shown = list(_with(name, results))
        figure = matplotlib_figure()(figsize=(9.6, 2.8), layout="constrained")
        panels = figure.subplots(1, max(len(shown), 1), squeeze=False)[0]
        for i, (panel, result) in enumerate(zip(panels, shown, strict=False)):
            values = [value for record in result.chosen for value in record["test"][name]]
            panel.hist(values, bins=bins, color=f"C{i}", alpha=0.75)
            panel.set(title=result.row.label, xlabel=xlabel, ylabel="draws")
        return figure

    return draw


def _with(name: str, results: Sequence[Result], rows: Sequence[str] = ()) -> list[Result]:
    """The results, of the rows named, whose records all have a list."""
    wanted = [result for result in results if not rows or result.row.name in rows]
    return [result for result in wanted if all(record["test"].get(name) for record in result.chosen)]
