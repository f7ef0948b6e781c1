"""The text format of the UCR archive: a series a line, its label first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pstn.data.base import Data
from pstn.data.files import StrPath, read_bytes
from pstn.data.labels import tidy
from pstn.data.series import Cases, Length, Missing, assemble


def read_tsv(
    path: StrPath,
    *,
    length: Length = None,
    missing: Missing = "error",
    classes: Sequence[str] | None = None,
    name: str | None = None,
) -> Data:
    r"""Series of one channel from lines of text: a label, then the values, between tabs, commas or spaces.

    Labels may be any numbers or words; they become 0 to K - 1 in order. NaN (or nothing) at the end of a line is
    padding of a shorter series, elsewhere a missing value. The file may be packed with gzip.

    Arguments:
        path: The file, .tsv, .csv or .txt.
        length: ``None`` if all series have the same length, ``"longest"`` to stretch all to the longest, or a number.
        missing: Whether a missing value is an error or interpolated (``"interpolate"``).
        classes: The classes in order; by default those found.
        name: What to call the set; by default the file's name.

    Returns:
        A data set (N, 1, L).

    References:
        H. A. Dau et al., The UCR time series archive, 2019.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "Small_TRAIN.tsv"
        >>> _ = file.write_text("-1\t0.5\t1.5\n1\t2.5\t3.5\n")
        >>> data = read_tsv(file)
        >>> data.x.tolist(), data.y.tolist(), data.classes
        ([[[0.5, 1.5]], [[2.5, 3.5]]], [0, 1], ('-1', '1'))
    """
    label = name or Path(path).name.partition(".")[0]
    return assemble(parse_tsv(path), length=length, missing=missing, classes=classes, name=label)


def parse_tsv(path: StrPath) -> Cases:
    """What a file in the UCR text format holds."""
    series: list[list[np.ndarray]] = []
    labels: list[str] = []
    for number, line in enumerate(decoded(path).splitlines(), start=1):
        if not line.strip():
            continue
        separator = "\t" if "\t" in line else "," if "," in line else None
        label, *values = line.strip(" ").split(separator)
        channel = numbers(values, f"{path}, line {number}")
        known = np.flatnonzero(~np.isnan(channel))
        if not len(known):
            raise ValueError(f"{path}, line {number} has no values; expected a label and then a series")
        if tidy(label).lower() in ("", "nan"):
            raise ValueError(f"{path}, line {number} has no label; expected a label and then a series")
        series.append([channel[: known[-1] + 1]])
        labels.append(tidy(label))
    if not series:
        raise ValueError(f"{path} holds no series; expected lines with a label and then a series")
    return Cases(series, labels, str(path))


def decoded(path: StrPath) -> str:
    """The text of a file, packed or not."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        words = f"{path} is not a text file in UTF-8 ({error.reason} at byte {error.start})"
        raise ValueError(f"{words}; if it is text, save it as UTF-8") from error


def numbers(values: Sequence[str], where: str, unknown: Sequence[str] = ("",)) -> np.ndarray:
    """Text as numbers, NaN for what stands for a missing value."""
    try:
        return np.array([("nan" if value.strip() in unknown else value) for value in values], dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; expected numbers after the label") from error
