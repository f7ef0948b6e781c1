"""Matrix products and convolutions, by tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from pstn.train.fleet.resident.entries import inside, picked, pooled
from pstn.train.fleet.resident.index import Index, Place, split
from pstn.train.fleet.resident.values import APART, BANKS, Lazy, Memory, Pending, Value, allocate, written
from pstn.train.fleet.resident.writer import ALIGNED, Writer

#: An entry of a matrix, by its row and its column, or by its row, its column, and which matrix.
Get = Callable[[Index, Index], str]
#: Warps of a block. What is cut in pieces for them is cut the same way whatever the GPU.
WARPS = 16
#: What tensor cores multiply at a time: rows and columns.
HIGH, WIDE = 16, 8
#: The most tiles of these that a warp has at a time: down, and in all that is on the right.
DOWN, MOST = 2, 8
#: The fewest steps of eight products that a sum is cut into; and what a step, a tile and a barrier cost beside reads.
SHORT, OVERHEAD, BEGIN, BARRIER = 4, 4, 20, 40
#: The most products of slopes and kernels to keep at a time, unless they are of one picture and channel.
PRODUCTS = 10_240
#: How often what is not in memory may be computed anew.
AGAIN = 2


def contracted(
    writer: Writer, sizes: tuple[int, int, int], left: Get, rights: Sequence[Get], exact: bool,
    finish: Callable[[list[str], Index, Index], None], costs: tuple[int, int] = (1, 1),
) -> None:  # fmt: skip
    """A matrix times each of some others.

    Arguments:
        writer: The kernel.
        sizes: How many rows and columns, and how many products an entry is the sum of.
        left: The entries (row, k) of what is on the left. Of its rows there should be few.
        rights: The entries (k, column) of each that is on the right.
        exact: Whether factors count to all their digits, or are rounded to TF32.
        finish: Writes what is to be done with the sums of a row and a column, given their names.
        costs: What it takes to get an entry of the left, and of each of the right.
    """
    rows, columns, depth = sizes
    writer.products += rows * columns * depth * len(rights) * int(writer.often[-1])
    down, across, pieces = _cut(rows, columns, depth, len(rights), *costs)
    truth = "true" if exact else "false"
    if pieces > 1:
        room = allocate(writer, (pieces, rows, columns), torch.float32)
        writer.writes(room.buffer)  # type: ignore[arg-type]
        writer.counts(room.pointer, 2 * room.numel)
        head = f"long_product<{rows}, {columns}, {depth}, {truth}, {down}, {across}, {pieces}>({room.pointer}, "
    else:
        head = f"product<{rows}, {columns}, {depth}, {len(rights)}, {truth}, {down}, {across}>("
    tall, broad = -(-rows // (HIGH * down)), -(-columns // (WIDE * across))  # a factor is read once a tile beside it
    with writer.block(f"{head}[&](int row, int k) -> float {{", "},", rows * depth * broad):
        writer.line(f"return {left(writer.argument('row', rows), writer.argument('k', depth))};")
    with writer.block("[&](int k, int column, int place) -> float {", "},", columns * depth * tall):
        k, column = writer.argument("k", depth), writer.argument("column", columns)
        for n, right in enumerate(rights[:-1]):
            with writer.block(f"if (place == {n}) {{"):
                writer.line(f"return {right(k, column)};")
        writer.line(f"return {rights[-1](k, column)};")
    if pieces > 1:
        writer.passed()
        writer.memory.last[room.buffer] = writer.epoch  # type: ignore[index]
    with writer.block(f"[&](int row, int column, const Many<float, {len(rights)}>& found) {{", "});", rows * columns):
        names = [writer.let(f"found[{n}]") for n in range(len(rights))]
        finish(names, writer.argument("row", rows), writer.argument("column", columns))


def _cut(rows: int, columns: int, depth: int, rights: int, left_cost: int, right_cost: int) -> tuple[int, int, int]:
    """How a product is cut, so that its longest warp reads least: tiles down and across, and pieces of its sums."""
    steps, best, least = -(-depth // 8), (1, 1, 1), math.inf
    for down in range(1, min(DOWN, -(-rows // HIGH)) + 1):
        for across in (n for n in (1, 2, 4) if n * rights <= MOST and (n == 1 or n * WIDE < columns + WIDE)):
            tiles = -(-rows // (HIGH * down)) * -(-columns // (WIDE * across))
            for pieces in range(1, max(1, min(WARPS, steps // SHORT) if rights == 1 else 1) + 1):
                reads = 4 * down * left_cost + 2 * across * rights * right_cost + OVERHEAD
                rounds = -(-tiles * pieces // WARPS)
                # pieces are written, and read again to be summed
                more = 0 if pieces == 1 else -(-(pieces + 1) * rows * columns // (32 * WARPS)) + BARRIER
                cost = rounds * (-(-steps // pieces) * reads + BEGIN) + more
                if cost < least:
                    best, least = (down, across, pieces), cost
    return best


def multiplied(writer: Writer, a: Value, b: Value, exact: bool) -> Pending:
    """The product of (m, k) and (k, n)."""
    a, b = (written(writer, each) if each.cost > 2 or each.pending else each for each in (a, b))
    (m, k), n = a.shape, b.shape[1]

    def compute(writer: Writer, finish: Callable[[Place], None]) -> None:
        def end(sums: list[str], row: Index, column: Index) -> None:
            made.found = sums[0]
            finish(Place((m, n), (row, column) if m <= n else (column, row)))

        def first(row: Index, column: Index) -> str:
            return a.at(writer, Place(a.shape, (row, column)))

        def second(row: Index, column: Index) -> str:
            return b.at(writer, Place(b.shape, (row, column)))

        if m <= n:
            contracted(writer, (m, n, k), first, [second], exact, end)
        else:
            contracted(writer, (n, m, k), lambda i, j: second(j, i), [lambda i, j: first(j, i)], exact, end)

    made = Pending(shape=(m, n), dtype=torch.float32, compute=compute, of=(a, b))
    return made


def convolved(
    writer: Writer, x: Value, weight: Memory, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    pool: tuple[Sequence[int], Memory] | None = None,
) -> Pending:  # fmt: skip
    """The convolution of pictures (B, C, H, W) with kernels (O, C, KH, KW), of which windows may be pooled at once.

    Arguments:
        writer: The kernel.
        x: The pictures.
        weight: The kernels.
        bias: What is added to each channel.
        stride: How far windows are apart.
        padding: Zeros around the pictures.
        pool: The size of windows to take the largest of, and room for the places they came from.
    """
    x, weight = around(writer, x, padding), at_hand(writer, weight)
    (batch, channels, *size), (out, _, *kernel) = x.shape, weight.shape
    shape = (batch, out, *((s - k) // step + 1 for s, k, step in zip(size, kernel, stride, strict=True)))
    seen = shape if pool is None else pool[1].shape
    steps = (1, 1) if pool is None else tuple(pool[0])
    count, taps = batch * math.prod(seen[2:]), channels * math.prod(kernel)

    def compute(writer: Writer, finish: Callable[[Place], None]) -> None:
        def kernels(o: Index, tap: Index) -> str:
            return weight.at(writer, Place(weight.shape, (o, *split(writer, tap, (channels, *kernel)))))

        def look(down: int, across: int) -> Get:
            def get(tap: Index, pixel: Index) -> str:
                c, ky, kx = split(writer, tap, (channels, *kernel))
                b, i, j = split(writer, pixel, (batch, *seen[2:]))
                y = (i * steps[0] + down) * stride[0] + ky
                return x.at(writer, Place(x.shape, (b, c, y, (j * steps[1] + across) * stride[1] + kx)))

            return get

        def end(sums: list[str], o: Index, pixel: Index) -> None:
            place = Place(seen, _of_pixel(writer, pixel, o, seen))
            if bias is not None:
                shift = bias.at(writer, Place((out,), (o,)))
                sums = [writer.let(f"{name} + {shift}") for name in sums]
            made.found = sums[0] if pool is None else pooled(x, pool[0], pool[1], of=sums).at(writer, place)
            finish(place)

        looks = [look(down, across) for down in range(steps[0]) for across in range(steps[1])]
        contracted(writer, (out, count, taps), kernels, looks, not _rounded(), end)

    of = tuple(value for value in (x, weight, bias) if value is not None)
    made = Pending(shape=tuple(seen), dtype=torch.float32, compute=compute, of=of)
    return made


def convolved_to_input(
    writer: Writer, grad: Value, weight: Memory, shape: Sequence[int], padding: Sequence[int]
) -> Memory:
    """The gradient of a convolution of stride 1 to its pictures.

    What each slope brings to each pixel of its window is one product; every pixel then has as many to sum as windows
    have places. It is done for some pictures at a time, or for some channels of one, so that the products are not many.
    """
    weight = at_hand(writer, weight)
    (out, channels, *kernel), (batch, _, *seen) = weight.shape, grad.shape
    places, pixels = math.prod(kernel), math.prod(seen)
    part = _share(channels, places * pixels)
    some = _share(batch, channels * places * pixels) if part == channels else 1
    taps = part * places
    grad = _cheap(writer, grad, -(-taps // (HIGH * DOWN)) * (channels // part))
    room = allocate(writer, shape, torch.float32, spaced=True)
    spread = rows_apart(writer, allocate(writer, (taps, some * pixels), torch.float32))
    writer.reads(grad.buffers | weight.buffers)
    loops = ((batch, some, "first"), (channels, part, "channel"))
    heads = [f"for (int {name} = 0; {name} < {n}; {name} += {step})" for n, step, name in loops]
    with writer.block(f"{' '.join(heads)} {{  // {list(shape)}", times=batch // some * (channels // part)):
        first, channel = (writer.argument(name, n) for n, _, name in loops)

        def kernels(tap: Index, o: Index) -> str:
            c, *rest = split(writer, tap, (part, *kernel))
            return weight.at(writer, Place(weight.shape, (o, c + channel, *rest)))

        def slopes(o: Index, pixel: Index) -> str:
            b, i, j = split(writer, pixel, (some, *seen))
            return grad.at(writer, Place(grad.shape, (b + first, o, i, j)))

        def keep(sums: list[str], tap: Index, pixel: Index) -> None:
            place = spread.index(writer, Place(spread.shape, (tap, pixel)))
            writer.store(spread.pointer, place, sums[0])

        sizes = (taps, some * pixels, out)
        contracted(writer, sizes, kernels, [slopes], not _rounded(), keep, (1, grad.cost))
        writer.line("SYNC();")
        target = (some, part, *shape[2:])
        total = math.prod(target)
        with writer.block(f"each<{total}, 1>([&](int i) -> float {{", "},", total):
            b, c, y, x = split(writer, writer.argument("i", total), target)
            terms = []
            for tap in range(places):
                back = (tap // kernel[1], tap % kernel[1])
                i, j = (writer.named(at - back[n] + padding[n]) for n, at in enumerate((y, x)))
                # negative numbers are large ones without a sign
                tests = (f"unsigned({writer.text(at)}) < {n}u" for at, n in ((i, seen[0]), (j, seen[1])))
                with writer.masked(writer.let(" && ".join(tests))):
                    place = Place(spread.shape, (c * places + tap, b * pixels + i * seen[1] + j))
                    terms.append(spread.at(writer, place))
            writer.line(f"return {' + '.join(terms)};")
        with writer.block("[&](int i, float found) {", "});", total):
            b, c, *rest = split(writer, writer.argument("i", total), target)
            spot = Place(tuple(shape), (b + first, c + channel, *rest))
            writer.store(room.pointer, room.index(writer, spot), "found")
        writer.line("SYNC();")
    for piece in (room.buffer, spread.buffer):
        writer.writes(piece)  # type: ignore[arg-type]
    writer.passed()
    return room


def _share(count: int, each: int) -> int:
    """How many of so many things to take at a time, for the products that each has: always as many, at least one."""
    return max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * each <= PRODUCTS))


def convolved_to_weight(
    writer: Writer, grad: Value, x: Value, shape: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Pending:
    """The gradient of a convolution to its kernels."""
    x = around(writer, x, padding)
    (out, channels, *kernel), (batch, _, *seen) = shape, grad.shape
    count, taps = batch * math.prod(seen), channels * math.prod(kernel)
    grad = _cheap(writer, grad, -(-taps // (WIDE * MOST // 2)))

    def compute(writer: Writer, finish: Callable[[Place], None]) -> None:
        def slopes(o: Index, pixel: Index) -> str:
            return grad.at(writer, Place(grad.shape, _of_pixel(writer, pixel, o, grad.shape)))

        def look(pixel: Index, tap: Index) -> str:
            c, ky, kx = split(writer, tap, (channels, *kernel))
            b, i, j = split(writer, pixel, (batch, *seen))
            return x.at(writer, Place(x.shape, (b, c, i * stride[0] + ky, j * stride[1] + kx)))

        def end(sums: list[str], o: Index, tap: Index) -> None:
            made.found = sums[0]
            finish(Place(tuple(shape), (o, *split(writer, tap, (channels, *kernel)))))

        contracted(writer, (out, taps, count), slopes, [look], not _rounded(), end, (grad.cost, 1))

    made = Pending(shape=tuple(shape), dtype=torch.float32, compute=compute, of=(grad, x))
    return made


def at_hand(writer: Writer, weight: Memory) -> Memory:
    """Kernels in scratch memory, from which every warp reads all of them."""
    key = (weight.pointer, weight.offset, weight.shape, weight.steps)
    if weight.buffer is None and key not in writer.made:
        copy = picked(weight, weight.shape, lambda _, place: place)
        writer.made[key] = written(writer, copy, rows_apart(writer, allocate(writer, weight.shape, weight.dtype)))
    return weight if weight.buffer is not None else writer.made[key]


def rows_apart(writer: Writer, room: Memory) -> Memory:
    """Room with gaps between its rows, so that threads that read down a column do not get in each other's way."""
    steps = list(room.steps)
    while steps[0] % BANKS not in APART:
        steps[0] += 1
    writer.memory.sizes[room.buffer] = -(-steps[0] * room.shape[0] // ALIGNED) * ALIGNED  # type: ignore[index]
    return replace(room, steps=tuple(steps))


def around(writer: Writer, x: Value, padding: Sequence[int]) -> Memory:
    """Pictures in memory, with zeros around them."""
    if x.pending:
        x = written(writer, x)
    key = (x, *padding)
    if key not in writer.made:
        wide = x
        for axis, zeros in enumerate(padding, 2):
            if zeros:
                shape = (*wide.shape[:axis], wide.shape[axis] + 2 * zeros, *wide.shape[axis + 1 :])
                wide = _between(wide, shape, axis, zeros)
        writer.made[key] = written(writer, wide)
    return writer.made[key]


def _between(x: Value, shape: Sequence[int], axis: int, zeros: int) -> Lazy:
    def at(writer: Writer, place: Place, index: Index) -> Place:
        return place.changed(writer, axis, index, x.shape)

    return inside(x, shape, axis, zeros, 1, x.shape[axis], 0.0, at)


def _cheap(writer: Writer, x: Value, times: int) -> Value:
    """Something to be read so many times, in memory unless it is computed about as fast."""
    return written(writer, x) if x.pending or (times > AGAIN and x.cost > 1) else x


def _of_pixel(writer: Writer, row: Index, channel: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The place in (B, C, H, W) of a channel of a pixel, counted through all pictures."""
    b, i, j = split(writer, row, (shape[0], *shape[2:]))
    return b, channel, i, j


def _rounded() -> bool:
    """Whether the factors of convolutions may be rounded to TF32, which is for torch's settings to say."""
    return torch.backends.cudnn.allow_tf32
