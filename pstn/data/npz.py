"""Data sets in numpy's npz files; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from pstn.data.arrays import Layout, from_arrays
from pstn.data.base import Data
from pstn.data.files import StrPath
from pstn.data.labels import class_order, words
from pstn.data.series import Missing


def read_npz(
    path: StrPath,
    split: str | None = None,
    *,
    layout: Layout | None = None,
    name: str | None = None,
    missing: Missing = "error",
    double: bool = False,
) -> Data:
    """The arrays ``x`` and ``y`` of an npz file, or ``x_train`` and ``y_train``, ``x_test`` and ``y_test``, ...

    The classes are those of all labels in the file, so that its splits agree, or its array ``classes``, which integer
    labels count from 0.

    Arguments:
        path: The file.
        split: ``None`` for x and y, otherwise the word after ``x_`` and ``y_``.
        layout: The order of the axes of x, such as ``"NHWC"``; guessed where only one is likely.
        name: What to call the set; by default the file's name and the split.
        missing: Whether NaN in series is an error or interpolated (``"interpolate"``), but for padding at the end.
        double: Keep small changes of large numbers in series, in float64.

    Returns:
        A data set (N, C, *space); images of uint8 are divided by 255.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "small.npz"
        >>> np.savez(file, x_train=np.zeros((4, 5, 5), np.uint8), y_train=np.array([0, 1, 1, 0]))
        >>> read_npz(file, "train")
        Data('small train', 4 examples of (1, 5, 5), 2 classes)
    """
    arrays = read_arrays(path)
    end = f"_{split}" if split else ""
    if f"x{end}" not in arrays or f"y{end}" not in arrays:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise ValueError(f"{path} has {found}; expected x{end} and y{end} (split names the word after x_ and y_)")
    x, y = arrays[f"x{end}"], arrays[f"y{end}"]
    if "classes" in arrays:
        classes = tuple(words(arrays["classes"], str(path)).tolist())
    else:
        y = words(y, str(path))
        others = [words(values, str(path)) for key, values in arrays.items() if key == "y" or key.startswith("y_")]
        classes = class_order(np.unique(np.concatenate(others)).tolist())
    name = name or f"{Path(path).stem} {split or ''}".strip()
    return from_arrays(x, y, layout=layout, classes=classes, name=name, missing=missing, double=double)


def read_arrays(path: StrPath) -> dict[str, np.ndarray]:
    """All arrays of an npz file by name; an array of Python objects is refused."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is truncated, damaged or not an npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}; expected plain arrays of numbers or words") from error
