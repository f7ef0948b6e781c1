"""The flow of CPAB families in the plane and its gradient, in the words of ``cpab.cuh``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from pstn.train.fleet.resident.entries import picked
from pstn.train.fleet.resident.index import Index, Place
from pstn.train.fleet.resident.operations import operation, plain
from pstn.train.fleet.resident.products import multiplied
from pstn.train.fleet.resident.values import Memory, Number, Value, allocate, each, written
from pstn.train.fleet.resident.writer import Writer

if TYPE_CHECKING:
    from pstn.train.fleet.resident.translate import Translator

#: Numbers that are read of the field in a step of a walk, and about how many steps there are.
READS, STEPS = 6, 5


@operation("pstn.cpab_flow.default")
def _flow(self: Translator, node: Node, nodal: Value, points: Value, boxes: Sequence[int]) -> list[Value | None]:
    _plain(self, node, boxes)
    field = _lattice(self, nodal, boxes)
    batch, count = field.shape[0], points.shape[1]
    points = self.ready(points)
    room, writer = allocate(self.writer, (batch, count, 2), torch.float32), self.writer
    writer.reads(field.buffers | points.buffers)
    writer.line(f"// flow of {[batch, count]}")
    total = batch * count
    with writer.block(f"each<{total}, 1>([&](int i) -> Many<float, 2> {{", "},", total):
        b, n = Place((batch, count), flat=writer.argument("i", total)).axes(writer)
        x, y = _pair(writer, points, b, n)
        velocity = _velocity(writer, field, b)
        writer.line(f"return cpab::walk<{boxes[0]}, {boxes[1]}, false>({x}, {y}, {velocity});")
    with writer.block("[&](int i, Many<float, 2> found) {", "});", total):
        b, n = Place((batch, count), flat=writer.argument("i", total)).axes(writer)
        for axis in range(2):
            place = Place(room.shape, (b, n, Index(constant=axis)))
            writer.store(room.pointer, room.index(writer, place), f"found[{axis}]")
    writer.writes(room.buffer)  # type: ignore[arg-type]
    return [room, None]


@operation("pstn.cpab_adjoint.default")
def _adjoint(
    self: Translator, node: Node, nodal: Value, points: Value, boxes: Sequence[int], pull: Value, swell: Value
) -> list[Value | None]:
    _plain(self, node, boxes)
    plain(isinstance(swell, Number) and swell.value == 0)
    plain(not torch.are_deterministic_algorithms_enabled())  # the gradient adds up in no fixed order
    field, writer = _lattice(self, nodal, boxes), self.writer
    batch, count = field.shape[0], points.shape[1]
    points, pull = self.ready(points), written(writer, self.ready(pull))
    sums = allocate(writer, field.shape, torch.float32)
    each(writer, [(sums, Number(shape=field.shape, dtype=torch.float32, value=0.0))])
    writer.reads(field.buffers | points.buffers | pull.buffers | sums.buffers)
    writer.line(f"// gradient of the flow of {[batch, count]}")
    total = batch * count
    with writer.block(f"each<{total}, 1>([&](int i) -> int {{", "},", total):
        b, k = Place((batch, count), flat=writer.argument("i", total)).axes(writer)
        # neighbours mostly add to the same places, and would wait for one another: threads take points far apart
        n = Index.of(writer.let(f"int(unsigned({writer.text(k)}) * {_apart(count)}u % {count}u)"))
        x, y = _pair(writer, points, b, n)
        to_x, to_y = _pair(writer, pull, b, n)
        velocity = _velocity(writer, field, b)
        add = writer.name()
        with writer.block(f"const auto {add} = [&](int v, float amount) {{", "};", STEPS * READS):
            place = sums.index(writer, Place(sums.shape, (b, writer.argument("v", sums.shape[1]))))
            writer.counts(sums.pointer)
            writer.line(f"ATOMIC_ADD({sums.pointer}[{writer.text(place)}], amount);")
        writer.line(f"cpab::pull<{boxes[0]}, {boxes[1]}>({x}, {y}, {to_x}, {to_y}, {velocity}, {add});")
        writer.line("return 0;")
    writer.line("[&](int, int) {});")
    writer.writes(sums.buffer)  # type: ignore[arg-type]
    back = self._constant(_matrix(boxes))
    found = written(writer, multiplied(writer, sums, back, True))
    return [found.viewed(lambda t: t.view(nodal.shape)), None]


def _plain(self: Translator, node: Node, boxes: Sequence[int]) -> None:
    """Refuse all but positions of points in the plane, and gradients to velocities."""
    plain(len(boxes) == 2 and not any(user.args[1] == 1 and self.uses.get(user) for user in node.users))


def _lattice(self: Translator, nodal: Value, boxes: Sequence[int]) -> Memory:
    """The velocities that a walk reads, (B, L), of those at the nodes."""
    key = ("lattice", nodal, *boxes)
    if key not in self.writer.made:
        nodal = self.ready(nodal)
        shape = (nodal.shape[0], math.prod(nodal.shape[1:]))
        flat = picked(nodal, shape, lambda _, place: Place(nodal.shape, flat=place.row()))
        there = self._constant(_matrix(boxes).T)
        self.writer.made[key] = written(self.writer, multiplied(self.writer, flat, there, True))
    return self.writer.made[key]


def _matrix(boxes: Sequence[int]) -> torch.Tensor:
    """The linear map from nodal velocities to the lattice's, without the two numbers before these."""
    from pstn.kernels.lattice import lattice_map  # here, because it loads torch's compiler

    return lattice_map((boxes[0], boxes[1]), torch.device("cpu"))[0][2:].float()


def _pair(writer: Writer, pairs: Value, b: Index, n: Index) -> tuple[str, str]:
    """Both numbers of a pair (b, n) in an array whose batch may be one for all."""
    first = b if pairs.shape[0] > 1 else Index()
    x, y = (writer.let(pairs.at(writer, Place(pairs.shape, (first, n, Index(constant=axis))))) for axis in range(2))
    return x, y


def _velocity(writer: Writer, field: Memory, b: Index) -> str:
    """A function of a place in the lattice of one of a batch."""
    name = writer.name()
    with writer.block(f"const auto {name} = [&](int v) {{", "};", STEPS * READS):
        place = field.index(writer, Place(field.shape, (b, writer.argument("v", field.shape[1]))))
        writer.line(f"return {writer.load(field.pointer, place)};")
    return name


def _apart(count: int) -> int:
    """A stride through so many things that meets each once and the next far away."""
    return next(n for n in range(max(1, round(0.618 * count)), 2 * count + 2) if math.gcd(n, count) == 1)


def singles(nodes: Iterable[Node]) -> set[Node]:
    """The operations on float64 that a kernel does on float32: all but those on what the step keeps in float64.

    A flow is computed in float32, by sums of two numbers where it has to be, as the kernels of a warp do; what leads to
    it and away from it is in float64 for the sake of other devices.
    """

    def is_double(node: Any) -> bool:
        return isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].dtype == torch.float64

    doubles = [node for node in nodes if is_double(node)]
    kept = {node for node in doubles if node.op == "placeholder"}
    while True:
        near = {node for node in doubles if kept & {*node.all_input_nodes, *node.users}} - kept
        if not near:
            return set(doubles) - kept
        kept |= near
