"""A whole step of a network, optimizer and all: as operations on its arrays, and as the text of a kernel."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.func import functional_call, functionalize
from torch.fx import GraphModule

from pstn.train.fleet.noise import Feed, Record
from pstn.train.fleet.optimizer import KNOBS, State, Triple
from pstn.train.fleet.record import traced
from pstn.train.fleet.resident.index import Index, Place, strides
from pstn.train.fleet.resident.team import Part, Together, part_of, team_mean
from pstn.train.fleet.resident.translate import Translator
from pstn.train.fleet.resident.values import TYPES, Lazy, Memory, Value
from pstn.train.fleet.resident.writer import Writer
from pstn.train.seed import seeded

if TYPE_CHECKING:
    from pstn.train.fleet.fleet import Fleet

aten = torch.ops.aten
#: What is written in simpler operations first.
_SIMPLER: dict[Any, Any] = get_decompositions(
    [
        aten.native_batch_norm, aten.native_batch_norm_backward, aten._native_batch_norm_legit_functional,
        aten._log_softmax, aten._log_softmax_backward_data, aten._softmax, aten._softmax_backward_data,
        aten.linalg_vector_norm, aten.logsumexp, aten.gelu, aten.gelu_backward, aten.leaky_relu,
        aten.leaky_relu_backward, aten.native_layer_norm, aten.native_layer_norm_backward, aten.mse_loss,
        aten.mse_loss_backward,
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Array:
    """An array that a kernel is given, and where in it a network's part is.

    Arguments:
        name: Its name in the kernel.
        shape: The shape of a network's part.
        dtype: Its type.
        place: Where the part of network ``m`` at step ``t`` begins, counted in parts; empty where all share it.
        own: The shape of what one of a network's blocks reads, and how it lies in the part, if that is not all of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: str
    own: tuple[tuple[int, ...], Part] | None = None

    @property
    def value(self) -> Value:
        """The part, as a step reads it."""
        whole = Memory(
            shape=self.shape, dtype=self.dtype, pointer=self.name, steps=strides(self.shape), source=self.name
        )  # fmt: skip
        return whole if self.own is None else self.own[1].of(whole, self.own[0])


def recorded(
    fleet: Fleet, size: int, noise: Sequence[tuple[int, ...]], team: int = 1
) -> tuple[GraphModule, list[Array]]:
    """A step of one network of a fleet as operations, and the arrays that it is given.

    The operations are those of a CPU, on which it is recorded; they end in copies to the arrays that change.

    Arguments:
        fleet: The fleet.
        size: The examples of a batch.
        noise: The shapes of what the network draws.
        team: Among how many blocks the examples are shared out.
    """
    stack, config = fleet.stack, fleet.config
    unit = copy.deepcopy(stack.unit).cpu().train()
    common = {name: value.cpu() for name, value in stack.common.items()}
    localizer = stack.localizer.cpu()
    slots, still = fleet.slots, stack.still
    own = size // team
    if team > 1:
        unit.step.mean = lambda values: team_mean(values.mean())

    def step(weights: Tensor, alive: Tensor, sums: Tensor, knobs: Tensor, x: Tensor, y: Tensor, *rest: Tensor) -> None:
        own = dict(zip(slots, rest, strict=False))
        held = dict(zip(still, rest[len(slots) :], strict=False))
        drawn = rest[len(slots) + len(still) :]

        def differentiate() -> Triple:
            leaf = weights.detach().requires_grad_()
            with torch.enable_grad(), Feed(drawn), Together(team):
                parts = zip(leaf[0].split(stack.sizes), stack.shapes.items(), strict=True)
                named = {name: part.view(shape) for part, (name, shape) in parts}
                # a copy, which is written to as a whole: of what is done to views in place, nothing is to be left
                rows = {name: value[0].clone() for name, value in held.items()}
                given = {**named, **rows, **common}
                loss, terms = functional_call(unit, given, (x, y, knobs[0, 2]))
                (gradient,) = torch.autograd.grad(loss, leaf)
            for name in rows:  # written to, or put in its place
                held[name].copy_(given[name].detach()[None])
            loss, terms = loss.detach()[None], terms.detach()[None]
            if team > 1:
                gradient = team_mean(gradient)
                loss, terms = team_mean(torch.cat([loss, terms[0]])).split([1, len(terms[0])])
                terms = terms[None]
            return loss, terms, gradient

        State(weights, own, held, alive, sums).step(config, localizer, knobs, size, differentiate)

    def drawn_by(given: Sequence[Tensor]) -> list[tuple[int, ...]]:
        weights, _, _, knobs, x, y, *rest = given
        held = dict(zip(still, rest[len(slots) :], strict=True))
        with torch.no_grad(), seeded(0), Record() as record, Together(team):
            rows = {name: value[0].clone() for name, value in held.items()}
            named = {name: value[0] for name, value in stack.named(weights).items()}
            functional_call(unit, (named, rows, common), (x, y, knobs[0, 2]))
        return [request.shape for request in record.requests]

    arrays = [
        Array("weights", (1, stack.weights.shape[1]), torch.float32, "m"),
        Array("alive", (1,), torch.bool, "m"),
        Array("sums", (1, fleet.sums.shape[1]), torch.float64, "m"),
        Array("knobs", (1, len(KNOBS)), torch.float32, "t * count + m"),
        Array("x", (own, *fleet.pool.x.shape[1:]), fleet.pool.x.dtype, ""),
        Array("y", (own, *fleet.pool.y.shape[1:]), fleet.pool.y.dtype, ""),
    ]
    for stem, values in (("slot", slots), ("still", still)):
        arrays += [Array(f"{stem}{n}", (1, *v.shape[1:]), v.dtype, "m") for n, v in enumerate(values.values())]
    given = [torch.zeros(array.shape, dtype=array.dtype) for array in arrays]
    mine = noise if team == 1 else drawn_by(given)
    for n, (whole, shape) in enumerate(zip(noise, mine, strict=True)):
        part = part_of(whole, shape, size, team)
        here = None if part is None else (tuple(shape), part)
        arrays.append(Array(f"noise{n}", tuple(whole), torch.float32, "m * room + t", here))
        given.append(torch.zeros(shape))
    with torch.no_grad():
        # twice: to write down the gradients and what is done in place, and to do without either
        plain = traced(step, given)
        module = traced(functionalize(plain, remove="mutations"), given, decomposition_table=_SIMPLER)
    module.graph.eliminate_dead_code()
    return module, arrays


HEAD = """
extern "C" __global__ void IN_TEAMS __launch_bounds__(THREADS) step(
    const long long* cursor, int count, int room, const float* pool_x, const long long* pool_y, const long long* index,
    {arguments}, const float* C, float* S) {{
  const long long m = blockIdx.x / TEAM, t = *cursor;
  const int rank = blockIdx.x % TEAM;
  constexpr int APART = {seen};
  float* R = S + (long long)count * TEAM * {room} + (long long)blockIdx.x * APART;
"""


@dataclass(frozen=True)
class Text:
    """A step as the text of a kernel: a block, or a team of them, for each network.

    Arguments:
        source: The kernel.
        arrays: The arrays it is given, in order, behind those that hold the examples.
        constants: Numbers that it reads.
        shared: How many numbers of memory the threads of a block share.
        room: How many more numbers of scratch memory a block needs.
        products: How many numbers a block multiplies in matrix products and convolutions.
        team: How many blocks a network has.
        seen: How many numbers of a block its team sees.
    """

    source: str
    arrays: tuple[str, ...]
    constants: Tensor
    shared: int
    room: int
    products: int
    team: int
    seen: int

    @property
    def memory(self) -> int:
        """The numbers of memory that a block needs beside what its threads share."""
        return self.room + self.seen


def written(module: GraphModule, arrays: Sequence[Array], size: int, shared: int, team: int = 1) -> Text:
    """The text of the kernel of a recorded step.

    Arguments:
        module: The step.
        arrays: What it is given.
        size: The examples of a batch.
        shared: How many numbers the threads of a block can share.
        team: Among how many blocks these are shared out.
    """
    values: dict[str, Value] = {}
    names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    for name, array in zip(names, arrays, strict=True):
        values[name] = _picked(array, size // team) if array.name in "xy" else array.value
    made = Translator(module, values, team)
    begins, shared, room, seen = made.writer.memory.laid_out(shared)
    body = "\n".join(made.writer.lines)
    for piece, begin in begins.items():
        body = body.replace(f"@{piece}@", begin)
    own = [array for array in arrays if array.name not in "xy"]
    lines = [f"  index += (t * count + m) * {size} + rank * {size // team};"]
    lines += [f"  {a.name} += ({a.place}) * {math.prod(a.shape)};" for a in own]
    lines += [f"  S += (long long)blockIdx.x * {room};", f"  SHARED(float, H, {shared});"]
    given = ", ".join(f"{TYPES[array.dtype]}* {array.name}" for array in own)
    head = HEAD.format(arguments=given, room=room, seen=seen)
    constants = torch.cat(made.constants) if made.constants else torch.zeros(1)
    source = f"{head}{chr(10).join(lines)}\n{body}\n}}\n"
    return Text(source, tuple(array.name for array in own), constants, shared, room, made.writer.products, team, seen)


def _picked(array: Array, size: int) -> Lazy:
    """The examples of a batch, which lie among all others."""
    shape, length = array.shape, math.prod(array.shape[1:])

    def get(writer: Writer, place: Place) -> str:
        first, *rest = place.axes(writer)
        row = Index.of(writer.load("index", first))
        inside = Place(shape[1:], tuple(rest)).row() if rest else Index()
        return writer.load(f"pool_{array.name}", row * length + inside)

    return Lazy(shape=shape, dtype=array.dtype, get=get, work=2)
