"""A table's page in ``docs/results``: the comparison as Markdown, its figures beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pstn.experiment.comparison import Comparison, Result
from pstn.experiment.figures import matplotlib_figure
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
    how = f"{table.id.removesuffix('-quick')} --quick" if table.slice else table.id
    parts = [f"# {table.title}", f"From `results/{table.id}.jsonl`, by `pstn reproduce {how} --render`."]
    parts += comparison.sentences()
    for name, draw in table.figures.items() if comparison.results else ():
        path = folder / f"{stem}-{name}.svg"
        picture = _svg(draw, comparison.results)
        if picture is None:
            path.unlink(missing_ok=True)
        else:
            write(path, picture)
            parts.append(f"![{name}]({path.name})")
    for one in comparison.tables():
        heading = one.title.removeprefix(f"{table.title}: ")
        first = heading[:1].upper() if heading.isascii() else heading[:1]  # no large Greek letters
        parts += [f"## {first}{heading[1:]}"] * bool(heading)
        parts += [one.markdown(), *([one.note] if one.note else [])]
    if notes := comparison.notes():
        parts += ["## Notes", *notes]
    path = folder / f"{stem}.md"
    write(path, ("\n\n".join(parts) + "\n").encode())
    return path


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
