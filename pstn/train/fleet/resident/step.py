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
from torch.fx.experimental.proxy_tensor import make_fx

from pstn.train.fleet.noise import Feed
from pstn.train.fleet.optimizer import KNOBS, State, Triple
from pstn.train.fleet.resident.index import Index, Place, strides
from pstn.train.fleet.resident.translate import Translator
from pstn.train.fleet.resident.values import TYPES, Lazy, Memory, Value
from pstn.train.fleet.resident.writer import Writer

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
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: str

    @property
    def value(self) -> Memory:
        """The part, as a step reads it."""
        return Memory(
            shape=self.shape, dtype=self.dtype, pointer=self.name, steps=strides(self.shape), source=self.name
        )  # fmt: skip


def recorded(fleet: Fleet, size: int, noise: Sequence[tuple[int, ...]]) -> tuple[GraphModule, list[Array]]:
    """A step of one network of a fleet as operations, and the arrays that it is given.

    The operations are those of a CPU, on which it is recorded; they end in copies to the arrays that change.

    Arguments:
        fleet: The fleet.
        size: The examples of a batch.
        noise: The shapes of what the network draws.
    """
    stack, config = fleet.stack, fleet.config
    unit = copy.deepcopy(stack.unit).cpu().train()
    common = {name: value.cpu() for name, value in stack.common.items()}
    localizer = stack.localizer.cpu()
    slots, still = fleet.slots, stack.still

    def step(weights: Tensor, alive: Tensor, sums: Tensor, knobs: Tensor, x: Tensor, y: Tensor, *rest: Tensor) -> None:
        own = dict(zip(slots, rest, strict=False))
        held = dict(zip(still, rest[len(slots) :], strict=False))
        drawn = rest[len(slots) + len(still) :]

        def differentiate() -> Triple:
            leaf = weights.detach().requires_grad_()
            with torch.enable_grad(), Feed(drawn):
                parts = zip(leaf[0].split(stack.sizes), stack.shapes.items(), strict=True)
                named = {name: part.view(shape) for part, (name, shape) in parts}
                # a copy, which is written to as a whole: of what is done to views in place, nothing is to be left
                rows = {name: value[0].clone() for name, value in held.items()}
                loss, terms = functional_call(unit, (named, rows, common), (x, y, knobs[0, 2]))
                (gradient,) = torch.autograd.grad(loss, leaf)
            for name, value in rows.items():
                held[name].copy_(value[None])
            return loss.detach()[None], terms.detach()[None], gradient

        State(weights, own, held, alive, sums).step(config, localizer, knobs, size, differentiate)

    arrays = [
        Array("weights", (1, stack.weights.shape[1]), torch.float32, "m"),
        Array("alive", (1,), torch.bool, "m"),
        Array("sums", (1, fleet.sums.shape[1]), torch.float64, "m"),
        Array("knobs", (1, len(KNOBS)), torch.float32, "t * count + m"),
        Array("x", (size, *fleet.pool.x.shape[1:]), fleet.pool.x.dtype, ""),
        Array("y", (size, *fleet.pool.y.shape[1:]), fleet.pool.y.dtype, ""),
    ]
    for stem, values in (("slot", slots), ("still", still)):
        arrays += [Array(f"{stem}{n}", (1, *v.shape[1:]), v.dtype, "m") for n, v in enumerate(values.values())]
    arrays += [Array(f"noise{n}", shape, torch.float32, "m * room + t") for n, shape in enumerate(noise)]
    given = [torch.zeros(array.shape, dtype=array.dtype) for array in arrays]
    with torch.no_grad():
        # twice: to write down the gradients and what is done in place, and to do without either
        plain = make_fx(step)(*given)
        module = make_fx(functionalize(plain, remove="mutations"), decomposition_table=_SIMPLER)(*given)
    module.graph.eliminate_dead_code()
    return module, arrays


HEAD = """
extern "C" __global__ void __launch_bounds__(THREADS) step(
    const long long* cursor, int count, int room, const float* pool_x, const long long* pool_y, const long long* index,
    {arguments}, const float* C, float* S) {{
  const long long m = blockIdx.x, t = *cursor;
"""


@dataclass(frozen=True)
class Text:
    """A step as the text of a kernel: one program a network.

    Arguments:
        source: The kernel.
        arrays: The arrays it is given, in order, behind those that hold the examples.
        constants: Numbers that it reads.
        shared: How many numbers of memory the threads of a block share.
        room: How many more numbers of scratch memory a network needs.
        products: How many numbers are multiplied in matrix products and convolutions.
    """

    source: str
    arrays: tuple[str, ...]
    constants: Tensor
    shared: int
    room: int
    products: int


def written(module: GraphModule, arrays: Sequence[Array], size: int, shared: int) -> Text:
    """The text of the kernel of a recorded step.

    Arguments:
        module: The step.
        arrays: What it is given.
        size: The examples of a batch.
        shared: How many numbers the threads of a block can share.
    """
    values: dict[str, Value] = {}
    names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    for name, array in zip(names, arrays, strict=True):
        values[name] = _picked(array, size) if array.name in "xy" else array.value
    made = Translator(module, values)
    begins, shared, room = made.writer.memory.laid_out(shared)
    body = "\n".join(made.writer.lines)
    for piece, begin in begins.items():
        body = body.replace(f"@{piece}@", begin)
    own = [array for array in arrays if array.name not in "xy"]
    lines = [f"  index += (t * count + m) * {size};"]
    lines += [f"  {a.name} += ({a.place}) * {math.prod(a.shape)};" for a in own]
    lines += [f"  S += m * {room};", f"  SHARED(float, H, {shared});"]
    head = HEAD.format(arguments=", ".join(f"{TYPES[array.dtype]}* {array.name}" for array in own))
    constants = torch.cat(made.constants) if made.constants else torch.zeros(1)
    source = f"{head}{chr(10).join(lines)}\n{body}\n}}\n"
    return Text(source, tuple(array.name for array in own), constants, shared, room, made.writer.products)


def _picked(array: Array, size: int) -> Lazy:
    """The examples of a batch, which lie among all others."""
    shape, length = array.shape, math.prod(array.shape[1:])

    def get(writer: Writer, place: Place) -> str:
        first, *rest = place.axes(writer)
        row = Index.of(writer.load("index", first))
        inside = Place(shape[1:], tuple(rest)).row() if rest else Index()
        return writer.load(f"pool_{array.name}", row * length + inside)

    return Lazy(shape=shape, dtype=array.dtype, get=get, work=2)
