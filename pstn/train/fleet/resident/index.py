"""Places in arrays, as they are written in a kernel: sums of variables times numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pstn.train.fleet.resident.writer import Writer


@dataclass(frozen=True)
class Index:
    """A whole number: variables of the kernel times numbers, and a number.

    Example:
        >>> 3 * (Index.of("i") + 2) + Index.of("j")
        Index(terms=(('i', 3), ('j', 1)), constant=6)
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(name: str) -> Index:
        """A variable."""
        return Index(((name, 1),))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        sums = dict(self.terms)
        for name, factor in other.terms:
            sums[name] = sums.get(name, 0) + factor
        return Index(tuple((n, f) for n, f in sums.items() if f), self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((n, f * factor) for n, f in self.terms if factor), self.constant * factor)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __rsub__(self, other: int) -> Index:
        return self * -1 + other


@dataclass(frozen=True)
class Place:
    """Entries of an array: one index an axis, or one into the array as a row, whichever is known."""

    shape: tuple[int, ...]
    parts: tuple[Index, ...] | None = None
    flat: Index | None = None

    def axes(self, writer: Writer) -> tuple[Index, ...]:
        """One index an axis."""
        if self.parts is not None:
            return self.parts
        assert self.flat is not None
        return split(writer, self.flat, self.shape)

    def row(self) -> Index:
        """The index into the array as a row."""
        if self.flat is not None:
            return self.flat
        assert self.parts is not None
        return sum((i * n for i, n in zip(self.parts, strides(self.shape), strict=True)), Index())

    def reshaped(self, shape: Sequence[int]) -> Place:
        """The same entries of the array in another shape."""
        return self if tuple(shape) == self.shape else Place(tuple(shape), flat=self.row())

    def broadcast(self, writer: Writer, shape: Sequence[int]) -> Place:
        """The entries of a smaller array that stand in for these, by the rules of broadcasting."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        if math.prod(shape) == 1:
            return Place(shape, (Index(),) * len(shape), Index())
        parts = self.axes(writer)[len(self.shape) - len(shape) :]
        return Place(shape, tuple(Index() if n == 1 else i for i, n in zip(parts, shape, strict=True)))

    def changed(self, writer: Writer, axis: int, index: Index, shape: Sequence[int]) -> Place:
        """The entries of an array of another shape that differ from these along one axis."""
        parts = self.axes(writer)
        return Place(tuple(shape), (*parts[:axis], index, *parts[axis + 1 :]))


def split(writer: Writer, flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """A place in a row as one in an array."""
    parts: list[Index] = []
    last = next((i for i, n in enumerate(shape) if n > 1), 0)  # what is left there is no more than its length
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            parts.append(Index())
        elif axis == last:
            parts.append(flat)
        else:
            above = writer.divided(flat, shape[axis])
            parts.append(flat - above * shape[axis])
            flat = above
    return tuple(reversed(parts))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The steps in memory of an array that fills its piece of it.

    Example:
        >>> strides((2, 3, 4))
        (12, 4, 1)
    """
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= n
    return tuple(reversed(steps))
