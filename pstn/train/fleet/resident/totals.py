"""Operations that bring many entries down to one: sums, largest and smallest, all and any."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pstn.train.fleet.resident.entries import picked
from pstn.train.fleet.resident.index import Index, Place, split
from pstn.train.fleet.resident.values import Lazy, Memory, Value, allocate, written
from pstn.train.fleet.resident.writer import Writer

#: How entries are brought together, in the kernel's words.
WAYS = {"sum": "Sum", "max": "Max", "min": "Min", "all": "All"}


def total(
    writer: Writer, x: Value, axes: Sequence[int], keep: bool, way: str = "sum", room: Memory | None = None
) -> Value:
    """All entries along some axes, brought together, in given room if there is some."""
    rank = len(x.shape)
    over = sorted({axis % rank for axis in axes}) if rank else []
    rest = [axis for axis in range(rank) if axis not in over]
    small = tuple(1 if axis in over else n for axis, n in enumerate(x.shape))
    shape = small if keep else tuple(x.shape[axis] for axis in rest)
    if math.prod(x.shape[axis] for axis in over) == 1:
        return picked(x, shape, lambda _, place: place.reshaped(x.shape))
    if way == "sum" and isinstance(x, Lazy) and x.few is not None and {2, 3} <= set(over):
        return total(writer, x.few.values, axes, keep, room=room)
    if x.pending:
        x = written(writer, x)
    room = room or allocate(writer, shape, x.dtype)
    _bring_together(writer, room, x, rest, over, way)
    return room


def _bring_together(writer: Writer, room: Memory, x: Value, rest: list[int], over: list[int], way: str) -> None:
    kept, gone = (math.prod(x.shape[axis] for axis in axes) for axes in (rest, over))
    if not kept:
        return
    writer.reads(x.buffers)
    writer.line(f"// {way} of {list(x.shape)} along {over}")
    with writer.block(f"total<{WAYS[way]}, {kept}, {gone}>([&](int i, int j) -> float {{", "},", kept * gone):
        parts: list[Index] = [Index()] * len(x.shape)
        for axes, count, name in ((rest, kept, "i"), (over, gone, "j")):
            sizes = [x.shape[axis] for axis in axes]
            for axis, part in zip(axes, split(writer, writer.argument(name, count), sizes), strict=True):
                parts[axis] = part
        writer.line(f"return {x.at(writer, Place(x.shape, tuple(parts)))};")
    with writer.block("[&](int i, float found) {", "});", kept):
        place = Place(room.shape, flat=writer.argument("i", kept))
        writer.store(room.pointer, room.index(writer, place), "found")
    assert room.buffer is not None
    writer.writes(room.buffer)
