"""Making a data set of numpy arrays, whatever the order of their axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch

from pstn.data.base import Data
from pstn.data.labels import encode, words
from pstn.data.series import Missing, filled
from pstn.grid import check_choice

#: The axes of an array in order: N examples, C channels, D depth, H height, W width, L length.
Layout = Literal["NL", "NCL", "NLC", "NHW", "NCHW", "NHWC", "NDHW", "NCDHW", "NDHWC"]

_COLOURS = (1, 3, 4)


def from_arrays(
    x: np.ndarray,
    y: np.ndarray,
    *,
    layout: Layout | None = None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    missing: Missing = "error",
    double: bool = False,
) -> Data:
    """A data set of an array of examples and an array of labels.

    Images and volumes of uint8 are divided by 255; all other values are taken as they are.

    Arguments:
        x: The examples, two to five axes, the examples first.
        y: The labels, (N,): whole numbers or words.
        layout: The order of the axes, such as ``"NHWC"``. By default it is guessed, and an error if two are likely.
        classes: The names of the classes in order: integers in ``y`` count them from 0, words are looked up. By default
            the classes are what is found in ``y``.
        name: What to call the set.
        missing: Whether NaN in series is an error or interpolated (``"interpolate"``), but for padding at the end.
        double: Keep small changes of large numbers in series, in float64.

    Returns:
        A data set (N, C, *space) in float32, unless it is series in double.

    Example:
        >>> from_arrays(np.zeros((2, 5, 6, 3), np.uint8), np.array([1, 4]))
        Data('arrays', 2 examples of (3, 5, 6), 2 classes)
    """
    if x.dtype.kind not in "biuf":
        raise TypeError(f"x of {name!r} is {x.dtype}; expected numbers")
    if layout is None:
        layout = _guess(x)
    check_choice("layout", layout, get_args(Layout))
    check_choice("missing", missing, get_args(Missing))
    if len(layout) != x.ndim:
        raise ValueError(f"layout is {layout!r}, which has {len(layout)} axes; x has shape {x.shape}")
    x = x.transpose([layout.index(axis) for axis in "NCDHWL" if axis in layout])
    if "C" not in layout:
        x = x[:, None]
    images = "H" in layout
    if missing == "interpolate" and not images and x.dtype.kind == "f" and np.isnan(x).any():
        x = filled(x.astype(np.float64), name)
    values = torch.from_numpy(np.require(x, np.float64 if double and not images else np.float32, ["C", "W"]))
    if x.dtype == np.uint8 and images:
        values /= 255
    if classes is not None and y.dtype.kind in "iu":
        return Data(values, torch.from_numpy(y.astype(np.int64)), tuple(classes), name)
    numbers, names = encode(words(y, name), name, classes)
    return Data(values, numbers, names, name)


def _guess(x: np.ndarray) -> Layout:
    if x.ndim == 2:
        return "NL"
    if x.ndim == 3 and x.dtype == np.uint8:
        return "NHW"
    if x.ndim == 4 and (x.shape[1] in _COLOURS) != (x.shape[3] in _COLOURS):
        return "NHWC" if x.shape[3] in _COLOURS else "NCHW"
    if x.ndim not in (3, 4, 5):
        raise ValueError(f"x has shape {x.shape}; expected the examples first, then one to four axes")
    likely = [layout for layout in get_args(Layout) if len(layout) == x.ndim]
    raise ValueError(f"x has shape {x.shape}: say what its axes are, layout= one of {', '.join(map(repr, likely))}")
