"""Turning the labels of a file into class numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


def tidy(label: str) -> str:
    """A label as people write it: ``"1.0000000e+00"`` is ``"1"``; what is no whole number stays as it is.

    Example:
        >>> tidy("-1.0"), tidy("0.5"), tidy("cat")
        ('-1', '0.5', 'cat')
    """
    number = _number(label)
    if number is None or not number.is_integer() or abs(number) >= 2**53:  # there, a float stands for several numbers
        return label.strip()
    return str(int(number))


def class_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in order: by value if all are numbers, by the alphabet otherwise.

    Example:
        >>> class_order(["10", "9", "-1", "9"]), class_order(["b", "10", "a"])
        (('-1', '9', '10'), ('10', 'a', 'b'))
    """
    different = sorted(set(labels))
    values = [_number(label) for label in different]
    if any(value is None for value in values):
        return tuple(different)
    return tuple(label for _, label in sorted(zip(values, different, strict=True)))


def encode(
    labels: np.ndarray | Sequence[str], source: str, classes: Sequence[str] | None = None
) -> tuple[Int64[Tensor, " n"], tuple[str, ...]]:
    """Labels as numbers 0 to K - 1, and the classes these stand for.

    Arguments:
        labels: One label an example.
        source: The file they come from, for messages.
        classes: The known classes in order; those found by default.

    Example:
        >>> encode(["b", "a", "b"], "a file")
        (tensor([1, 0, 1]), ('a', 'b'))
    """
    found, where = np.unique(np.asarray(labels).astype(str), return_inverse=True)
    names = class_order(found.tolist()) if classes is None else tuple(classes)
    number = {name: k for k, name in enumerate(names)}
    unknown = [name for name in found.tolist() if name not in number]
    if unknown:
        raise ValueError(f"{source} has the labels {unknown}, which are not among its classes {list(names)}")
    lookup = np.array([number[name] for name in found.tolist()], dtype=np.int64)
    return torch.from_numpy(lookup[where.reshape(-1)]), names


def words(y: np.ndarray, source: str) -> np.ndarray:
    """An array of labels as text: whole numbers of any dtype, or words.

    Example:
        >>> words(np.array([2.0, 10.0]), "an array").tolist()
        ['2', '10']
    """
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y.flat):  # as pandas keeps words
        y = y.astype(str)
    if y.dtype.kind not in "biufUS" or y.ndim != 1:
        raise TypeError(f"the labels of {source} are {y.dtype} of shape {y.shape}; expected N whole numbers or words")
    if y.dtype.kind == "f":
        if not (np.isfinite(y) & (y == np.rint(y))).all():
            raise ValueError(f"the labels of {source} are not all whole numbers; expected a class an example")
        y = y.astype(np.int64)
    return y.astype(str)


def _number(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if np.isfinite(value) and "_" not in label else None  # Python reads "1_2" as 12
