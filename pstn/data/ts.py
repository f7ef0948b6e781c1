"""The .ts text format of sktime and aeon: a header of @tags, then channels between colons, the label last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pstn.data.base import Data
from pstn.data.files import StrPath
from pstn.data.labels import class_order, tidy
from pstn.data.series import Cases, Length, Missing, assemble
from pstn.data.tsv import decoded, numbers


def read_ts(
    path: StrPath,
    *,
    length: Length = None,
    missing: Missing = "error",
    classes: Sequence[str] | None = None,
    name: str | None = None,
) -> Data:
    r"""Labelled series of one channel or many from a .ts file, packed with gzip or not.

    A ``?`` or NaN is a missing value. Time stamps and regression targets are not supported and say so.

    Arguments:
        path: The file.
        length: ``None`` if all series have the same length, ``"longest"`` to stretch all to the longest, or a number.
        missing: Whether a missing value is an error or interpolated (``"interpolate"``).
        classes: The classes in order; by default those the file declares.
        name: What to call the set; by default the file's name.

    Returns:
        A data set (N, C, L).

    References:
        A. Bagnall et al., The UEA multivariate time series classification archive, 2018.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "Small_TRAIN.ts"
        >>> _ = file.write_text("@classLabel true no yes\n@data\n1,2,3:4,5,6:yes\n")
        >>> data = read_ts(file)
        >>> data.x.tolist(), data.y.tolist(), data.classes
        ([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], [1], ('no', 'yes'))
    """
    label = name or Path(path).name.partition(".")[0]
    return assemble(parse_ts(path), length=length, missing=missing, classes=classes, name=label)


def parse_ts(path: StrPath, *, labelled: bool = True) -> Cases:
    """What a .ts file holds; where it need not be labelled, its labels, if it has any, do not matter."""
    tags: dict[str, list[str]] = {}
    lines = enumerate(decoded(path).splitlines(), start=1)
    for _, line in lines:
        tag, *values = line.split() or ["#"]
        if tag.startswith("@"):
            tags[tag.lower()] = values
        elif not tag.startswith("#"):
            raise ValueError(f"{path} has {line[:40]!r} before @data; a .ts file starts with comments (#) and @tags")
        if tag.lower() == "@data":
            break
    else:
        raise ValueError(f"{path} has no @data line: it is truncated or not a .ts file")
    if _true(tags.get("@timestamps", [])):
        raise ValueError(f"{path} has time stamps, which are not supported; resample to even steps first")
    classes = _classes(path, tags) if labelled else None
    ends = labelled or any(_true(tags.get(tag, [])) for tag in ("@classlabel", "@targetlabel"))

    cases = Cases([], [], str(path), classes)
    for number, line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path}, line {number}"
        # without labels, a line may end with a colon or not
        *channels, label = (line.strip() if ends else f"{line.strip().removesuffix(':')}:").split(":")
        if any("(" in channel for channel in channels):
            raise ValueError(f"{where} has time stamps, which are not supported; resample to even steps first")
        if not channels or (labelled and tidy(label).lower() in ("", "nan", "?")):
            raise ValueError(f"{where} has no label; expected channels and then a label, with colons between")
        cases.series.append([numbers(channel.split(","), where, unknown=("", "?")) for channel in channels])
        cases.labels.append(tidy(label))
        expected = tags.get("@dimensions") or tags.get("@dimension") or [str(len(cases.series[0]))]
        if str(len(channels)) != expected[0]:
            raise ValueError(f"{where} has {len(channels)} channels, {expected[0]} expected")
    if not cases.series:
        raise ValueError(f"{path} holds no series; expected lines of them after @data")
    return cases


def _classes(path: StrPath, tags: dict[str, list[str]]) -> tuple[str, ...] | None:
    if not _true(tags.get("@classlabel", [])):
        raise ValueError(f"{path} has no class labels (@classLabel true a b ...); only classification is supported")
    return class_order(tidy(label) for label in tags["@classlabel"][1:]) or None


def _true(values: Sequence[str]) -> bool:
    return bool(values) and values[0].lower() == "true"
