"""One network on several multiprocessors: each takes some of a batch's examples, and they meet for what is of all.

What a step does with examples it does with each alone, until it takes a mean: that of losses, of gradients, of batch
statistics. So a step is recorded as that of a part of the batch, in which :data:`team_mean` stands where the means of
all parts are to be brought together. The blocks of a network run side by side and wait for one another there (a
cluster, which NVIDIA's GPUs have from the H100 on); what they bring is in memory that all of them see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode

from pstn.kernels.operators import _operator
from pstn.train.fleet.resident.index import Index, Place, strides
from pstn.train.fleet.resident.values import Lazy, Memory, Unsupported, Value, allocate, each, written
from pstn.train.fleet.resident.writer import Writer

#: The fewest pictures that a block is to have, and how many blocks a network may have.
PICTURES, TEAMS = 4, (8, 4, 2)
#: The most numbers of which each block brings together all, and not its share for the others.
SMALL = 1024

team_mean = _operator("team_mean", "(Tensor x) -> Tensor", lambda x: x.clone(), lambda x: torch.empty_like(x))


def team(size: int, samples: int, most: int) -> int:
    """How many blocks share the examples of a batch, of which each is seen so many times."""
    return next((n for n in TEAMS if n <= most and size % n == 0 and size * samples >= PICTURES * n), 1)


class Together(TorchFunctionMode):
    """Inside, batch normalisation takes the statistics of all parts of a batch, in as few passes as a kernel needs."""

    def __init__(self, team: int) -> None:
        super().__init__()
        self.team = team

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call, or what stands in its place."""
        if function is F.batch_norm:
            return self._normalised(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _normalised(
        self, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        out, mean, var = _Normalised.apply(x, weight, bias, eps, self.team)
        if running_mean is not None and running_var is not None:
            count = self.team * x.numel() // x.shape[1]
            running_mean.lerp_(mean.detach(), momentum)
            running_var.lerp_(var.detach() * (count / (count - 1)), momentum)
        return out


class _Normalised(torch.autograd.Function):
    """Pictures with mean zero and variance one in each channel, weighed and shifted; and what these were.

    Both passes are a product and a sum an entry, with numbers of the channel, which may be taken anew wherever an entry
    is needed; and the gradients are sums of slopes alone and times what was normalised, which pooling leaves few of.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, team: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.axes, ctx.shape = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        ctx.bring = team_mean if team > 1 else lambda values: values
        mean = ctx.bring(x.mean(ctx.axes))
        var = ctx.bring((x - mean.view(ctx.shape)).square().mean(ctx.axes))
        rate = (var + eps).rsqrt()
        scale = rate if weight is None else rate * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.save_for_backward(x, mean, rate, scale)
        ctx.mark_non_differentiable(mean, var)
        return torch.addcmul(shift.view(ctx.shape), x, scale.view(ctx.shape)), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        x, mean, rate, scale = ctx.saved_tensors
        found = torch.addcmul((-mean * rate).view(ctx.shape), x, rate.view(ctx.shape))
        both = torch.stack([grad.mean(ctx.axes), (grad * found).mean(ctx.axes)])
        first, second = ctx.bring(both).unbind()
        along = -second * rate * scale
        behind = torch.addcmul((-first * scale - mean * along).view(ctx.shape), x, along.view(ctx.shape))
        count = x.numel() // len(mean)
        to_weight = second * count if ctx.needs_input_grad[1] else None
        to_bias = first * count if ctx.needs_input_grad[2] else None
        return torch.addcmul(behind, grad, scale.view(ctx.shape)), to_weight, to_bias, None, None


@dataclass(frozen=True)
class Part:
    """Which numbers of an array of noise, of a whole batch, are those of one block's examples.

    Arguments:
        axis: Along which axis there is a number an example, or several examples' worth one behind the other.
        size: The examples of the whole batch, which follow one another.
        own: The block's.
    """

    axis: int
    size: int
    own: int

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """A block's part of a tensor."""
        parts = whole.unflatten(self.axis, (-1, self.size)).narrow(self.axis + 1, rank * self.own, self.own)
        return parts.flatten(self.axis, self.axis + 1)

    def of(self, whole: Memory, shape: Sequence[int]) -> Value:
        """The block's part, in its shape, as a kernel reads it."""

        def get(writer: Writer, place: Place) -> str:
            parts = list(place.axes(writer))
            at = parts[self.axis]
            behind = Index()
            if shape[self.axis] > self.own:  # once for each sample
                behind = writer.divided(writer.named(at), self.own) * (self.size - self.own)
            parts[self.axis] = at + behind + Index.of("rank") * self.own
            return whole.at(writer, Place(whole.shape, tuple(parts)))

        return Lazy(shape=tuple(shape), dtype=whole.dtype, get=get, of=(whole,), work=1)


def part_of(whole: Sequence[int], own: Sequence[int], size: int, team: int) -> Part | None:
    """How noise for a batch is that for its parts: None if it is the same for all of them."""
    if tuple(whole) == tuple(own):
        return None
    apart = [n for n, (a, b) in enumerate(zip(whole, own, strict=True)) if a != b]
    if len(apart) != 1 or whole[apart[0]] != team * own[apart[0]] or own[apart[0]] % (size // team):
        raise Unsupported(f"noise of {list(whole)} for a batch, of {list(own)} for a part")
    return Part(apart[0], size, size // team)


def lockstep(module: GraphModule, given: Sequence[Sequence[Tensor]]) -> None:
    """Run a recorded step of every part of a batch, on inputs of each, which change; means are those of all parts."""
    values: list[dict[Node, Any]] = [{} for _ in given]
    inputs = [iter(each) for each in given]
    with torch.no_grad():
        for node in module.graph.nodes:
            target: Any = node.target
            found: list[Any] = []
            for value, rest in zip(values, inputs, strict=True):
                if node.op == "placeholder":
                    found.append(next(rest))
                elif node.op == "get_attr":
                    found.append(getattr(module, str(target)))
                elif node.op == "call_function":
                    options = torch.fx.map_arg(dict(node.kwargs), value.__getitem__)
                    found.append(target(*torch.fx.map_arg(node.args, value.__getitem__), **options))
            if target is team_mean:
                found = [torch.stack(found).mean(0)] * len(found)
            for value, each in zip(values, found, strict=False):
                value[node] = each


def brought_together(writer: Writer, x: Value, team: int) -> Value:
    """The mean of what the blocks of a network have, in memory."""
    if x.dtype != torch.float32:
        raise Unsupported(f"means of {x.dtype} over blocks")
    part = written(writer, x)
    if part.buffer is None or part.offset or part.steps != strides(part.shape) or part.buffer in writer.memory.open:
        part = written(
            writer, Lazy(shape=x.shape, dtype=x.dtype, get=x.at, of=(x,)), allocate(writer, x.shape, x.dtype)
        )
    writer.memory.open.add(part.buffer)  # type: ignore[arg-type]
    writer.meet()

    def get(writer: Writer, place: Place) -> str:
        index = part.index(writer, place)
        terms = [writer.load(f"({part.pointer} + ({n} - rank) * APART)", index) for n in range(team)]
        return f"({' + '.join(terms)}) * {1 / team!r}f"

    mean = Lazy(shape=x.shape, dtype=x.dtype, get=get, of=(part,), work=2 * team)
    if x.numel <= SMALL:
        return written(writer, mean)
    room = allocate(writer, x.shape, x.dtype)
    writer.memory.open.add(room.buffer)  # type: ignore[arg-type]
    room = replace(room, pointer=f"({room.pointer} - rank * APART)")  # that of the first block, for all
    each(writer, [(room, mean)], shared_out=True)
    writer.meet()
    return room
