"""Series as people keep them: lines of a csv or tsv file, with or without a header, the label in any column."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from pstn.data.files import StrPath
from pstn.data.labels import tidy
from pstn.data.series import Cases
from pstn.data.tsv import decoded

#: What a column of labels is usually called.
LABELS = ("label", "labels", "class", "target", "category", "y")
#: What a column is called that counts, names or dates the lines, and is no part of a series; pandas writes the first.
COUNTS = ("", "unnamed: 0", "index", "id", "time", "timestamp", "date", "datetime")
_UNKNOWN = ("", "nan", "na", "?", "null")
_MISSING = (*_UNKNOWN, "none")  # which is a class as good as any among labels: no gesture, no defect


@dataclass(frozen=True)
class Sheet:
    """The cells of a file.

    Arguments:
        rows: The cells of each line, the header left out.
        header: The names of the columns, if the file has them.
        source: The file.
        first: The number of the first line with cells.
    """

    rows: list[list[str]]
    header: list[str] | None
    source: str
    first: int

    def column(self, label: str | None) -> int:
        """Which column holds the labels: the one named, or else the likely one."""
        width = min(len(row) for row in self.rows)
        if label is not None and self.header is not None and label in self.header:
            return self.header.index(label)
        if label is not None:
            number = int(label) if label.lstrip("-").isdigit() else None
            if number is None or not -width <= number < width:
                names = f"columns {', '.join(self.header)}" if self.header else f"{width} columns and no header"
                raise ValueError(f"{self.source} has {names}; there is no column {label!r} (--label NAME or NUMBER)")
            return number % width if number >= 0 or len({len(row) for row in self.rows}) == 1 else number
        known = self.called(LABELS)
        left = [i for i in range(width) if i not in self.counting] or [0]
        words = [i for i in left if any(_is_word(row[i]) for row in self.rows)]
        if known or len(words) == 1:
            return known[0] if known else words[0]
        # the first by custom; the last where that has few values, as labels have, and the first has many
        first, last = left[0], left[-1]
        even = all(len(row) == width for row in self.rows)
        several = even and len({row[last] for row in self.rows}) > 1
        return last if several and self.various(first) and not self.various(last) else first

    @property
    def counting(self) -> list[int]:
        """The columns whose name says that they count, name or date the lines."""
        return self.called(COUNTS)

    def called(self, names: Sequence[str]) -> list[int]:
        """The columns with one of the names, in whatever case."""
        return [i for i, name in enumerate(self.header or ()) if name.strip().lower() in names]

    def various(self, column: int) -> bool:
        """Whether a column has too many different values for labels: more than one in two lines."""
        return len({tidy(row[column]) for row in self.rows}) > max(len(self.rows) / 2, 1)

    def labels(self, column: int) -> list[str]:
        """What stands in the column of labels, line by line."""
        for line, row in enumerate(self.rows, start=self.first):
            if not -len(row) <= column < len(row):
                raise ValueError(
                    f"{self.source}, line {line} has {len(row)} cells; expected a label in column "
                    f"{self.name_of(column)!r}: complete the line or remove it"
                )
        return [tidy(row[column]) for row in self.rows]

    def series(self, skip: int | None) -> list[list[np.ndarray]]:
        """The numbers of each line but for the column of labels; nothing at the end of a line is padding."""
        found = []
        for line, row in enumerate(self.rows, start=self.first):
            out = {*self.counting, *(() if skip is None else (skip if skip >= 0 else skip + len(row),))}
            cells = [cell for i, cell in enumerate(row) if i not in out]
            wrong = next((i for i, cell in enumerate(cells) if _is_word(cell)), None)
            if wrong is not None:
                raise ValueError(
                    f"{self.source}, line {line} has {cells[wrong]!r}; expected numbers beside one column of labels "
                    "(--label NAME or NUMBER says which)"
                )
            values = np.array([np.nan if _is_missing(cell) else float(cell) for cell in cells])
            there = np.flatnonzero(~np.isnan(values))
            if not len(there):
                raise ValueError(f"{self.source}, line {line} has no values")
            found.append([values[: there[-1] + 1]])
        return found

    def name_of(self, column: int) -> str:
        """How to find a column again in another file: by its name, or by its number."""
        return self.header[column] if self.header is not None else str(column)


def read_sheet(path: StrPath, label: str | None = None) -> Sheet:
    """The cells of a csv, tsv or txt file; the first line is a header if it looks like one, or names the label.

    Lines above it that begin with # are remarks, but for one of as many cells: numpy writes headers so.
    """
    lines = [line for line in decoded(path).splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty; expected lines with a label and a series")
    plain = next((line for line in lines if not line.startswith("#")), lines[0])
    separator = next((mark for mark in "\t;," if mark in plain), None)
    cells = len(plain.split(separator))
    remarks = takewhile(lambda line: line[0] == "#" and len(line.removeprefix("# ").split(separator)) != cells, lines)
    above = len(list(remarks))
    lines = [lines[above].removeprefix("# "), *lines[above + 1 :]]
    try:
        split = [line.split() for line in lines] if separator is None else list(csv.reader(lines, delimiter=separator))
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read: {error}; a quotation mark may be left open") from error
    rows = [[cell.strip() for cell in row] for row in split]
    if separator in (";", "\t"):  # where numbers may have commas
        rows = [
            [point if _is_word(cell) and not _is_word(point := cell.replace(",", ".")) else cell for cell in row]
            for row in rows
        ]
    words = [cell for cell in rows[0] if _is_word(cell)]
    named = any(cell.lower() in LABELS or cell == label for cell in words)
    header = rows[0] if len(words) > 1 or named or _counts([c for c in rows[0] if c not in words]) else None
    rest = rows if header is None else rows[1:]
    if not rest:
        raise ValueError(f"{path} has a header and nothing below it")
    return Sheet(rest, header, str(path), above + 1 + (header is not None))


def labelled(path: StrPath, label: str | None = None) -> tuple[Cases, str, list[str]]:
    """The series of a file with their labels, how its column of labels is found again, and what was said of others.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "beats.csv"
        >>> _ = file.write_text("t0,t1,class\\n0.5,1.5,slow\\n2.5,3.5,fast\\n")
        >>> cases, column, _ = labelled(file)
        >>> cases.labels, cases.series[0][0].tolist(), column
        (['slow', 'fast'], [0.5, 1.5], 'class')
    """
    sheet = read_sheet(path, label)
    column = sheet.column(label)
    labels = sheet.labels(column)
    empty = next((i for i, one in enumerate(labels) if one.lower() in _UNKNOWN), None)
    if empty is not None:
        raise ValueError(f"{path} has no label in column {sheet.name_of(column)!r} of series {empty} (counted from 0)")
    remarks = [f"Labels are in column {sheet.name_of(column)!r}."]
    if counting := [sheet.header[i] for i in sheet.counting if sheet.header and i != column]:
        names = ", ".join(map(repr, counting))
        remarks.append(f"Column {names} numbers or dates the lines and is left out.")
    return Cases(sheet.series(column), labels, str(path)), sheet.name_of(column), remarks


def unlabelled(path: StrPath, label: str, classes: Sequence[str], points: int) -> list[list[np.ndarray]]:
    """The series of a file, without labels where it has them.

    Arguments:
        path: The file.
        label: The column of the labels in the file that a model was trained on, by name or number.
        classes: The classes that it knows.
        points: How many points its series have.
    """
    sheet = read_sheet(path, label)
    if named := [i for i, name in enumerate(sheet.header or ()) if name == label] or sheet.called(LABELS):
        return sheet.series(named[0])
    number = int(label) if label.lstrip("-").isdigit() else sheet.column(None)
    if any(not -len(row) <= number < len(row) for row in sheet.rows):
        return sheet.series(None)
    widths = {len(row) for row in sheet.rows}
    cells = [tidy(row[number]) for row in sheet.rows]
    alien = any(_is_word(cell) for cell in cells)
    has = alien or (widths != {points} and (widths == {points + 1} or set(cells) <= set(classes)))
    return sheet.series(number if has else None)


def _counts(cells: Sequence[str]) -> bool:
    """Whether the cells are 0, 1, 2, ...: the header of somebody who gave no names."""
    numbers = [cell for cell in cells if cell]
    return len(numbers) > 2 and numbers == [str(i) for i in range(len(numbers))]


def _is_missing(cell: str) -> bool:
    return cell.lower() in _MISSING


def _is_word(cell: str) -> bool:
    if _is_missing(cell):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False
