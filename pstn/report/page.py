"""One page with everything in it: no file beside it, nothing fetched, no script."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstn.report.table import Table
from pstn.train.checkpoint import write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #ffffff; --tint: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --back: #0d1117; --tint: #161b22; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; background: var(--back); color: var(--ink);
  font: 1rem/1.6 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
p { margin: .6rem 0; max-width: 46rem; }
.lead { font-size: 1.1rem; }
.note, figcaption, caption { color: var(--soft); font-size: .9rem; text-align: left; }
caption { padding-bottom: .4rem; }
.wide { overflow-x: auto; margin: 1rem 0 .25rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: .9rem; }
.left { text-align: left; }
.right { text-align: right; }
figure { margin: 1rem 0 1.5rem; }
figure img { display: block; width: 100%; min-width: 36rem; height: auto; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .25rem 1.25rem; margin: 1rem 0;
  font-size: .92rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code { background: var(--tint); padding: .1em .35em; border-radius: .25rem; font-size: .92em; overflow-wrap: anywhere; }
"""

#: One hue a series, told apart by the colour-blind and seen on white and on black.
_CYCLE = ("#3d85c6", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
_BOTH = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",  # letters stay letters
    "svg.hashsalt": "pstn",
}
#: Letters and lines on a light page, and what becomes of them on a dark one.
_LIGHT, _DARK = ("#1b1f24", "#d0d7de"), ("#e6edf3", "#30363d")


def theme() -> Any:
    """Settings for matplotlib's ``rc_context`` that give a figure the page's colours and letters."""
    from cycler import cycler

    ink, line = _LIGHT
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {**_BOTH, **dict.fromkeys(inked, ink), "grid.color": line, "axes.prop_cycle": cycler(color=_CYCLE)}


class Page:
    """A report that is one HTML file: text, tables and figures, readable on a phone, in light and in dark.

    Arguments:
        title: What the page is called.
        lead: The one paragraph to read.

    Example:
        >>> page = Page("Digits", "What 100 digits teach.")
        >>> page.section("Data").text("Five folds.")
        >>> "<h2>Data</h2>" in page.html()
        True
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self.parts = [f"<h1>{escape(title)}</h1>"]
        if lead:
            self.parts.append(f'<p class="lead">{escape(lead)}</p>')

    def section(self, heading: str) -> Page:
        """Begin a section; what is added next belongs to it."""
        self.parts.append(f"<h2>{escape(heading)}</h2>")
        return self

    def text(self, words: str) -> None:
        """Add a paragraph."""
        self.parts.append(f"<p>{escape(words)}</p>")

    def table(self, table: Table) -> None:
        """Add a table."""
        self.parts.append(table.html())

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Add a list of names and values."""
        items = (f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
        self.parts.append(f"<dl>{''.join(items)}</dl>")

    def figure(self, draw: Callable[[], Figure], alt: str, caption: str = "") -> None:
        """Add a figure, in the colours of a light page and in those of a dark one.

        Arguments:
            draw: Makes the figure; called with the page's :func:`theme` in force.
            alt: What it shows, for who cannot see it.
            caption: What stands below it.
        """
        light = dark = _svg(draw)
        for before, after in zip(_LIGHT, _DARK, strict=True):
            dark = dark.replace(before, after)
        self.parts.append(
            '<figure><div class="wide"><picture>'
            f'<source media="(prefers-color-scheme: dark)" srcset="{_address(dark)}">'
            f'<img src="{_address(light)}" alt="{escape(alt)}"></picture></div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def html(self) -> str:
        """The whole page."""
        body = "\n".join(self.parts)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page to a file, whole or not at all; its folder is made when missing."""
        write(path, self.html().encode())
        return path


def _svg(draw: Callable[[], Figure]) -> str:
    """A figure as SVG."""
    import matplotlib as mpl

    file = io.StringIO()
    with mpl.rc_context(theme()), warnings.catch_warnings():
        # letters stay letters, and a browser has those that matplotlib's own font has not
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        # the same figure is the same file: no date, and salted names inside
        draw().savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _address(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode('ascii')}"
