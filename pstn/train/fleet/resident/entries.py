"""Operations whose entries are computed one by one, from entries of what they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pstn.train.fleet.resident.index import Index, Place
from pstn.train.fleet.resident.values import TYPES, Few, Lazy, Memory, Number, Unsupported, Value, literal
from pstn.train.fleet.resident.writer import Writer

aten = torch.ops.aten
Operation = Callable[..., Value]

#: In words of the kernel, by torch's names; {0}, {1}, ... are the entries of what is given. NaN stays NaN, as in torch.
WORDS: dict[str, str] = {
    "neg": "-{0}", "abs": "fabsf({0})", "exp": "expf({0})", "log": "logf({0})", "log1p": "log1pf({0})",
    "expm1": "expm1f({0})", "sqrt": "sqrtf({0})", "rsqrt": "rsqrtf({0})", "sin": "sinf({0})", "cos": "cosf({0})",
    "tanh": "tanhf({0})", "atan2": "atan2f({0}, {1})", "floor": "floorf({0})", "square": "{0} * {0}",
    "reciprocal": "1.0f / {0}",
    "sigmoid": "1.0f / (1.0f + expf(-{0}))", "relu": "{0} <= 0.0f ? 0.0f : {0}", "div": "{0} / {1}",
    "maximum": "{0} >= {1} || {0} != {0} ? {0} : {1}", "minimum": "{0} <= {1} || {0} != {0} ? {0} : {1}",
    "threshold_backward": "{1} <= {2} ? 0.0f : {0}",
    "sigmoid_backward": "{0} * {1} * (1.0f - {1})", "tanh_backward": "{0} * (1.0f - {1} * {1})",
    "lerp": "{0} + {2} * ({1} - {0})",
    "softplus_backward": "{1} * {2} > {3} ? {0} : {0} / (1.0f + expf(-{1} * {2}))",
}  # fmt: skip
SOFTPLUS = "{0} * {1} > {2} ? {0} : log1pf(expf({0} * {1})) / {1}"
#: The same of whole numbers and truth values: what they are compared by, and what comes of it.
TESTS: dict[str, str] = {
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "isnan": "{0} != {0}", "isinf": "fabsf({0}) == INFINITY",
    "isfinite": "fabsf({0}) < INFINITY", "isneginf": "{0} == -INFINITY", "isposinf": "{0} == INFINITY",
    "logical_and": "{0} && {1}", "logical_or": "{0} || {1}", "logical_not": "!{0}",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_not": "!{0}",
}  # fmt: skip


def pointwise(shape: Sequence[int], dtype: torch.dtype, words: str, *given: Any, test: bool = False) -> Lazy:
    """Entries that are computed in words from those of what is given, arrays or numbers.

    Arguments:
        shape: The shape of what comes of it.
        dtype: Its type, which what is given is brought to first.
        words: How, with {0}, {1}, ... for what is given.
        given: Arrays and numbers.
        test: Whether to compare what is given as it is.
    """
    arrays = tuple(value for value in given if isinstance(value, Value))

    def get(writer: Writer, place: Place) -> str:
        texts = []
        for value in given:
            if isinstance(value, Number):
                texts.append(literal(value.value, value.dtype if test else dtype))
            elif isinstance(value, Value):
                text = value.at(writer, place.broadcast(writer, value.shape))
                cast = not test and value.dtype != dtype
                texts.append(writer.let(f"({TYPES[dtype]}){text}") if cast else text)
            else:
                number = torch.float32 if isinstance(value, float) else torch.int64
                texts.append(literal(value, number if test else dtype))
        return words.format(*texts)

    return Lazy(shape=tuple(shape), dtype=dtype, get=get, of=arrays)


def where(shape: Sequence[int], dtype: torch.dtype, condition: Value, yes: Any, no: Any) -> Lazy:
    """One of two, by a condition."""
    if isinstance(condition, Number):
        return pointwise(shape, dtype, "{0}", yes if condition.value else no)

    def get(writer: Writer, place: Place) -> str:
        chosen = [pointwise(shape, dtype, "{0}", each).get(writer, place) for each in (yes, no)]
        return f"{condition.at(writer, place.broadcast(writer, condition.shape))} ? {chosen[0]} : {chosen[1]}"

    of = tuple(value for value in (condition, yes, no) if isinstance(value, Value))
    return Lazy(shape=tuple(shape), dtype=dtype, get=get, of=of)


def clamped(shape: Sequence[int], dtype: torch.dtype, x: Value, low: Any = None, high: Any = None) -> Lazy:
    """No less than one number and no more than another."""
    if low is None:
        return pointwise(shape, dtype, "{0} > {1} ? {1} : {0}", x, high)
    if high is None:
        return pointwise(shape, dtype, "{0} < {1} ? {1} : {0}", x, low)
    return pointwise(shape, dtype, "{0} < {1} ? {1} : {0} > {2} ? {2} : {0}", x, low, high)


def finite(
    shape: Sequence[int], dtype: torch.dtype, x: Value, nan: Any = None, up: Any = None, down: Any = None
) -> Lazy:
    """Without NaN and infinities."""
    largest = torch.finfo(dtype).max
    numbers = [0.0 if nan is None else nan, largest if up is None else up, -largest if down is None else down]
    words = "{0} != {0} ? {1} : {0} == INFINITY ? {2} : {0} == -INFINITY ? {3} : {0}"
    return pointwise(shape, dtype, words, x, *numbers)


def power(shape: Sequence[int], dtype: torch.dtype, x: Value, exponent: float) -> Lazy:
    """A power that is a few products or a root."""
    known = {2: "{0} * {0}", 3: "{0} * {0} * {0}", 1: "{0}", 0.5: "sqrtf({0})", -0.5: "rsqrtf({0})",
             -1: "1.0f / {0}", -2: "1.0f / ({0} * {0})"}  # fmt: skip
    if exponent not in known:
        raise Unsupported(f"the power {exponent}")
    return pointwise(shape, dtype, known[exponent], x)


def picked(x: Value, shape: Sequence[int], move: Callable[[Writer, Place], Place]) -> Lazy:
    """The entries of an array in other places."""
    return Lazy(
        shape=tuple(shape), dtype=x.dtype, get=lambda writer, place: x.at(writer, move(writer, place)), of=(x,), work=0
    )  # fmt: skip


def inside(
    x: Value, shape: Sequence[int], axis: int, start: int, step: int, count: int, around: Value | float,
    place_of: Callable[[Writer, Place, Index], Place],
) -> Lazy:  # fmt: skip
    """An array put at every so many places along an axis of a larger one."""

    def get(writer: Writer, place: Place) -> str:
        at = writer.named(place.axes(writer)[axis] - start)
        text, given = writer.text(at), writer.argument_of(at)
        tests = [f"{text} >= 0"] if start else []
        tests += [f"{text} < {(count - 1) * step + 1}"]
        tests += [f"{text} % {step} == 0"] if step > 1 else []
        there = writer.let(" && ".join(tests))
        index = at if step == 1 else Index.of(writer.let(f"{text} / {step}", given))
        with writer.masked(there):
            found = writer.let(x.at(writer, place_of(writer, place, index)))
        rest = around.at(writer, place) if isinstance(around, Value) else literal(around, x.dtype)
        return f"{there} ? {found} : {rest}"

    of = (x, around) if isinstance(around, Value) else (x,)
    return Lazy(shape=tuple(shape), dtype=x.dtype, get=get, of=of, work=2)


def joined(parts: Sequence[Value], axis: int) -> Value:
    """Arrays one behind the other along an axis, told apart where an entry is needed: for a few small ones."""
    first = parts[0]
    axis %= len(first.shape)
    total = sum(part.shape[axis] for part in parts)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    whole: Value | float = 0.0
    start = 0
    for part in parts:

        def at(writer: Writer, place: Place, index: Index, part: Value = part) -> Place:
            return place.changed(writer, axis, index, part.shape)

        whole = inside(part, shape, axis, start, 1, part.shape[axis], whole, at)
        start += part.shape[axis]
    assert isinstance(whole, Value)
    return whole


def sampled(x: Value, grid: Value, padding: int) -> Lazy:
    """Bilinear interpolation of pictures (B, C, H, W) at positions (B, h, w, 2); outside is zero, or the border."""

    def get(writer: Writer, place: Place) -> str:
        b, c, i, j = place.axes(writer)
        (left, fx, _), (top, fy, _) = _among_pixels(writer, x, grid, padding, (b, i, j))
        v = _corners(writer, x, b, c, left, top)
        above = writer.let(f"{v[0, 0]} + ({v[0, 1]} - {v[0, 0]}) * {fx}")
        below = writer.let(f"{v[1, 0]} + ({v[1, 1]} - {v[1, 0]}) * {fx}")
        return f"{above} + ({below} - {above}) * {fy}"

    shape = (*x.shape[:2], *grid.shape[1:3])
    return Lazy(shape=shape, dtype=x.dtype, get=get, of=(x, grid), work=30)


def sampled_pull(grad: Value, x: Value, grid: Value, padding: int) -> Lazy:
    """The gradient of :func:`sampled` to the positions."""

    def get(writer: Writer, place: Place) -> str:
        b, i, j, d = place.axes(writer)
        (left, fx, sx), (top, fy, sy) = _among_pixels(writer, x, grid, padding, (b, i, j))
        across, down = [], []
        for channel in range(x.shape[1]):
            c = Index(constant=channel)
            slope = grad.at(writer, Place(grad.shape, (b, c, i, j)))
            v = _corners(writer, x, b, c, left, top)
            across.append(f"{slope} * (({v[0, 1]} - {v[0, 0]}) * (1.0f - {fy}) + ({v[1, 1]} - {v[1, 0]}) * {fy})")
            down.append(f"{slope} * (({v[1, 0]} - {v[0, 0]}) * (1.0f - {fx}) + ({v[1, 1]} - {v[0, 1]}) * {fx})")
        slopes = [
            writer.let(f"({' + '.join(terms)}) * {n / 2}f{scale}")
            for terms, n, scale in ((across, x.shape[3], sx), (down, x.shape[2], sy))
        ]
        return f"{writer.text(d)} == 0 ? {slopes[0]} : {slopes[1]}"

    return Lazy(shape=grid.shape, dtype=x.dtype, get=get, of=(grad, x, grid), work=60)


def _among_pixels(
    writer: Writer, x: Value, grid: Value, padding: int, where: tuple[Index, Index, Index]
) -> list[tuple[str, str, str]]:
    """Along both axes: the pixel before a position, how far behind it that is, and what slopes are multiplied by."""
    found = []
    for axis, n in ((0, x.shape[3]), (1, x.shape[2])):
        at = grid.at(writer, Place(grid.shape, (*where, Index(constant=axis))))
        pixel = writer.let(f"(({at} + 1.0f) * {n}.0f - 1.0f) * 0.5f")
        scale = ""
        if padding:  # beyond the border nothing changes
            scale = f" * {writer.let(f'{pixel} > 0.0f && {pixel} < {n - 1}.0f ? 1.0f : 0.0f')}"
            pixel = writer.let(f"fminf(fmaxf({pixel}, 0.0f), {n - 1}.0f)")
        low = writer.let(f"floorf({pixel})")
        found.append((writer.let(f"int({low})"), writer.let(f"{pixel} - {low}"), scale))
    return found


def _corners(writer: Writer, x: Value, b: Index, c: Index, left: str, top: str) -> dict[tuple[int, int], str]:
    """The four pixels around a position, zero where there is none; (down, right) of the first."""
    values = {}
    for down in (0, 1):
        for right in (0, 1):
            row, column = Index.of(top) + down, Index.of(left) + right
            tests = [
                f"unsigned({writer.text(i)}) < {n}u" for i, n in ((row, x.shape[2]), (column, x.shape[3]))
            ]  # also where it is negative
            there = writer.let(" && ".join(tests))
            with writer.masked(there):
                value = writer.let(x.at(writer, Place(x.shape, (b, c, row, column))))
            values[down, right] = writer.let(f"{there} ? {value} : 0.0f")
    return values


def pooled(x: Value, size: Sequence[int], places: Memory, *, of: Sequence[str] | None = None) -> Lazy:
    """The largest of each window of pictures (B, C, H, W), windows side by side; which of them it is goes to memory.

    Arguments:
        x: The pictures.
        size: The windows' size.
        places: Room for the place in its window that each came from, written when the first is written.
        of: The names of the values at the window's places, where they have been computed.
    """
    kh, kw = size
    shape = places.shape

    def get(writer: Writer, place: Place) -> str:
        b, c, i, j = place.axes(writer)
        best, which = "", ""
        for n in range(kh * kw):
            at = Place(x.shape, (b, c, i * kh + n // kw, j * kw + n % kw))
            value = writer.let(x.at(writer, at) if of is None else of[n])
            if not n:
                best, which = value, "0"
                continue
            better = writer.let(f"{value} > {best} || {value} != {value}")
            which = writer.let(f"{better} ? {n} : {which}")
            best = writer.let(f"{better} ? {value} : {best}")
        if writer.covered == shape and places.buffer is not None and places.buffer not in writer.memory.first:
            writer.store(places.pointer, places.index(writer, place), which)
            writer.writes(places.buffer)
        return best

    return Lazy(shape=shape, dtype=x.dtype, get=get, of=(x,), work=4 * kh * kw)


def unpooled(grad: Value, places: Memory, shape: Sequence[int], size: Sequence[int]) -> Lazy:
    """The gradient of :func:`pooled`: each window's goes to the place that its value came from."""
    (kh, kw), (rows, columns) = size, grad.shape[2:]

    def get(writer: Writer, place: Place) -> str:
        b, c, y, x = place.axes(writer)
        i, j = writer.divided(writer.named(y), kh), writer.divided(writer.named(x), kw)
        here = writer.let(writer.text((y - i * kh) * kw + (x - j * kw)))
        tests = [f"{writer.text(w)} < {n}" for w, n, k, m in ((i, rows, kh, shape[2]), (j, columns, kw, shape[3]))
                 if n * k < m]  # fmt: skip
        at = Place(grad.shape, (b, c, i, j))
        if not tests:
            return f"{places.at(writer, at)} == {here} ? {grad.at(writer, at)} : 0.0f"
        there = writer.let(" && ".join(tests))
        with writer.masked(there):
            return writer.let(f"{there} && {places.at(writer, at)} == {here} ? {grad.at(writer, at)} : 0.0f")

    def back(writer: Writer, place: Place) -> Place:
        b, c, i, j = place.axes(writer)
        which = writer.let(f"int({places.at(writer, place)})")
        down, right = (Index.of(writer.let(f"{which} {sign} {kw}")) for sign in "/%")
        return Place(tuple(shape), (b, c, i * kh + down, j * kw + right))

    few = Few(grad, back)
    return Lazy(shape=tuple(shape), dtype=grad.dtype, get=get, of=(grad, places), work=8, few=few)


def times(x: Lazy, y: Value, dtype: torch.dtype) -> Lazy:
    """The product of what pooling has spread out and something else: as few numbers that are not zero."""
    assert x.few is not None
    values, place = x.few.values, x.few.place

    def get(writer: Writer, at: Place) -> str:
        there = place(writer, at)
        return f"{values.at(writer, at)} * {y.at(writer, there.broadcast(writer, y.shape))}"

    few = Lazy(shape=values.shape, dtype=dtype, get=get, of=(values, y), work=6)
    return replace(pointwise(x.shape, dtype, "{0} * {1}", x, y), few=Few(few, place))
