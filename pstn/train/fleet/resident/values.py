"""What a step computes with: numbers in memory, and numbers that are computed where they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from pstn.train.fleet.resident.index import Index, Place, strides
from pstn.train.fleet.resident.writer import Writer

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long long",
    torch.int32: "int",
    torch.int8: "signed char",
    torch.bool: "bool",
}
#: Entries that a thread reads before it writes the first of them, where there are so many for each.
TOGETHER, MANY = 4, 1024
#: Bytes of what scratch memory may hold.
WIDTHS = {torch.float32: 4, torch.int32: 4, torch.int64: 8, torch.bool: 1, torch.int8: 1}
#: Banks of shared memory, and steps from row to row by which four columns of eight rows lie in different ones.
BANKS, APART = 32, (4, 12, 20, 28)
#: What is cheaper to compute again than to write down and read, in operations and reads.
CHEAP = 4


class Unsupported(Exception):
    """A step that cannot be written as one kernel."""


@dataclass(eq=False, kw_only=True)
class Value:
    """An array of a step."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kept: Memory | None = None
    """Where it has been written to, if it has."""

    @property
    def numel(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def cost(self) -> int:
        """What it takes to get an entry, in operations and reads."""
        return 1

    @property
    def buffers(self) -> frozenset[int]:
        """The pieces of scratch memory that are read for an entry."""
        return frozenset()

    @property
    def inputs(self) -> frozenset[str]:
        """The step's own arrays that are read for an entry."""
        return frozenset()

    @property
    def pending(self) -> frozenset[Pending]:
        """The products that have not been computed yet and belong to it."""
        return frozenset()

    def at(self, writer: Writer, place: Place) -> str:
        """The name or the text of the entries at a place."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class Number(Value):
    """One number everywhere."""

    value: float

    cost = 0

    def at(self, writer: Writer, place: Place) -> str:
        """The number."""
        return literal(self.value, self.dtype)


@dataclass(eq=False, kw_only=True)
class Memory(Value):
    """Numbers in memory, an entry every so many steps along each axis."""

    pointer: str
    steps: tuple[int, ...]
    offset: int = 0
    buffer: int | None = None
    source: str | None = None

    @property
    def buffers(self) -> frozenset[int]:
        """The piece of scratch memory, if it is in one."""
        return frozenset() if self.buffer is None else frozenset({self.buffer})

    @property
    def inputs(self) -> frozenset[str]:
        """The step's array that it is, or is a view of."""
        return frozenset() if self.source is None else frozenset({self.source})

    def index(self, writer: Writer, place: Place) -> Index:
        """Where an entry is."""
        full = all(n == 1 or a == b for n, a, b in zip(self.shape, self.steps, strides(self.shape), strict=True))
        if full:
            return place.row() + self.offset
        parts = place.axes(writer)
        return (
            sum((i * s for i, n, s in zip(parts, self.shape, self.steps, strict=True) if n > 1), Index()) + self.offset
        )

    def at(self, writer: Writer, place: Place) -> str:
        """The entries, read."""
        name = writer.load(self.pointer, self.index(writer, place))
        return writer.let(f"{name} != 0") if self.dtype == torch.bool else name

    def is_same(self, value: Value) -> bool:
        """Whether a value is what is here."""
        return isinstance(value, Memory) and (value.pointer, value.offset) == (self.pointer, self.offset)

    def narrowed(self, axis: int, start: int, length: int) -> Memory:
        """A part of it along an axis."""
        shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        return replace(self, shape=shape, offset=self.offset + start * self.steps[axis])

    def viewed(self, view: Callable[[torch.Tensor], torch.Tensor]) -> Memory | None:
        """A view of it, by torch's own rules; None where there is none."""
        length = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.steps, strict=True)) + self.offset
        base = torch.empty(max(length, 1), device="meta").as_strided(self.shape, self.steps, self.offset)
        try:
            seen = view(base)
        except RuntimeError:
            return None
        if seen.untyped_storage()._cdata != base.untyped_storage()._cdata:
            return None
        return replace(self, shape=tuple(seen.shape), steps=tuple(seen.stride()), offset=int(seen.storage_offset()))


@dataclass(frozen=True)
class Few:
    """Some numbers of an array (B, C, H, W) that is zero elsewhere, which have the same sums over its pixels.

    Arguments:
        values: The numbers, (B, C, h, w).
        place: Where one of them is in the array.
    """

    values: Value
    place: Callable[[Writer, Place], Place]


@dataclass(eq=False, kw_only=True)
class Lazy(Value):
    """Numbers that are computed from others, entry by entry, wherever they are needed."""

    get: Callable[[Writer, Place], str]
    of: tuple[Value, ...] = ()
    work: int = 1
    few: Few | None = None
    """All of its numbers that are not zero, where the gradient of a pooling has spread them out."""

    @property
    def cost(self) -> int:
        """Its own operations and those of what it is computed from."""
        return 1 if self.kept else self.work + sum(value.cost for value in self.of)

    @property
    def buffers(self) -> frozenset[int]:
        """Whatever its sources read."""
        return self.kept.buffers if self.kept else frozenset().union(*(value.buffers for value in self.of))

    @property
    def inputs(self) -> frozenset[str]:
        """Whatever its sources read."""
        return frozenset() if self.kept else frozenset().union(*(value.inputs for value in self.of))

    @property
    def pending(self) -> frozenset[Pending]:
        """What its sources wait for."""
        return frozenset() if self.kept else frozenset().union(*(value.pending for value in self.of))

    def at(self, writer: Writer, place: Place) -> str:
        """The entries, computed."""
        return self.kept.at(writer, place) if self.kept else writer.let(self.get(writer, place))


@dataclass(eq=False, kw_only=True)
class Pending(Value):
    """A product that is computed when it is known what is to be done with each of its entries."""

    compute: Callable[[Writer, Callable[[Place], None]], None]
    of: tuple[Value, ...] = ()
    found: str | None = None

    @property
    def buffers(self) -> frozenset[int]:
        """Whatever its sources read."""
        return frozenset().union(*(value.buffers for value in self.of))

    @property
    def inputs(self) -> frozenset[str]:
        """Whatever its sources read."""
        return frozenset().union(*(value.inputs for value in self.of))

    @property
    def pending(self) -> frozenset[Pending]:
        """Itself."""
        return frozenset() if self.kept else frozenset({self})

    def at(self, writer: Writer, place: Place) -> str:
        """The entries of the tile that has just been computed."""
        if self.kept:
            return self.kept.at(writer, place)
        assert self.found is not None
        assert place.shape == self.shape
        return self.found


def literal(value: float, dtype: torch.dtype) -> str:
    """A number in words."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    if value != value:
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = f"{value!r}{'' if dtype == torch.float64 else 'f'}"
    return f"({text})" if value < 0 else text


def allocate(writer: Writer, shape: Sequence[int], dtype: torch.dtype, spaced: bool = False) -> Memory:
    """Room for an array in scratch memory.

    Arguments:
        writer: The kernel.
        shape: The array's shape.
        dtype: The type of its numbers.
        spaced: Whether the second axis may have gaps, so that threads that read along it do not meet.
    """
    if dtype not in WIDTHS:
        raise Unsupported(f"{dtype} has no scratch memory")
    shape = tuple(shape)
    steps = list(strides(shape))
    if spaced and len(shape) == 4 and steps[1] >= BANKS:
        while steps[1] % BANKS not in APART:
            steps[1] += 1
        steps[0] = steps[1] * shape[1]
    length = steps[0] * shape[0] if shape else 1
    piece = writer.memory.new(-(-length * WIDTHS[dtype] // 4))
    pointer = f"(@{piece}@)" if dtype == torch.float32 else f"reinterpret_cast<{TYPES[dtype]}*>(@{piece}@)"
    return Memory(shape=shape, dtype=dtype, pointer=pointer, steps=tuple(steps), buffer=piece)


def written(writer: Writer, value: Value, room: Memory | None = None) -> Memory:
    """An array in memory: where it is, or written to scratch memory now, or to some given room."""
    if room is None and (isinstance(value, Memory) or value.kept):
        return value if isinstance(value, Memory) else value.kept  # type: ignore[return-value]
    room = room or allocate(writer, value.shape, value.dtype, spaced=True)
    each(writer, [(room, value)])
    value.kept = room
    return room


def each(writer: Writer, pairs: Sequence[tuple[Memory, Value]], shared_out: bool = False) -> None:
    """Write arrays of one shape to memory, entry by entry; what an entry is made of is read before it is written.

    Arguments:
        writer: The kernel.
        pairs: Where to, and what.
        shared_out: Whether each block of the network writes a part of the entries.
    """
    shape, total = pairs[0][1].shape, pairs[0][1].numel
    waiting = sorted(frozenset().union(*(value.pending for _, value in pairs)), key=id)
    assert len(waiting) <= 1, "two products at once"
    if not total:
        return
    buffers = frozenset().union(*(value.buffers for _, value in pairs))
    writer.reads(buffers)
    writer.line(f"// {', '.join(str(list(room.shape)) for room, _ in pairs)}")
    before, writer.covered = writer.covered, shape

    def put(place: Place, texts: Sequence[str]) -> None:
        for (room, _), text in zip(pairs, texts, strict=True):
            writer.store(room.pointer, room.index(writer, place), text)

    if waiting:
        waiting[0].compute(writer, lambda place: put(place, [value.at(writer, place) for _, value in pairs]))
        writer.needs(buffers)  # behind the barrier, too, that may be in the midst of a product
    else:
        kinds = {TYPES[value.dtype] for _, value in pairs}
        assert len(kinds) == 1, "arrays of several types at once"
        kind = f"Many<{kinds.pop()}, {len(pairs)}>"
        together = min(TOGETHER, max(1, total // MANY))
        blocks = "TEAM" if shared_out else "1"
        with writer.block(f"each<{total}, {together}, {blocks}>([&](int i) -> {kind} {{", "},", total):
            place = Place(shape, flat=writer.argument("i", total))
            found = [value.at(writer, place) for _, value in pairs]
            writer.line(f"return {{{{{', '.join(found)}}}}};")
        with writer.block(f"[&](int i, {kind} found) {{", "}, rank);" if shared_out else "});", total):
            place = Place(shape, flat=writer.argument("i", total))
            put(place, [f"found[{n}]" for n in range(len(pairs))])
    writer.covered = before
    for room, _ in pairs:
        if room.buffer is not None:
            writer.writes(room.buffer)
