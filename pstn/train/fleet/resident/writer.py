"""The text of a kernel while it is being written: lines, names, places in memory, barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pstn.train.fleet.resident.index import Index

#: What a piece of scratch memory begins at a multiple of, in numbers.
ALIGNED = 32


class Writer:
    """A kernel that is being written.

    What a line computes is remembered as long as its name is good: the same text is not written twice.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.known: list[dict[str, str]] = [{}]  # names by what they stand for, from the outermost block inwards
        self.masks: list[str] = []
        self.given: dict[str, str] = {}  # the argument of a function that a variable depends on, where it is one
        self.limits: dict[str, int] = {}  # what a variable stays below
        self.count = 0
        self.memory = Scratch()
        self.epoch = 0  # how many barriers there have been
        self.fresh: set[int] = set()  # what was written since the last one
        self.covered: tuple[int, ...] | None = None  # the shape of what is being gone through, each entry once
        self.products = 0  # of numbers, in matrix products
        self.often = [1.0]  # how many times what is being written is gone through, from the outermost block inwards
        self.made: dict[Any, Any] = {}  # what else was written, by what it was made of

    def name(self) -> str:
        """A new name."""
        self.count += 1
        return f"v{self.count}"

    def line(self, text: str) -> None:
        """Write a line."""
        self.lines.append("  " * self.depth + text)

    def let(self, text: str, given: str | None = None, limit: int | None = None) -> str:
        """The name of what an expression gives; where it is an index, the argument that it depends on."""
        if text.isidentifier():
            return text
        for names in reversed(self.known):
            if text in names:
                return names[text]
        name = self.name()
        self.line(f"const auto {name} = {text};")
        self.known[-1][text] = name
        if given is not None:
            self.given[name] = given
        if limit is not None:
            self.limits[name] = limit
        return name

    @contextmanager
    def block(self, head: str, end: str = "}", times: float = 1) -> Iterator[None]:
        """Inside, lines are indented between a head and an end, and gone through so many times; names and masks end
        with it."""
        self.line(head)
        self.depth += 1
        self.known.append({})
        self.often.append(self.often[-1] * times)
        masks = len(self.masks)
        yield
        del self.masks[masks:]
        self.often.pop()
        self.known.pop()
        self.depth -= 1
        self.line(end)

    @contextmanager
    def masked(self, condition: str) -> Iterator[None]:
        """Inside, memory is read only where a condition holds."""
        self.masks.append(condition)
        self.known.append({})  # what is read there is not what is read elsewhere
        yield
        self.known.pop()
        self.masks.pop()

    def argument(self, name: str, limit: int) -> Index:
        """A whole number that a function is given, below a limit."""
        self.given[name], self.limits[name] = name, limit
        return Index.of(name)

    def text(self, index: Index) -> str:
        """An index in words, what depends on one argument summed first: it may stay while another changes."""
        groups: dict[str, list[str]] = {}
        for name, factor in index.terms:
            term = name if factor == 1 else f"{name} * {factor}"
            groups.setdefault(self.given.get(name, ""), []).append(term)
        if not groups:
            return str(index.constant)
        if index.constant:
            next(iter(groups.values())).append(str(index.constant))
        if len(groups) == 1:
            return " + ".join(next(iter(groups.values())))
        sums = [
            terms[0] if len(terms) == 1 and "*" not in terms[0] else self.let(" + ".join(terms), given)
            for given, terms in groups.items()
        ]
        return " + ".join(sums)

    def argument_of(self, index: Index) -> str | None:
        """The argument that an index depends on, if it is one."""
        found = {self.given.get(name) for name, _ in index.terms}
        return found.pop() if len(found) == 1 else None

    def named(self, index: Index) -> Index:
        """An index as one variable."""
        return Index.of(self.let(self.text(index), self.argument_of(index))) if index.terms else index

    def divided(self, index: Index, n: int) -> Index:
        """How many times n is in an index that is not negative."""
        if n == 1:
            return index
        if not index.terms:
            return Index(constant=index.constant // n)
        limit = self.limits.get(index.terms[0][0]) if index == Index.of(index.terms[0][0]) else None
        if limit is not None and limit <= n:
            return Index()
        below = None if limit is None else -(-limit // n)
        # of numbers without a sign, which divide faster
        text = f"int(unsigned({self.text(index)}) / {n}u)"
        return Index.of(self.let(text, self.argument_of(index), below))

    def load(self, pointer: str, index: Index) -> str:
        """The name of what is read at a place."""
        self.counts(pointer)
        place = f"{pointer}[{self.text(index)}]"
        mask = " && ".join(dict.fromkeys(self.masks))
        return self.let(f"{mask} ? {place} : 0" if mask else place, self.argument_of(index))

    def store(self, pointer: str, index: Index, value: str) -> None:
        """Write to memory."""
        self.counts(pointer)
        self.line(f"{pointer}[{self.text(index)}] = {value};")

    def counts(self, pointer: str, times: float = 1) -> None:
        """A piece of scratch memory is read or written so many times whenever this part of the text is gone through."""
        if "@" in pointer:
            piece = int(pointer.split("@")[1])
            self.memory.heat[piece] = self.memory.heat.get(piece, 0.0) + times * self.often[-1]

    def reads(self, buffers: frozenset[int]) -> None:
        """Before these pieces of scratch memory are read: wait until they are written."""
        if buffers & self.fresh:
            self.barrier()
        self.needs(buffers)

    def needs(self, buffers: frozenset[int]) -> None:
        """These pieces of scratch memory have been read until now."""
        for buffer in buffers:
            self.memory.last[buffer] = self.epoch

    def barrier(self) -> None:
        """Wait for one another."""
        self.line("SYNC();")
        self.passed()

    def meet(self) -> None:
        """Wait for one another, the other blocks of the network too."""
        self.line("TEAM_SYNC();")
        self.passed()

    def passed(self) -> None:
        """There has been a barrier."""
        self.epoch += 1
        self.fresh.clear()

    def writes(self, buffer: int) -> None:
        """A piece of scratch memory is about to be written."""
        self.fresh.add(buffer)
        self.memory.first.setdefault(buffer, self.epoch)
        self.memory.last[buffer] = max(self.memory.last.get(buffer, 0), self.epoch)


class Scratch:
    """Scratch memory: pieces, and when they are first written and last read, counted in barriers."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.heat: dict[int, float] = {}  # how often a piece is read or written
        self.open: set[int] = set()  # the pieces that other blocks of the network see, which keep their place
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def new(self, size: int) -> int:
        """A piece of so many numbers of four bytes."""
        self.sizes.append(-(-size // ALIGNED) * ALIGNED)
        return len(self.sizes) - 1

    def laid_out(self, shared: int) -> tuple[dict[int, str], int, int, int]:
        """Where each piece begins, and how much memory is shared by a block's threads, is not, and is seen by others.

        What is not needed any more is written over. Shared is what is read and written most for its size, as far as
        there is room for so many numbers: it is much faster, and there is little of it.
        """
        here: dict[int, int] = {}
        for piece in sorted(self.first.keys() - self.open, key=self._worth, reverse=True):
            more = here | {piece: self._free(piece, here)}
            if self._end(more) > shared:  # largest first may leave less room between them
                more = self._packed(more)
            here = more if self._end(more) <= shared else here
        there = self._packed(self.first.keys() - here.keys() - self.open)
        seen: dict[int, int] = {}
        for piece in sorted(self.open):
            seen[piece] = self._end(seen)
        memory = {"H": here, "S": there, "R": seen}
        names = {p: f"{name} + {at}" for name, begins in memory.items() for p, at in begins.items()}
        return names, self._end(here), self._end(there), self._end(seen)

    def _worth(self, piece: int) -> float:
        """How much is gained by sharing a piece, for the room that it takes up."""
        return self.heat.get(piece, 0.0) / self.sizes[piece]

    def _packed(self, pieces: Iterable[int]) -> dict[int, int]:
        """Where pieces begin, each wherever there is room beside larger ones."""
        begins: dict[int, int] = {}
        for piece in sorted(pieces, key=lambda p: (-self.sizes[p], p)):
            begins[piece] = self._free(piece, begins)
        return begins

    def _end(self, begins: dict[int, int]) -> int:
        return max((at + self.sizes[piece] for piece, at in begins.items()), default=0)

    def _free(self, piece: int, begins: dict[int, int]) -> int:
        """The first place with room for a piece, beside those that are needed at the same time."""
        at = 0
        for low, other in sorted((low, other) for other, low in begins.items() if self._meet(piece, other)):
            if at + self.sizes[piece] <= low:
                break
            at = max(at, low + self.sizes[other])
        return at

    def _meet(self, a: int, b: int) -> bool:
        return self.first[a] <= self.last[b] and self.first[b] <= self.last[a]
