"""Torch's operations that are more than words: how each is translated.

Each is a function of the translator, the operation, and what torch would be given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from pstn.train.fleet.resident import entries, products, totals
from pstn.train.fleet.resident.entries import picked, pointwise
from pstn.train.fleet.resident.index import Index, Place
from pstn.train.fleet.resident.nodes import shape_of, type_of
from pstn.train.fleet.resident.team import brought_together
from pstn.train.fleet.resident.values import Lazy, Number, Unsupported, Value, literal, written
from pstn.train.fleet.resident.writer import Writer

if TYPE_CHECKING:
    from pstn.train.fleet.resident.translate import Translator

#: The most products of small matrices that are summed one by one.
FEW = 65_536
OPERATIONS: dict[str, Callable[..., Any]] = {}


def operation(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The translation of what torch calls by some names."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return keep


def plain(whether: bool) -> None:
    """Refuse an operation in a form that has no translation."""
    if not whether:
        raise Unsupported("an operation in a form that has no translation")


@operation("pstn.team_mean.default")
def _team_mean(self: Translator, node: Node, x: Value) -> Value:
    return brought_together(self.writer, self.ready(x), self.team)


# Arithmetic, entry by entry.


@operation("add")
def _add(self: Translator, node: Node, a: Any, b: Any, alpha: float = 1) -> Value:
    return self.words(node, "{0} + {1}", a, b) if alpha == 1 else self.words(node, "{0} + {1} * {2}", a, b, alpha)


@operation("sub")
def _sub(self: Translator, node: Node, a: Any, b: Any, alpha: float = 1) -> Value:
    return self.words(node, "{0} - {1}", a, b) if alpha == 1 else self.words(node, "{0} - {1} * {2}", a, b, alpha)


@operation("rsub")
def _rsub(self: Translator, node: Node, a: Any, b: Any, alpha: float = 1) -> Value:
    return self.words(node, "{1} - {0} * {2}", a, b, alpha)


@operation("mul")
def _mul(self: Translator, node: Node, a: Any, b: Any) -> Value:
    if type_of(node) == torch.bool:
        return self.words(node, "{0} & {1}", a, b, test=True)
    for x, y in ((a, b), (b, a)):
        spread = isinstance(x, Lazy) and x.few is not None and x.kept is None and x.shape == shape_of(node)
        if spread and isinstance(y, Value) and not y.pending and not isinstance(y, Number):
            return entries.times(x, self.light(y, x.shape), type_of(node))
    return self.words(node, "{0} * {1}", a, b)


@operation("addcmul")
def _addcmul(self: Translator, node: Node, x: Any, a: Any, b: Any, value: float = 1) -> Value:
    return self.words(node, "{0} + {3} * {1} * {2}", x, a, b, value)


@operation("addcdiv")
def _addcdiv(self: Translator, node: Node, x: Any, a: Any, b: Any, value: float = 1) -> Value:
    return self.words(node, "{0} + {3} * ({1} / {2})", x, a, b, value)


@operation("softplus")
def _softplus(self: Translator, node: Node, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    return self.words(node, entries.SOFTPLUS, x, beta, threshold)


@operation("_to_copy")
def _cast(self: Translator, node: Node, x: Value, **_: Any) -> Value:
    return x if type_of(node) == x.dtype else self.words(node, "{0}", x)


@operation("copy")
def _copied(self: Translator, node: Node, x: Value, new: Value, *_: Any) -> Value:
    return self.words(node, "{0}", self.ready(new))


@operation("where")
def _where(self: Translator, node: Node, condition: Value, yes: Any, no: Any) -> Value:
    given = (self.light(value, shape_of(node)) for value in (condition, yes, no))
    return entries.where(shape_of(node), type_of(node), *given)


@operation("masked_fill")
def _masked(self: Translator, node: Node, x: Value, mask: Value, value: Any) -> Value:
    return _where(self, node, mask, value, x)


@operation("clamp")
def _clamp(self: Translator, node: Node, x: Value, low: Any = None, high: Any = None) -> Value:
    return entries.clamped(shape_of(node), type_of(node), x, low, high)


@operation("clamp_min")
def _clamp_min(self: Translator, node: Node, x: Value, low: Any) -> Value:
    return _clamp(self, node, x, low)


@operation("clamp_max")
def _clamp_max(self: Translator, node: Node, x: Value, high: Any) -> Value:
    return _clamp(self, node, x, None, high)


@operation("nan_to_num")
def _finite(self: Translator, node: Node, x: Value, *numbers: Any, **named: Any) -> Value:
    return entries.finite(shape_of(node), type_of(node), x, *numbers, *named.values())


@operation("pow")
def _power(self: Translator, node: Node, x: Value, exponent: float) -> Value:
    return entries.power(shape_of(node), type_of(node), x, exponent)


@operation("arange")
def _arange(self: Translator, node: Node, *limits: int, **_: Any) -> Value:
    start, _end, step = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]

    def get(writer: Writer, place: Place) -> str:
        text = writer.text(place.row() * step + start)
        return f"float({text})" if type_of(node).is_floating_point else text

    return Lazy(shape=shape_of(node), dtype=type_of(node), get=get)


# Arrays of others.


@operation("cat")
def _cat(self: Translator, node: Node, parts: Sequence[Value], axis: int = 0) -> Value:
    parts = [self.ready(part) for part in parts if part.numel]
    axis %= len(parts[0].shape)
    if node not in self.joins:
        return entries.joined(parts, axis)
    room, start = self.joins[node], 0
    for part in parts:
        slot = room.narrowed(axis, start, part.shape[axis])
        if not slot.is_same(part):
            written(self.writer, part, slot)
        start += part.shape[axis]
    return room


@operation("stack")
def _stack(self: Translator, node: Node, parts: Sequence[Value], axis: int = 0) -> Value:
    shape = shape_of(node)
    axis %= len(shape)
    slim = (*shape[:axis], 1, *shape[axis + 1 :])
    return entries.joined([self.thin(part, slim) for part in parts], axis)


@operation("select_backward")
def _select_back(self: Translator, node: Node, grad: Value, sizes: Sequence[int], axis: int, index: int) -> Value:
    axis %= len(sizes)
    slim = self.thin(grad, (*sizes[:axis], 1, *sizes[axis + 1 :]))
    return _placed(slim, sizes, axis, index % sizes[axis], 1, 0.0)


@operation("slice_backward")
def _slice_back(
    self: Translator, node: Node, grad: Value, sizes: Sequence[int], axis: int, start: int, end: int, step: int
) -> Value:
    return _placed(self.ready(grad), sizes, axis % len(sizes), start, step, 0.0)


@operation("select_scatter")
def _select_scatter(self: Translator, node: Node, x: Value, part: Value, axis: int, index: int) -> Value:
    axis %= len(x.shape)
    slim = self.thin(part, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return slim if x.shape[axis] == 1 else _placed(slim, x.shape, axis, index % x.shape[axis], 1, self.ready(x))


@operation("slice_scatter")
def _slice_scatter(
    self: Translator,
    node: Node,
    x: Value,
    part: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    return _placed(self.ready(part), x.shape, axis % len(x.shape), start or 0, step, self.ready(x))


def _placed(x: Value, shape: Sequence[int], axis: int, start: int, step: int, around: Value | float) -> Value:
    """An array put at every so many places along an axis of a larger one."""
    start = min(max(start + (shape[axis] if start < 0 else 0), 0), shape[axis])
    if tuple(shape) == x.shape and not start:
        return x

    def at(writer: Writer, place: Place, index: Index) -> Place:
        return place.changed(writer, axis, index, x.shape)

    return entries.inside(x, shape, axis, start, step, x.shape[axis], around, at)


@operation("constant_pad_nd")
def _pad(self: Translator, node: Node, x: Value, pads: Sequence[int], value: float = 0.0) -> Value:
    plain(min(pads) >= 0)
    x = self.ready(x)
    for n in range(len(pads) // 2):
        axis, (before, behind) = len(x.shape) - 1 - n, pads[2 * n : 2 * n + 2]
        if before or behind:
            shape = (*x.shape[:axis], x.shape[axis] + before + behind, *x.shape[axis + 1 :])
            x = _placed(x, shape, axis, before, 1, float(value))
    return x


@operation("diag_embed")
def _diagonal_matrix(self: Translator, node: Node, x: Value, offset: int = 0, a: int = -2, b: int = -1) -> Value:
    plain((offset, a, b) == (0, -2, -1))
    x = self.ready(x)

    def get(writer: Writer, place: Place) -> str:
        *parts, i, j = place.axes(writer)
        value = x.at(writer, Place(x.shape, (*parts, i)))
        return f"{writer.text(i)} == {writer.text(j)} ? {value} : 0.0f"

    return Lazy(shape=shape_of(node), dtype=x.dtype, get=get, of=(x,))


@operation("gather")
def _gather(self: Translator, node: Node, x: Value, axis: int, index: Value) -> Value:
    x, axis = self.ready(x), axis % len(x.shape)

    def get(writer: Writer, place: Place) -> str:
        there = writer.let(f"int({index.at(writer, place)})")
        return x.at(writer, place.changed(writer, axis, Index.of(there), x.shape))

    return Lazy(shape=shape_of(node), dtype=x.dtype, get=get, of=(x, index))


# Sums, and what is made of them.


def _total(way: str) -> Callable[..., Value]:
    def run(self: Translator, node: Node, x: Value, axes: Any = None, keep: bool = False, **_: Any) -> Value:
        axes = range(len(x.shape)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
        return totals.total(self.writer, self.ready(x), list(axes), keep, way, self.rooms.get(node))

    return run


for _name, _way in (("sum", "sum"), ("amax", "max"), ("amin", "min"), ("all", "all")):
    operation(_name)(_total(_way))


@operation("mean")
def _mean(self: Translator, node: Node, x: Value, axes: Any = None, keep: bool = False, **_: Any) -> Value:
    found = OPERATIONS["sum"](self, node, x, axes, keep)
    return pointwise(found.shape, found.dtype, "{0} * {1}", found, found.numel / x.numel)


@operation("var_mean")
def _var_mean(
    self: Translator, node: Node, x: Value, axes: Any = None, correction: float = 1, keepdim: bool = False
) -> list[Value]:
    x = self.ready(x)
    mean = written(self.writer, _mean(self, node, x, axes, True))
    around = pointwise(x.shape, x.dtype, "({0} - {1}) * ({0} - {1})", x, mean)
    squares = OPERATIONS["sum"](self, node, around, axes, keepdim)
    count = x.numel // squares.numel
    variance = pointwise(squares.shape, x.dtype, "{0} * {1}", squares, 1 / max(count - correction, 0))
    seen = mean if keepdim else picked(mean, squares.shape, lambda _, place: place.reshaped(mean.shape))
    return [written(self.writer, variance), seen]


@operation("nll_loss_forward")
def _nll(self: Translator, node: Node, scores: Value, y: Value, weight: None, how: int, ignored: int) -> list[Value]:
    plain(weight is None and ignored < 0 and len(scores.shape) == 2)
    scores = self.ready(scores)

    def get(writer: Writer, place: Place) -> str:
        (b,) = place.axes(writer)
        label = writer.let(f"int({y.at(writer, place)})")
        return f"-{scores.at(writer, Place(scores.shape, (b, Index.of(label))))}"

    found: Value = Lazy(shape=y.shape, dtype=scores.dtype, get=get, of=(scores, y))
    if how:
        found = totals.total(self.writer, found, [0], False)
    if how == 1:
        found = pointwise((), scores.dtype, "{0} * {1}", found, 1 / y.numel)
    return [found, Number(shape=(), dtype=scores.dtype, value=y.numel)]


@operation("nll_loss_backward")
def _nll_back(
    self: Translator, node: Node, grad: Value, scores: Value, y: Value, weight: None, how: int, ignored: int, _: Any
) -> Value:
    plain(weight is None and ignored < 0 and len(scores.shape) == 2)
    scale = 1 / y.numel if how == 1 else 1.0
    grad = self.ready(grad)

    def get(writer: Writer, place: Place) -> str:
        b, c = place.axes(writer)
        label = y.at(writer, Place(y.shape, (b,)))
        slope = grad.at(writer, Place(grad.shape, (b,) if grad.shape else ()))
        return f"{writer.text(c)} == {label} ? {slope} * {literal(-scale, grad.dtype)} : 0.0f"

    return Lazy(shape=shape_of(node), dtype=grad.dtype, get=get, of=(grad, y))


# Products.


def _exact() -> bool:
    """Whether matrix products are to count all digits, which is for torch's settings to say."""
    return not torch.backends.cuda.matmul.allow_tf32


@operation("mm")
def _mm(self: Translator, node: Node, a: Value, b: Value) -> Value:
    return products.multiplied(self.writer, self.ready(a), self.ready(b), _exact())


@operation("addmm")
def _addmm(self: Translator, node: Node, x: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    plain((beta, alpha) == (1, 1))
    return pointwise(shape_of(node), type_of(node), "{0} + {1}", _mm(self, node, a, b), self.ready(x))


@operation("bmm")
def _bmm(self: Translator, node: Node, a: Value, b: Value) -> Value:
    """By sums of products, which are small where a network has few of them."""
    (count, m, k), n = a.shape, b.shape[2]
    plain(count * m * k * n <= FEW)
    a, b = (written(self.writer, self.ready(each)) for each in (a, b))

    def get(writer: Writer, place: Place) -> str:
        c, i, between, j = place.axes(writer)
        left, right = Place(a.shape, (c, i, between)), Place(b.shape, (c, between, j))
        return f"{a.at(writer, left)} * {b.at(writer, right)}"

    terms = Lazy(shape=(count, m, k, n), dtype=a.dtype, get=get, of=(a, b))
    return totals.total(self.writer, terms, [2], False)
