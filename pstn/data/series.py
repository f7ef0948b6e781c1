"""Labelled series as files hold them, of any length and with gaps, and making one array of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch

from pstn.data.base import Data
from pstn.data.labels import encode
from pstn.grid import check_choice, resized

#: How long the series shall be: as they are (all the same), as long as the longest, or so many points.
Length = int | Literal["longest"] | None
Missing = Literal["error", "interpolate"]


@dataclass(frozen=True)
class Cases:
    """What a file of series holds.

    Arguments:
        series: The channels of each case, of whatever lengths, NaN where a value is missing.
        labels: The label of each case.
        source: The file.
        classes: The classes the file itself declares.
    """

    series: list[list[np.ndarray]]
    labels: list[str]
    source: str
    classes: tuple[str, ...] | None = None

    @property
    def longest(self) -> int:
        """The number of points of the longest channel."""
        return max(len(channel) for case in self.series for channel in case)


def assemble(
    cases: Cases,
    *,
    length: Length = None,
    missing: Missing = "error",
    classes: Sequence[str] | None = None,
    name: str = "series",
    double: bool = False,
) -> Data:
    """Cases as one data set (N, C, L).

    Convention: resampling is linear, or takes the mean of what each new point covers where series shrink, and the outer
    edges of the first and the last point stay where they are, as when an image is resized.

    Arguments:
        cases: What a file holds.
        length: ``None`` if all series have the same length, ``"longest"`` to stretch all to the longest, or a number.
        missing: Whether a missing value is an error or interpolated from its neighbours in time.
        classes: The classes in order; those the file declares, or else those found, by default.
        name: What to call the set.
        double: Keep small changes of large numbers, in float64.
    """
    check_choice("missing", missing, get_args(Missing))
    if not cases.series:
        raise ValueError(f"{cases.source} holds no series")
    channels = {len(case) for case in cases.series}
    if len(channels) > 1:
        raise ValueError(f"{cases.source} has series of {sorted(channels)} channels; expected the same for all")

    lengths = {len(channel) for case in cases.series for channel in case}
    if length is None and len(lengths) > 1:
        raise ValueError(
            f"{cases.source} has series of {min(lengths)} to {max(lengths)} points; expected one length for all: "
            f'length="longest" or length={max(lengths)} interpolates'
        )
    points = length if isinstance(length, int) else cases.longest
    if points < 1:
        raise ValueError(f"length is {points}; expected at least one point")

    x = torch.empty(len(cases.series), *channels, points, dtype=torch.float64 if double else torch.float32)
    for i, case in enumerate(cases.series):
        for j, channel in enumerate(case):
            complete = torch.from_numpy(_complete(channel, missing, f"{cases.source}, series {i}"))
            x[i, j] = resized(complete[None, None], (points,))[0, 0]
    y, names = encode(cases.labels, cases.source, classes if classes is not None else cases.classes)
    return Data(x, y, names, name)


def filled(x: np.ndarray, source: str) -> np.ndarray:
    """Series (N, C, L) without gaps: those that end early are stretched, other missing values are interpolated.

    Arguments:
        x: The series, NaN where a value is missing, and in all channels after the end of a shorter one.
        source: The file, for messages.

    Example:
        >>> filled(np.array([[[1.0, np.nan, 3.0]], [[5.0, 6.0, 7.0]]]), "a file")[:, 0].tolist()
        [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]
    """
    there = ~np.isnan(x).all(axis=1)
    ends = [int(known[-1]) + 1 if len(known := np.flatnonzero(one)) else x.shape[2] for one in there]
    series = [[channel[:end] for channel in case] for case, end in zip(x, ends, strict=True)]
    cases = Cases(series, ["0"] * len(x), source)
    return assemble(cases, length=x.shape[2], missing="interpolate", double=True).x.numpy()


def _complete(channel: np.ndarray, missing: Missing, where: str) -> np.ndarray:
    gaps = np.isnan(channel)
    if gaps.all():
        raise ValueError(f"{where} (counted from 0) has no values")
    if not gaps.any():
        return channel
    if missing == "error":
        raise ValueError(
            f"{where} (counted from 0) lacks {gaps.sum()} of {len(channel)} values, the first at {gaps.argmax()}; "
            'missing="interpolate" fills them in'
        )
    time = np.arange(len(channel))
    return np.interp(time, time[~gaps], channel[~gaps])
