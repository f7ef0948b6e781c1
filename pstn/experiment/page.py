"""A table's page in ``docs/results``: the comparison as Markdown, its figures beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstn.experiment.comparison import Comparison, Result, shown
from pstn.report.table import Measured
from pstn.train.checkpoint import write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def render(comparison: Comparison, folder: Path = Path("docs/results")) -> Path:
    """Write the page ``<paper>-<table>.md`` and a picture for each of the table's figures.

    Arguments:
        comparison: What to show.
        folder: Where to write.

    Returns:
        The page.
    """
    table = comparison.table
    stem = table.id.replace("/", "-")
    parts = [f"# {table.title}", f"From `results/{table.id}.jsonl`, by `pstn reproduce {table.id} --render`."]
    parts += comparison.sentences()
    for shown_table in comparison.tables():
        parts += [f"## {shown_table.title}"] * bool(shown_table.title)
        parts += [shown_table.markdown(), *([shown_table.note] if shown_table.note else [])]
    if comparison.results:
        for name, draw in table.figures.items():
            path = folder / f"{stem}-{name}.svg"
            picture = _svg(draw, comparison.results)
            if picture is None:
                path.unlink(missing_ok=True)
            else:
                write(path, picture)
                parts.append(f"![{name}]({path.name})")
    path = folder / f"{stem}.md"
    write(path, ("\n\n".join(parts) + "\n").encode())
    return path


def against(
    axis: str, curve: str, metrics: Sequence[str] = ("accuracy", "nll"), logarithmic: bool = True
) -> Callable[[Sequence[Result]], Figure]:
    """A figure of scores against a tag of the rows, a panel a score and a curve for each value of another tag.

    Arguments:
        axis: The tag whose value is a row's place on the axis.
        curve: The tag whose value says which curve it belongs to.
        metrics: The scores.
        logarithmic: Whether the axis is.
    """

    def draw(results: Sequence[Result]) -> Figure:
        figure_of = matplotlib_figure()
        figure = figure_of(figsize=(9.6, 3.6), layout="constrained")
        panels = figure.subplots(1, len(metrics), squeeze=False)[0]
        for panel, metric in zip(panels, metrics, strict=True):
            title, factor, _ = shown(metric)
            curves: dict[str, list[tuple[float, float, float]]] = {}
            for result in results:
                if {axis, curve} <= result.row.tags.keys() and result.values(metric):
                    measured = Measured(tuple(factor * value for value in result.values(metric)))
                    deviation = measured.deviation if len(measured.values) > 1 else 0.0
                    point = (result.row.tags[axis], measured.mean, deviation)
                    curves.setdefault(str(result.row.tags[curve]), []).append(point)
            for label, points in curves.items():
                x, y, error = zip(*sorted(points), strict=True)
                panel.errorbar(x, y, error, label=label, marker=".", capsize=2, linewidth=1)
            panel.set(xlabel=axis, ylabel=title, xscale="log" if logarithmic else "linear")
        panels[0].legend(fontsize=7)
        return figure

    return draw


def _svg(draw: Callable[[Sequence[Result]], Figure | None], results: Sequence[Result]) -> bytes | None:
    """A figure as SVG, the same bytes for the same figure, on white: a page on the web has any background."""
    matplotlib_figure()
    import matplotlib as mpl

    from pstn.report.page import theme

    file = io.BytesIO()
    with mpl.rc_context({**theme(), "savefig.facecolor": "white"}):
        figure = draw(results)
        if figure is None:
            return None
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def matplotlib_figure() -> Any:
    """matplotlib's ``Figure``, which needs no display and no state of pyplot's."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'pstn[plot]'") from error
    return Figure
