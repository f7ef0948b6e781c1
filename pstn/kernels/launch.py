"""Launches: from tensors as they come to kernels, their strides, tiles and groups of channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from pstn.kernels import coordinates as co
from pstn.kernels import cpab
from pstn.kernels.gather import make_plan, warp_gather
from pstn.kernels.programs import warp_backward, warp_forward

#: The coordinate functions by name: read, place, start, pull, finish.
KINDS: dict[str, tuple[Any, ...]] = {
    "affine": (co.read_all, co.affine_place, co.sums_start, co.affine_pull, co.sums_finish),
    "projective": (co.read_all, co.projective_place, co.sums_start, co.projective_pull, co.sums_finish),
    "linear": (co.read_all, co.linear_place, co.sums_start, co.linear_pull, co.sums_finish),
    "cpab": (cpab.read, cpab.place, co.nothing_start, cpab.pull, co.nothing_finish),
    "displaced": (co.read_none, co.displaced_place, co.nothing_start, co.stored_pull, co.nothing_finish),
    "stored": (co.read_none, co.stored_place, co.nothing_start, co.stored_pull, co.nothing_finish),
}

#: Enough programs to keep a large GPU busy and its last round short; gradients, which end in a sum, want fewer.
ENOUGH, FEWER = 4000, 2000
#: Pixels of a tile, one a thread, and the tile's width: a patch of the output looks at a patch of the input. Neighbours
#: share what they read, so a long run of tiles is one of rows, a short one of patches.
BLOCK, WIDE = 128, 32
#: Pixels of a tile of CPAB: all of them walk until the last one is there, so they are few, and a square.
FEW, NARROW = 32, 8
#: The longest run of tiles: a program's first steps cost as much as a tile or two.
LONGEST = 16
#: The most programs along a launch's second and third axis.
MOST = 65535


class Cut(NamedTuple):
    """How a launch is cut: tiles of ``rows`` times ``block`` pixels, ``wide`` across; runs of tiles; groups of channels
    in chunks."""

    block: int
    wide: int
    tiles: int
    length: int
    runs: int
    group: int
    groups: int
    chunk: int
    rows: int


@lru_cache(maxsize=1024)
def cut(
    size: tuple[int, ...],
    channels: int,
    warps: int,
    kind: str = "",
    backward: bool = False,
    longest: int = LONGEST,
    rows: int = 1,
) -> Cut:
    """The cut for arrays of a size: runs and groups as long as there are enough programs."""
    enough = FEWER if backward else ENOUGH
    if kind == "cpab":
        block, wide, enough = FEW, NARROW, enough * BLOCK // FEW
    elif backward or warps * math.prod(size) >= enough * BLOCK * LONGEST:
        block, wide = BLOCK, WIDE
    else:
        block, wide = BLOCK, WIDE // 2
    block = min(block, max(32, triton.next_power_of_2(math.prod(size))))
    wide = block if len(size) == 1 else min(wide, block, triton.next_power_of_2(size[-1]))
    tiles = -(-size[-1] // wide)
    if len(size) > 1:
        tiles *= -(-size[-2] // (rows * block // wide)) * math.prod(size[:-2])
    chunk = next(n for n in (4, 3, 2, 1) if channels % n == 0)
    length, group = min(max(1, longest // rows), tiles), channels
    while length > 1 and warps * -(-tiles // length) < enough:
        length = -(-length // 2)
    while group > chunk and warps * -(-tiles // length) * -(-channels // group) < enough:
        group = max(chunk, group // 2 // chunk * chunk)
    return Cut(block, wide, tiles, length, -(-tiles // length), group, -(-channels // group), chunk, rows)


class Problem(NamedTuple):
    """A warp: arrays, places, and how to look at them, as :func:`pstn.kernels.operators.warp` has them."""

    x: Tensor
    where: Tensor
    table: Tensor | None
    fill: Tensor | None
    kind: str
    padding: str
    mode: str

    @property
    def key(self) -> tuple[Any, ...]:
        """All that a launch's arguments depend on, but for pointers."""
        x, where, table, fill, *options = self
        steps = None if table is None else table.stride(), None if fill is None else fill.stride()
        return x.shape, x.stride(), where.shape, where.stride(), *steps, *options

    @property
    def layout(self) -> tuple[Any, ...]:
        """The strides of what a kernel reads."""
        x, where, table, fill = self[:4]
        places = (where.stride()[:2], _steps(where, 2))
        background = (0, 0) if fill is None else (0, *fill.stride())[-2:]  # for all arrays, or one an array
        return _strides(x, 2), places, _steps(table, 0), background

    def constants(self, c: Cut) -> tuple[Any, ...]:
        """What a kernel is compiled for; the kind tells the coordinate functions apart."""
        how = (self.where.shape[2], self.padding, self.mode == "nearest", self.x.ndim - 2)
        return (*how, c.groups > 1, c.group, c.chunk, c.wide, c.block, self.kind)

    def parts(self) -> list[Problem]:
        """A problem with more warps than a launch can count, in two."""
        if self.where.shape[0] > MOST:
            return [self._replace(where=part) for part in self.where.chunk(2)]
        halves = zip(self.x.chunk(2), self.where.chunk(2, dim=1), strict=True)
        return [self._replace(x=x, where=where) for x, where in halves]


#: A kernel, its grid, its arguments after the tensors, and the threads of a program.
Launch = tuple[Any, tuple[int, int, int], tuple[Any, ...], int]


def run(tensors: tuple[Tensor | None, ...], key: tuple[Any, ...], prepare: Callable[[], Launch]) -> None:
    """Launch a kernel on tensors, as ``prepare`` says.

    Preparing a launch, and Triton's look at every argument, take longer than a small warp. So what they find is kept,
    by ``key`` and all that Triton looks at, and a launch that is known gets pointers.
    """
    pointers = [0 if t is None else t.data_ptr() for t in tensors]
    seen = tuple([None if t is None else t.dtype for t in tensors]), tuple([p % 16 == 0 for p in pointers])
    device = next(t for t in tensors if t is not None).device
    key = (device, seen, key)
    away = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if away else _HERE:
        if (known := _KNOWN.get(key)) is not None:
            runner, arguments = known
            runner(*pointers, *arguments)
            return
        kernel, grid, arguments, threads = prepare()
        compiled = kernel[grid](*tensors, *arguments, num_warps=max(1, threads // 32))
    if compiled is not None:  # the interpreter compiles nothing
        if len(_KNOWN) > 4096:
            _KNOWN.clear()
        _KNOWN[key] = compiled[grid], arguments


_KNOWN: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
_HERE = nullcontext()


def forward(problem: Problem, size: Sequence[int]) -> Tensor:
    """The warped arrays (S, B, C, *size)."""
    x, where, table, fill, kind, *_ = problem
    samples, batch = where.shape[:2]
    channels, size = x.shape[1], tuple(size)
    if max(samples, batch) > MOST:
        return torch.cat([forward(part, size) for part in problem.parts()], dim=0 if samples > MOST else 1)
    out = torch.empty((samples, batch, channels, *size), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out

    def prepare() -> Launch:
        # two rows of pixels at once share what lies between them
        rows = 2 if x.ndim == 4 and problem.mode == "linear" and kind != "cpab" else 1
        c = cut(size, channels, samples * batch, kind, rows=rows)
        numbers = (_strides(out, 3), _frame(size, x), problem.layout, (channels, c.tiles, c.runs, c.length))
        arguments = (*numbers, *KINDS[kind][:2], c.rows, *problem.constants(c))
        return warp_forward, (c.runs * c.groups, samples, batch), arguments, c.block

    run((out, x, where, table, fill), (size, *problem.key), prepare)
    return out


def backward(grad: Tensor, problem: Problem, to_image: bool, to_where: bool) -> tuple[Tensor, Tensor]:
    """The gradients to x and to ``where``; an empty tensor for one that is not asked for."""
    x, where = problem[:2]
    samples, batch = where.shape[:2]
    if max(samples, batch) > MOST:
        pieces = zip(grad.chunk(2, dim=0 if samples > MOST else 1), problem.parts(), strict=True)
        images, places = zip(*[backward(g, part, to_image, to_where) for g, part in pieces], strict=True)
        if samples > MOST:
            return images[0] + images[1], torch.cat(places)
        return torch.cat(images), torch.cat(places, dim=1 if to_where else 0)
    image = _to_image(grad, problem) if to_image else x.new_empty(0)
    return image, _to_where(grad, problem) if to_where else where.new_empty(0)


def _to_where(grad: Tensor, problem: Problem) -> Tensor:
    x, where, _, _, kind, _, mode = problem
    if mode == "nearest" or grad.numel() == 0:
        return torch.zeros(where.shape, dtype=where.dtype, device=where.device)
    samples, batch = where.shape[:2]
    c = cut(tuple(grad.shape[3:]), x.shape[1], samples * batch, kind, backward=True)
    if kind in ("stored", "displaced"):
        into = where.new_empty((c.groups, *where.shape))
        _backward(grad, problem, c, into=into)
        return into[0] if c.groups == 1 else into.sum(0)
    into = where.new_empty((c.groups, samples, batch, c.runs, where.shape[2]))
    if kind == "cpab":  # pixels add to it
        into.zero_()
    _backward(grad, problem, c, into=into)
    if c.groups == c.runs == 1:
        return into[0, :, :, 0]
    return into.sum((0, 3))  # the second step of a sum whose order is fixed


def _to_image(grad: Tensor, problem: Problem) -> Tensor:
    x, where, _, _, kind, padding, mode = problem
    if grad.numel() == 0:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    samples, batch = where.shape[:2]
    c = cut(tuple(grad.shape[3:]), x.shape[1], samples * batch, kind, backward=True)
    if torch.are_deterministic_algorithms_enabled():
        # Whole numbers add up to the same sum in any order. No pixel gets more than every output pixel's gradient once,
        # so 2^62 is never passed; a gradient that is not finite makes the unit, and so the result, not finite.
        most = grad.abs().amax().double() * (samples * math.prod(grad.shape[3:]))
        scale = torch.exp2(61 - most.clamp_min(1e-30).log2().ceil()).where(most.isfinite(), torch.nan)
        total = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
        _backward(grad, problem, c, total=total, scale=scale.float())
        return (total.double() / scale).to(x.dtype)
    if kind != "affine" or padding != "fill" or mode != "linear" or x.ndim != 4:
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        _backward(grad, problem, c, total=total)
        return total.to(x.dtype)

    total = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    asked = torch.empty((samples, batch), dtype=torch.int32, device=x.device)
    key = (grad.shape, grad.stride(), *problem.key)
    size, _, shape = _frame(grad.shape[3:], x)
    places = problem.layout[1]

    def prepare_plan() -> Launch:
        arguments = (size, shape, *places, batch, samples * batch, 128)
        return make_plan, (-(-samples * batch // 128), 1, 1), arguments, 128

    def prepare_gather() -> Launch:
        i = cut(tuple(x.shape[2:]), x.shape[1], batch, backward=True, longest=1)
        numbers = (size, shape, *_strides(total, 2), *_strides(grad, 3), *places, samples, batch, i.tiles)
        grid = (batch * i.tiles, x.shape[1] // i.chunk, 1)
        return warp_gather, grid, (*numbers, i.chunk, i.wide, i.block), i.block

    run((asked, where), ("plan", *key), prepare_plan)
    run((total, grad, where, asked), ("gather", *key), prepare_gather)
    # what is left is rare: few programs, most of which find nothing to do
    length = max(c.length, -(-c.tiles // 8))
    _backward(grad, problem, c._replace(length=length, runs=-(-c.tiles // length)), total=total, asked=asked)
    return total.to(x.dtype)


def _backward(
    grad: Tensor,
    problem: Problem,
    c: Cut,
    *,
    into: Tensor | None = None,
    total: Tensor | None = None,
    scale: Tensor | None = None,
    asked: Tensor | None = None,
) -> None:
    x, where, table, fill, kind, *_ = problem

    def prepare() -> Launch:
        into_strides = [0, 0, 0, 0] if into is None else list(into.stride()[:4])
        if kind in ("stored", "displaced"):  # pixels write their own gradient, whichever run they are in
            into_strides[3] = 0
        numbers = (
            tuple(into_strides),
            _strides(x if total is None else total, 2),
            _strides(grad, 3),
            _frame(grad.shape[3:], x),
            problem.layout,
            (x.shape[1], c.tiles, c.runs, c.length),
        )
        grid = (c.runs * c.groups, *where.shape[:2])
        return warp_backward, grid, (*numbers, *KINDS[kind], *problem.constants(c)), c.block

    tensors = (into, total, grad, x, where, table, fill, scale, asked)
    run(tensors, (c, grad.shape, grad.stride(), *problem.key), prepare)


def _frame(size: Sequence[int], x: Tensor) -> tuple[Any, ...]:
    """The output's size, the spacing of its pixels, and the array's size, x first."""
    return tuple(size[::-1]), tuple([2 / n for n in size[::-1]]), tuple(x.shape[:1:-1])


def _strides(tensor: Tensor, outer: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strides of the outer axes, and of the others, x first."""
    strides = tensor.stride()
    return strides[:outer], strides[: outer - 1 : -1]


def _steps(tensor: Tensor | None, axis: int) -> tuple[int, ...]:
    """The strides from an axis on: of parameters (one,), of planes (plane, x, y, z)."""
    return () if tensor is None else (tensor.stride(axis), *tensor.stride()[:axis:-1])
