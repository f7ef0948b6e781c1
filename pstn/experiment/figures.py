"""Figures of a table: its rows' scores, and the lists that its records keep beside them."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pstn.experiment.comparison import shown
from pstn.report.figures import WIDTH
from pstn.report.table import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pstn.experiment.comparison import Result

#: Draws what there is to draw, and nothing (None) where that is nothing.
Draw = Callable[[Sequence["Result"]], "Figure | None"]
#: Colours come again after six curves, with other marks and lines.
COLOURS, MARKS, LINES = 6, "osD^v", ("-", "--", ":")
#: How thick the curve of a row is, by its column.
THICK = {"published": 1.4, "best": 2.4, "extra": 1.0}
#: Panels side by side; letters in a line of a panel's title; legends of so many letters side by side.
COLUMNS, TITLE, LEGEND = 3, 34, 110
#: What accuracies are shown as, and what hollow marks are.
ERROR, PAPER = "error, %", "paper"
#: The fewest predictions, of all folds, that say how often such are right; and of one fold, how much folds vary in it.
FEW, FEW_OF_FOLD = 20, 5
#: How many times the least the largest value must be for a logarithmic axis.
WIDE = 5.0


def matplotlib_figure() -> Any:
    """matplotlib's ``Figure``, which needs no display and no state of pyplot's."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'pstn[plot]'") from error
    return Figure


def against(
    axis: str,
    curve: str,
    metrics: Sequence[str] = ("accuracy", "nll"),
    *,
    logarithmic: bool = True,
    only: Mapping[str, str] | None = None,
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> Draw:
    """A figure of scores against a tag of the rows, a panel a score and a curve for each value of another tag.

    Points are means over the folds, bars their deviation; the paper's figures are hollow. Accuracies are shown as
    errors, and scores of several sizes on a logarithmic axis: near the best is where networks differ. Bars are as long
    below as above there.

    Arguments:
        axis: The tag whose value is a row's place on the axis.
        curve: The tag whose value says which curve it belongs to.
        metrics: The scores.
        logarithmic: Whether the axis of the tag is.
        only: The curves to show, and what to call them; all by default.
        limits: From where to where to show a score; what lies beyond is left out.
    """

    def draw(results: Sequence[Result]) -> Figure | None:
        lines: dict[str, list[Result]] = {}
        for result in results:
            if {axis, curve} <= result.row.tags.keys():
                lines.setdefault(str(result.row.tags[curve]), []).append(result)
        names = {name: name for name in lines} if only is None else {n: w for n, w in only.items() if n in lines}
        if not names:
            return None
        figure = matplotlib_figure()(figsize=(WIDTH, 4.0 + 0.05 * len(names)), layout="constrained")
        places = sorted({result.row.tags[axis] for name in names for result in lines[name]})
        for panel, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            found = {name: _points(lines[name], axis, metric) for name in names}
            means = [mean for points in found.values() for _, mean, *_ in points if math.isfinite(mean)]
            sizes = bool(means) and 0 < WIDE * min(means) <= max(means)
            for i, (name, points) in enumerate(found.items()):
                # beside one another, where they would hide one another
                apart = (i - (len(names) - 1) / 2) / max(len(names), 4)
                moved = [(at * 1.12**apart if logarithmic else at + 0.2 * apart, *rest) for at, *rest in points]
                _curve(panel, moved, i, lines[name][0].row.column, names[name], sizes)
            if sizes:
                _decades(panel)
            panel.set(xlabel=axis, ylabel=ERROR if metric == "accuracy" else shown(metric)[0])
            panel.set_xscale("log" if logarithmic else "linear")
            panel.set_xticks(places, [f"{place:g}" for place in places], rotation=90 if len(places) > 7 else 0)
            panel.minorticks_off()
            panel.set_ylim(*(limits or {}).get(metric, (None, None)))
            panel.grid(axis="y", linewidth=0.4)
        legend(figure)
        return figure

    return draw


def _points(results: Sequence[Result], axis: str, metric: str) -> list[tuple[float, ...]]:
    """Where rows are on the axis, their means and deviations, and the paper's means (NaN where there is none)."""
    _, factor, _ = shown(metric)
    points: list[tuple[float, ...]] = []
    for result in sorted(results, key=lambda result: result.row.tags[axis]):
        if values := result.values(metric):
            measured = Measured(tuple(factor * value for value in values))
            deviation = measured.deviation if len(values) > 1 else 0.0
            mean, paper = measured.mean, factor * result.row.paper.get(metric, (math.nan,))[0]
            if metric == "accuracy":
                mean, paper = 100 - mean, 100 - paper
            points.append((result.row.tags[axis], mean, deviation, paper))
    return points


def _curve(panel: Axes, points: Sequence[tuple[float, ...]], number: int, column: str, label: str, sizes: bool) -> None:
    """A curve with its bars, and the paper's points where it is the paper's row."""
    if not points:
        return
    x, mean, deviation, paper = zip(*points, strict=True)
    below = [m * d / (m + d) for m, d in zip(mean, deviation, strict=True)] if sizes else deviation
    colour, style = f"C{number % COLOURS}", LINES[number // COLOURS % len(LINES)]
    panel.errorbar(
        x, mean, [below, deviation], color=colour, linestyle=style, marker=MARKS[number % len(MARKS)], markersize=4,
        linewidth=THICK[column], elinewidth=0.8, label=label,
    )  # fmt: skip
    if column == "published" and not all(map(math.isnan, paper)):
        panel.plot(x, paper, "o", color=colour, markersize=8, markerfacecolor="none", label=PAPER)


def reliability_curves(*rows: str) -> Draw:
    """Accuracy against confidence, a curve a row: of all folds together, and how much it varies between them.

    Arguments:
        rows: Names of the rows to show; all by default.
    """

    def draw(results: Sequence[Result]) -> Figure | None:
        if not (found := _with("reliability", results, rows)):
            return None
        figure = matplotlib_figure()(figsize=(5.4, 5.4), layout="constrained")
        panel = figure.subplots()
        panel.plot([0, 1], [0, 1], color="0.5", linewidth=0.8, linestyle="--")
        for i, result in enumerate(found):
            points = []
            for bins in zip(*(record["test"]["reliability"] for record in result.chosen), strict=True):
                total = sum(count for count, _, _ in bins)
                if total >= FEW:
                    at, height = (sum(one[0] * one[k] for one in bins if one[0]) / total for k in (1, 2))
                    folds = [accuracy for count, _, accuracy in bins if count >= FEW_OF_FOLD]
                    points.append((at, height, statistics.stdev(folds) if len(folds) > 1 else 0.0))
            if points:
                at, height, spread = zip(*points, strict=True)
                label = f"{result.row.label}: ECE {statistics.fmean(result.values('ece')):.3f}"
                style = {"marker": MARKS[i % len(MARKS)], "linestyle": LINES[i // COLOURS % len(LINES)]}
                panel.errorbar(at, height, spread, label=label, color=f"C{i % COLOURS}", markersize=4, linewidth=1.2,
                               elinewidth=0.8, **style)  # fmt: skip
        panel.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        legend(figure, 60)
        return figure

    return draw


def scatter(name: str, columns: tuple[int, int], labels: tuple[str, str], *rows: str, diagonal: bool = False) -> Draw:
    """A point an input, a panel a row, of the first fold.

    Arguments:
        name: The list of the records that has a row of numbers for each input.
        columns: Which of the numbers are the axes.
        labels: What they are called.
        rows: Names of the rows to show; all by default.
        diagonal: Whether to draw the line on which both are equal.
    """

    def draw(results: Sequence[Result]) -> Figure | None:
        # an input without the numbers (a transformer without spread has none) is no point
        found = [
            (result.row.label, [[line[i] for i in columns] for line in result.chosen[0]["test"][name]])
            for result in _with(name, results, rows)
            if max(columns) < len(result.chosen[0]["test"][name][0])
        ]
        if not found:
            return None
        figure, panels = _panels(len(found), sharex=True, sharey=True)
        for i, (panel, (label, points)) in enumerate(zip(panels, found, strict=False)):
            x, y = zip(*points, strict=True)
            panel.plot(x, y, ".", color=f"C{i % COLOURS}", markersize=3, alpha=0.6)
            if diagonal:
                panel.plot([min(x), max(x)], [min(x), max(x)], color="0.5", linewidth=0.8, linestyle="--")
            panel.set_title(textwrap.fill(label, TITLE))
        figure.supxlabel(labels[0], fontsize=9)
        figure.supylabel(labels[1], fontsize=9)
        return figure

    return draw


def curves(name: str, xlabel: str, ylabel: str, *rows: str, tag: str = "task") -> Draw:
    """Curves of single inputs: a column an input, a line of panels for each value of a tag, a curve a row.

    Arguments:
        name: The list of the records: the positions on the axis, then the values of each input.
        xlabel: What the axis is.
        ylabel: What the values are.
        rows: Names of the rows to show; all by default.
        tag: The tag of the rows that belong in the same panels.
    """

    def draw(results: Sequence[Result]) -> Figure | None:
        groups: dict[Any, list[Result]] = {}
        for result in _with(name, results, rows):
            groups.setdefault(result.row.tags.get(tag), []).append(result)
        if not groups:
            return None
        width = max(len(r.chosen[0]["test"][name]) - 1 for group in groups.values() for r in group)
        figure = matplotlib_figure()(figsize=(WIDTH, 2.4 * len(groups) + 0.4), layout="constrained")
        panels = figure.subplots(len(groups), width, squeeze=False)
        colours: dict[str, str] = {}  # that of a kind of network is the same in all lines
        for line, (value, group) in zip(panels, groups.items(), strict=False):
            kinds = [result.row.label.partition(",")[0] for result in group]
            words = kinds if len(set(kinds)) == len(kinds) else [result.row.label for result in group]
            for result, label in zip(group, words, strict=True):
                at, *inputs = result.chosen[0]["test"][name]
                colour = colours.setdefault(label, f"C{len(colours) % COLOURS}")
                for panel, heights in zip(line, inputs, strict=False):
                    panel.plot(at, heights, linewidth=1.2, color=colour, label=label)
            line[0].set(ylabel=f"{value}: {ylabel}" if value else ylabel)
        for panel in panels.flat:
            panel.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        for panel in panels[-1]:
            panel.set(xlabel=xlabel)
        legend(figure)
        return figure

    return draw


def histograms(name: str, xlabel: str, bins: int = 40) -> Draw:
    """How a list of numbers is distributed, a panel a row, all folds together.

    Arguments:
        name: The list of the records.
        xlabel: What the numbers are.
        bins: How many bars.
    """

    def draw(results: Sequence[Result]) -> Figure | None:
        if not (found := _with(name, results)):
            return None
        figure, panels = _panels(len(found))
        for i, (panel, result) in enumerate(zip(panels, found, strict=False)):
            values = [value for record in result.chosen for value in record["test"][name]]
            panel.hist(values, bins=bins, color=f"C{i % COLOURS}", alpha=0.75)
            panel.set(title=textwrap.fill(result.row.label, TITLE), xlabel=xlabel, ylabel="draws")
        return figure

    return draw


def _with(name: str, results: Sequence[Result], rows: Sequence[str] = ()) -> list[Result]:
    """The results, of the rows named, whose records all have a list."""
    wanted = [result for result in results if not rows or result.row.name in rows]
    return [result for result in wanted if all(record["test"].get(name) for record in result.chosen)]


def _panels(count: int, **shared: bool) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, a few side by side."""
    columns = min(count, COLUMNS)
    down = -(-count // columns)
    figure = matplotlib_figure()(figsize=(WIDTH / COLUMNS * columns, 2.9 * down), layout="constrained")
    panels = list(figure.subplots(down, columns, squeeze=False, **shared).flat)
    for panel in panels[count:]:
        panel.set_axis_off()
    return figure, panels


def legend(figure: Figure, letters: int = LEGEND) -> None:
    """Say below a figure, once, what each of its curves is.

    Arguments:
        figure: The figure.
        letters: How many letters there is room for side by side.
    """
    marks: dict[str, Any] = {}
    for panel in figure.axes:
        for mark, label in zip(*panel.get_legend_handles_labels(), strict=True):
            marks.setdefault(label, mark)
    if marks.pop(PAPER, None) is not None:  # of whatever colour
        from matplotlib.lines import Line2D

        marks[PAPER] = Line2D([], [], color="0.4", marker="o", markersize=7, markerfacecolor="none", linestyle="none")
    if len(marks) > 1:
        columns = max(1, min(len(marks), letters // (4 + max(map(len, marks)))))
        figure.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def _decades(panel: Axes) -> None:
    """A logarithmic axis with numbers to read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
