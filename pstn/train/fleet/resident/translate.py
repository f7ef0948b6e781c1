"""From the operations of a step to the text of a kernel."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pstn.train.fleet.resident.entries import TESTS, WORDS, picked, pointwise
from pstn.train.fleet.resident.flows import singles
from pstn.train.fleet.resident.index import Index, Place
from pstn.train.fleet.resident.nodes import (
    COPIES,
    FILLS,
    RESHAPES,
    VIEWS,
    aten,
    by_entries,
    last,
    names,
    reads,
    shape_of,
    type_of,
    uses,
)
from pstn.train.fleet.resident.operations import OPERATIONS
from pstn.train.fleet.resident.pictures import side_by_side
from pstn.train.fleet.resident.values import CHEAP, Lazy, Memory, Number, Unsupported, Value, allocate, each, written
from pstn.train.fleet.resident.writer import Writer

#: The most entries of arrays that are joined where they are needed instead of in memory, and the most arrays.
SMALL, FEW = 4096, 4
#: How many times larger what is computed from an array must be for it to be worth to be in memory.
MANY = 8


class Translator:
    """A step that is being written as a kernel, operation by operation.

    Arguments:
        module: The step: operations on the arrays of one network, which end in copies to those that change.
        arrays: What the step is given, by the names of its placeholders.
        team: How many blocks a network has, each for a part of the examples.
    """

    def __init__(self, module: GraphModule, arrays: Mapping[str, Value], team: int = 1) -> None:
        self.writer = Writer()
        self.team = team
        self.values: dict[Node, Any] = {}
        self.constants: list[Tensor] = []
        self.uses, self.last = uses(module.graph), last(module.graph)
        self.changes: list[tuple[Memory, Value]] = []
        self.joins: dict[Node, Memory] = {}  # room for arrays that are joined
        self.rooms: dict[Node, Memory] = {}  # and in it for what they are joined from
        less = singles(module.graph.nodes)
        for node in less:
            node.meta["val"] = torch.empty(shape_of(node), device="meta")
        for node in module.graph.nodes:
            if node.target is aten.cat.default and self.uses.get(node):
                self._make_room(node)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = arrays[str(node.target)]
            elif node.op == "get_attr":
                value = getattr(module, str(node.target))
                self.values[node] = self._constant(value.float() if node in less else value)
            elif node.op == "call_function" and (self.uses.get(node) or node.target is aten.copy_.default):
                self._meet(node)
        self._write_changes()

    # For the operations.

    def words(self, node: Node, words: str, *given: Any, test: bool = False) -> Value:
        """An operation in words of the kernel, entry by entry."""
        shape = shape_of(node)
        return pointwise(shape, type_of(node), words, *(self.light(value, shape) for value in given), test=test)

    def ready(self, value: Value) -> Value:
        """A value of which any entry may be asked for."""
        return written(self.writer, value) if value.pending else value

    def light(self, value: Any, shape: Sequence[int]) -> Any:
        """What is needed for every entry of a larger array, in memory if it is not cheap to compute."""
        if not isinstance(value, Value) or isinstance(value, Memory | Number):
            return value
        much = value.numel * MANY <= math.prod(shape) and value.cost > CHEAP
        return written(self.writer, value) if much else value

    def thin(self, value: Value, shape: tuple[int, ...]) -> Value:
        """A value in a shape with one more axis, of length one."""
        if isinstance(value, Number):
            return Number(shape=shape, dtype=value.dtype, value=value.value)
        if isinstance(value, Memory) and (seen := value.viewed(lambda t: t.view(shape))) is not None:
            return seen
        source = self.ready(value)
        return picked(source, shape, lambda _, place: place.reshaped(source.shape))

    def pooling(self, node: Node) -> Node | None:
        """The pooling that alone looks at a convolution, of windows side by side, if there is one."""
        readers = self._readers(node)
        if len(readers) != 1 or readers[0].target is not aten.max_pool2d_with_indices.default:
            return None
        how: Any = readers[0].args[1:]
        return readers[0] if side_by_side(*how) else None

    # Operation by operation.

    def _meet(self, node: Node) -> None:
        given: Any = torch.fx.map_arg(node.args, self.values.__getitem__)
        options: Any = torch.fx.map_arg(dict(node.kwargs), self.values.__getitem__)
        if node.target is aten.copy_.default:
            self._change(node.all_input_nodes[0], *given)
            self.values[node] = given[1]
            return
        found = given[0][given[1]] if node.target is operator.getitem else self._found(node, given, options)
        self.values[node] = self._kept(node, found) if isinstance(found, Value) else found

    def _found(self, node: Node, given: Any, options: Any) -> Any:
        if node.target in VIEWS:
            return self._view(node, given)
        if node.target in COPIES:
            return given[0]
        if node.target in FILLS:
            which = FILLS[node.target]
            value = given[which] if isinstance(which, int) else which
            return Number(shape=shape_of(node), dtype=type_of(node), value=value)
        if (number := _known(node, given, options)) is not None:
            return number
        for name in names(node):
            if name in WORDS:
                return self.words(node, WORDS[name], *given)
            if name in TESTS:
                return self.words(node, TESTS[name], *given, test=True)
            if name in OPERATIONS:
                return OPERATIONS[name](self, node, *given, **options)
        raise Unsupported(str(node.target))

    def _kept(self, node: Node, value: Value) -> Value:
        """A value as it is to be met again: in memory, where that is better, or where it has to be."""
        room = self.rooms.get(node)
        if room is not None and value.kept is not room and not room.is_same(value):
            return written(self.writer, value, room)
        if isinstance(value, Memory | Number):
            return value
        waiting = len(value.pending)
        if waiting > 1:
            raise Unsupported("two products in one")
        if waiting:
            return value if self._goes_on(node, value) else written(self.writer, value)
        often = self.uses[node] > 1 and value.cost > CHEAP and node not in self.last and not _few(value)
        return written(self.writer, value) if often else value

    def _goes_on(self, node: Node, value: Value) -> bool:
        """Whether all that is done with a product is done entry by entry, with nothing else that waits."""
        if self.uses[node] != 1:
            return False
        (user,) = self._readers(node)
        others = [n for n in user.all_input_nodes if n is not node]
        there = all(n in self.values and not getattr(self.values[n], "pending", None) for n in others)
        return by_entries(user) and shape_of(user) == value.shape and there

    def _readers(self, node: Node) -> list[Node]:
        return [user for user in node.users if self.uses.get(user) and reads(user, node)]

    def _constant(self, value: Tensor) -> Value:
        if value.numel() and bool((value == value.flatten()[0]).all()):
            return Number(shape=tuple(value.shape), dtype=value.dtype, value=value.flatten()[0].item())
        if value.dtype not in (torch.float32, torch.bool):
            raise Unsupported(f"constants of {value.dtype}")
        whole = value.detach().cpu().contiguous()
        start = sum(each.numel() for each in self.constants)
        self.constants.append(whole.flatten().to(torch.float32))
        return Memory(shape=tuple(value.shape), dtype=value.dtype, pointer="C", steps=whole.stride(), offset=start)

    def _view(self, node: Node, given: Any) -> Any:
        x, *how = given
        several = node.meta["val"]
        if isinstance(several, list | tuple):
            return [self._seen(x, node, how, n) for n in range(len(several))]
        return self._seen(x, node, how)

    def _seen(self, x: Value, node: Node, how: Sequence[Any], part: int | None = None) -> Value:
        target: Any = node.target

        def view(values: Tensor) -> Tensor:
            shown = target(values, *how, **node.kwargs)
            return shown if part is None else shown[part]

        shape = tuple(view(torch.empty(x.shape, device="meta")).shape)
        if isinstance(x, Number):
            return Number(shape=shape, dtype=x.dtype, value=x.value)
        if isinstance(x, Memory) and (seen := x.viewed(view)) is not None:
            return seen
        if x.pending:
            return self._seen(written(self.writer, x), node, how, part)
        if target in RESHAPES:
            return picked(x, shape, lambda _, place: Place(x.shape, flat=place.row()))
        return picked(x, shape, _moved(x, shape, view))

    # What is joined, and what changes.

    def _make_room(self, node: Node) -> None:
        """Have what is joined in memory written where it belongs in the first place."""
        given: Any = node.args
        parts = [part for part in given[0] if math.prod(shape_of(part))]
        if math.prod(shape_of(node)) <= SMALL and len(parts) <= FEW:
            return
        room = self.joins[node] = allocate(self.writer, shape_of(node), type_of(node))
        start, axis = 0, (given[1] if len(given) > 1 else 0) % len(room.shape)
        for part in parts:
            length = shape_of(part)[axis]
            slot: Memory | None = room.narrowed(axis, start, length)
            start += length
            while slot is not None and self.uses[part] == 1 and part.target in _BACK:
                source = part.all_input_nodes[0]
                slot = slot.viewed(_back(part, source))
                part = source
            if slot is not None and self.uses[part] == 1 and part.op == "call_function":
                self.rooms[part] = slot

    def _change(self, node: Node, room: Value, value: Value) -> None:
        """An array is written to: one that was given, for the end of the step, or a copy, which is then another."""
        if node.op == "placeholder" and isinstance(room, Memory) and room not in [other for other, _ in self.changes]:
            self.changes.append((room, value))
        elif node.target is aten.clone.default and not any(u.target in VIEWS and u in self.values for u in node.users):
            self.values[node] = value
        else:
            raise Unsupported("an array that is written to before the end")

    def _write_changes(self) -> None:
        """The copies at the end: all that is read of what changes is read before it does."""
        changing = {room.source for room, _ in self.changes}
        groups: dict[Any, list[tuple[Memory, Value]]] = {}
        for room, value in self.changes:
            groups.setdefault((room.shape, room.dtype), []).append((room, value))
        for group in groups.values():
            mine = {room.source for room, _ in group}
            for n, (room, value) in enumerate(group):
                if value.pending or value.inputs & (changing - mine):
                    moved = picked(value, value.shape, lambda _, place: place) if isinstance(value, Memory) else value
                    group[n] = room, written(self.writer, moved)
        (self.writer.barrier if self.team == 1 else self.writer.meet)()
        for group in groups.values():
            each(self.writer, group, shared_out=self.team > 1)


def _few(value: Value) -> bool:
    """Whether a value is zero but for few numbers, which are what most want of it."""
    return isinstance(value, Lazy) and value.few is not None


def _known(node: Node, given: Sequence[Any], options: Mapping[str, Any]) -> Number | None:
    """What comes of numbers alone, if that is one number everywhere."""
    arrays = [value for value in (*given, *options.values()) if isinstance(value, Value)]
    if not arrays or not all(isinstance(value, Number) for value in arrays):
        return None

    def whole(value: Any) -> Any:
        return torch.full(value.shape, value.value, dtype=value.dtype) if isinstance(value, Number) else value

    target: Any = node.target
    found = target(*map(whole, given), **{name: whole(value) for name, value in options.items()})
    if not isinstance(found, Tensor) or not found.numel() or not bool((found == found.flatten()[0]).all()):
        return None
    return Number(shape=tuple(found.shape), dtype=found.dtype, value=found.flatten()[0].item())


def _moved(x: Value, shape: Sequence[int], view: Callable[[Tensor], Tensor]) -> Callable[[Writer, Place], Place]:
    """Where the entries of a view are in what it is a view of: as torch has it, for an array that fills its memory."""
    seen = view(torch.empty(x.shape, device="meta"))
    steps, start = seen.stride(), int(seen.storage_offset())

    def move(writer: Writer, place: Place) -> Place:
        parts = place.axes(writer)
        flat = sum((i * s for i, n, s in zip(parts, shape, steps, strict=True) if n > 1), Index()) + start
        return Place(x.shape, flat=flat)

    return move


#: Views of which one gets back to what they are views of by reshaping it, or by the same once more.
_BACK = {
    aten.view.default, aten._unsafe_view.default, aten.squeeze.dim, aten.unsqueeze.default, aten.t.default,
    aten.transpose.int,
}  # fmt: skip


def _back(view: Node, source: Node) -> Callable[[Tensor], Tensor]:
    target: Any = view.target
    if view.target in RESHAPES:
        return lambda t: t.view(shape_of(source))
    return lambda t: target(t, *view.args[1:])
