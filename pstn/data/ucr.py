"""Time series of the UCR archive by name."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pstn.data.base import Data
from pstn.data.files import StrPath, roots
from pstn.data.labels import class_order
from pstn.data.mnist import Split
from pstn.data.series import Cases, Length, Missing, assemble
from pstn.data.ts import parse_ts
from pstn.data.tsv import parse_tsv
from pstn.grid import check_choice

_ENDINGS = {".tsv.gz": parse_tsv, ".tsv": parse_tsv, ".ts.gz": parse_ts, ".ts": parse_ts}


def ucr(
    name: str,
    split: Split = "train",
    root: StrPath | None = None,
    *,
    length: Length = None,
    missing: Missing = "error",
) -> Data:
    """A data set of the UCR (or UEA) archive: series (N, C, L) as published, not normalised further.

    The files are looked for as ``UCR/NAME/NAME_TRAIN`` and ``_TEST`` with the ending .tsv.gz, .tsv, .ts.gz or .ts, in
    ``root`` or ``$PSTN_DATA`` and in the cache. The classes are those of both files, so that the splits agree.

    Arguments:
        name: The data set, for example ``"FaceAll"``.
        split: ``"train"`` or ``"test"``.
        root: The folder of all data sets.
        length: ``None`` if all series have the same length, ``"longest"`` to stretch all to the longest of both files,
            or a number of points.
        missing: Whether a missing value is an error or interpolated (``"interpolate"``).

    References:
        H. A. Dau et al., The UCR time series archive, 2019.
    """
    check_choice("split", split, get_args(Split))
    files = {part: find_ucr(name, part, root) for part in get_args(Split)}
    if files[split] is None:
        raise FileNotFoundError(_missing(name, split, root))
    cases = {part: _parse(path) for part, path in files.items() if path is not None}
    labels = [label for part in cases.values() for label in (*part.labels, *(part.classes or ()))]
    if length == "longest":
        length = max(part.longest for part in cases.values())
    return assemble(cases[split], length=length, missing=missing, classes=class_order(labels), name=f"{name} {split}")


def find_ucr(name: str, split: Split, root: StrPath | None = None) -> Path | None:
    """The file of a data set's split, if there is one."""
    candidates = (
        place / "UCR" / name / f"{name}_{split.upper()}{ending}" for place in roots(root) for ending in _ENDINGS
    )
    return next((path for path in candidates if path.is_file()), None)


def ucr_names(root: StrPath | None = None) -> tuple[str, ...]:
    """The data sets of the archive that are at hand, whole or in part."""
    folders = {folder.name for place in roots(root) for folder in (place / "UCR").glob("*") if folder.is_dir()}
    return tuple(sorted(name for name in folders if any(find_ucr(name, part, root) for part in get_args(Split))))


def _parse(path: Path) -> Cases:
    return next(parse for ending, parse in _ENDINGS.items() if path.name.endswith(ending))(path)


def _missing(name: str, split: Split, root: StrPath | None) -> str:
    file = Path("UCR") / name / f"{name}_{split.upper()}.tsv"
    looked = " or ".join(str(place / file) for place in roots(root))
    known = ", ".join(ucr_names(root)) or "none"
    return (
        f"{name} {split} is not at hand: looked for {looked} (also .gz, .ts); at hand: {known}. The archive is at "
        "https://www.timeseriesclassification.com; PSTN_DATA names the folder that holds UCR/"
    )
