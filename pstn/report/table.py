"""Tables of measurements, mean and deviation over seeds, for a terminal, a page or a README."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Align = Literal["left", "right"]


@dataclass(frozen=True)
class Measured:
    """One quantity measured several times: shown as mean ± sample deviation.

    Arguments:
        values: The measurements, at least one.
        digits: Digits behind the point.

    Example:
        >>> print(Measured((0.25, 0.35)))
        0.300 ± 0.071
        >>> print(Measured((87.3,), digits=1))
        87.3
    """

    values: tuple[float, ...]
    digits: int = 3

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("nothing was measured: values is empty")

    @property
    def mean(self) -> float:
        """The mean."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The sample deviation, with n - 1; NaN for a single measurement, and where one is infinite or NaN."""
        known = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if known else math.nan

    def __str__(self) -> str:
        return figure(self.mean, self.deviation, self.digits)


def figure(mean: float, deviation: float = math.nan, digits: int = 3) -> str:
    """A mean with its deviation in words; without it where it is NaN.

    Example:
        >>> figure(92.7, 0.74, digits=1)
        '92.7 ± 0.7'
    """
    text = f"{mean:.{digits}f}"
    return text if math.isnan(deviation) else f"{text} ± {deviation:.{digits}f}"


Cell = str | Measured | None


@dataclass(frozen=True)
class Column:
    """A column's heading.

    Arguments:
        name: What stands above it.
        align: ``"left"`` or ``"right"``.
        best: Whether the ``"max"`` or the ``"min"`` of the column's means is shown in bold; None for neither.
        whole: Whether a terminal too narrow for the table leaves this column as wide as it is.
    """

    name: str
    align: Align = "right"
    best: Literal["max", "min"] | None = None
    whole: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of words and measurements under named columns.

    Arguments:
        columns: The columns.
        rows: A cell a column: words, a :class:`Measured`, or None where there is nothing to say.
        title: What stands above the table.
        note: What stands below it.

    Example:
        >>> table = Table([Column("model", "left"), Column("NLL", best="min")],
        ...               [["CNN", Measured((0.5, 0.6))], ["STN", Measured((0.7,))]])
        >>> print(table.markdown())
        | model | NLL |
        | :-- | --: |
        | CNN | **0.550 ± 0.071** |
        | STN | 0.700 |
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row has {len(row)} cells, the table {len(self.columns)} columns: {row}")

    def cells(self) -> list[list[tuple[str, bool]]]:
        """Each row's cells as words, and whether each is its column's best."""
        best: list[float | None] = []
        for i, column in enumerate(self.columns):
            means = [cell.mean for row in self.rows if isinstance(cell := row[i], Measured)]
            pick = {"max": max, "min": min}.get(column.best or "")
            best.append(pick(means) if pick and means else None)
        return [
            [
                ("–" if cell is None else str(cell), isinstance(cell, Measured) and cell.mean == best[i])
                for i, cell in enumerate(row)
            ]
            for row in self.rows
        ]

    def rich(self) -> RichTable:
        """The table for a terminal."""
        from rich import box
        from rich.markup import escape as plain
        from rich.table import Table as RichTable

        table = RichTable(
            title=self.title or None,
            caption=self.note or None,
            box=box.SIMPLE_HEAD,
            title_style="bold",
            title_justify="left",
            caption_justify="left",
            pad_edge=False,
        )
        for column in self.columns:
            # Folded where it does not fit, not cut: a path without its end is of no use.
            table.add_column(column.name, justify=column.align, overflow="fold", no_wrap=column.whole)
        for row in self.cells():
            table.add_row(*(f"[bold]{plain(text)}[/bold]" if best else plain(text) for text, best in row))
        return table

    def html(self) -> str:
        """The table for a page."""
        head = "".join(f'<th class="{c.align}">{escape(c.name)}</th>' for c in self.columns)
        body = ""
        for row in self.cells():
            shown = (f"<strong>{escape(text)}</strong>" if best else escape(text) for text, best in row)
            body += "<tr>"
            body += "".join(
                f'<td class="{column.align}">{text}</td>' for column, text in zip(self.columns, shown, strict=True)
            )
            body += "</tr>\n"
        caption = f"<caption>{escape(self.title)}</caption>\n" if self.title else ""
        note = f'<p class="note">{escape(self.note)}</p>\n' if self.note else ""
        return (
            f'<div class="wide"><table>\n{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'
            f"\n{note}"
        )

    def markdown(self) -> str:
        """The table for a README."""
        lines = [[c.name for c in self.columns], [":--" if c.align == "left" else "--:" for c in self.columns]]
        lines += [[f"**{text}**" if best else text for text, best in row] for row in self.cells()]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
