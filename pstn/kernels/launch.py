"""Launches: from tensors as they come to kernels, their strides, tiles and groups of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

#: Enough programs to keep a large GPU busy and its last round short.
ENOUGH = 4000
#: Pixels of a tile, one a thread, and the tile's width: a patch of the output looks at a patch of the input.
BLOCK, WIDE = 128, 16
#: Pixels of a tile of CPAB: all of them walk until the last one is there, so they are few, and a square.
FEW, NARROW = 32, 8
#: The longest run of tiles: a program's first steps cost as much as a tile or two.
LONGEST = 16
#: The most programs along a launch's second and third axis.
MOST = 65535

_COMPILED: dict[Any, Any] = {}


class Cut(NamedTuple):
    """How a launch is cut: tiles of ``block`` pixels, ``wide`` across; runs of tiles; groups of channels in chunks."""

    block: int
    wide: int
    tiles: int
    length: int
    runs: int
    group: int
    groups: int
    chunk: int


@lru_cache(maxsize=1024)
def cut(size: tuple[int, ...], channels: int, warps: int, longest: int = LONGEST, kind: str = "") -> Cut:
    """The cut for arrays of a size: runs and groups as long as there are enough programs."""
    block, wide, enough = (FEW, NARROW, ENOUGH * BLOCK // FEW) if kind == "cpab" else (BLOCK, WIDE, ENOUGH)
    block = min(block, max(32, triton.next_power_of_2(math.prod(size))))
    wide = block if len(size) == 1 else min(wide, block, triton.next_power_of_2(size[-1]))
    tiles = -(-size[-1] // wide)
    if len(size) > 1:
        tiles *= -(-size[-2] // (block // wide)) * math.prod(size[:-2])
    chunk = next(n for n in (4, 3, 2, 1) if channels % n == 0)
    length, group = min(longest, tiles), channels
    while length > 1 and warps * -(-tiles // length) < enough:
        length = -(-length // 2)
    while group > chunk and warps * -(-tiles // length) * -(-channels // group) < enough:
        group = max(chunk, group // 2 // chunk * chunk)
    return Cut(block, wide, tiles, length, -(-tiles // length), group, -(-channels // group), chunk)


def run(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[Any, ...],
    functions: tuple[Any, ...],
    constants: tuple[Any, ...],
    block: int,
) -> None:
    """Launch a kernel; its arguments are the tensors, the numbers, device functions and other constants, in this order.

    Triton inspects every argument of every launch, which takes longer than a small warp. So what it compiles is kept,
    by all that it looks at; ``constants`` must tell ``functions`` apart.
    """
    aligned = tuple([None if t is None else (t.dtype, t.data_ptr() % 16 == 0) for t in tensors])
    device = next(t for t in tensors if t is not None).device
    key = (kernel.__name__, device, aligned, numbers, constants)
    away = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if away else nullcontext():
        if (known := _COMPILED.get(key)) is not None:
            known[grid](*tensors, *numbers, *functions, *constants)
            return
        if len(_COMPILED) > 4096:
            _COMPILED.clear()
        warps = max(1, block // 32)
        _COMPILED[key] = kernel[grid](*tensors, *numbers, *functions, *constants, num_warps=warps)


def forward(
    x: Tensor,
    where: Tensor,
    table: Tensor | None,
    fill: Tensor | None,
    kind: str,
    size: Sequence[int],
    padding: str,
    mode: str,
) -> Tensor:
    """The warped arrays (S, B, C, *size); ``where`` is (S, B, count) or, stored, (S, B, k, *size)."""
    samples, batch = where.shape[:2]
    channels, size = x.shape[1], tuple(size)
    if max(samples, batch) > MOST:
        parts = [forward(a, w, table, fill, kind, size, padding, mode) for a, w in _halves(x, where)]
        return torch.cat(parts, dim=0 if samples > MOST else 1)
    out = torch.empty((samples, batch, channels, *size), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    c = cut(size, channels, samples * batch, kind=kind)
    numbers = (
        *_frame(size, x),
        *_strides(out, 3),
        *_strides(x, 2),
        where.stride()[:2],
        _steps(where, 2),
        _steps(table, 0),
        0 if fill is None else fill.stride(0),
        channels,
        c.tiles,
        c.runs,
        c.length,
    )
    constants = (where.shape[2], padding, mode == "nearest", len(size), c.groups > 1, c.group, c.chunk, c.wide, c.block)
    grid = (c.runs * c.groups, samples, batch)
    run(warp_forward, grid, (out, x, where, table, fill), numbers, KINDS[kind][:2], (*constants, kind), c.block)
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    where: Tensor,
    table: Tensor | None,
    fill: Tensor | None,
    kind: str,
    padding: str,
    mode: str,
    to_image: bool,
    to_where: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients to x and to ``where``; an empty tensor for one that is not asked for."""
    samples, batch = where.shape[:2]
    if max(samples, batch) > MOST:
        pieces = zip(grad.chunk(2, dim=0 if samples > MOST else 1), _halves(x, where), strict=True)
        parts = [backward(g, a, w, table, fill, kind, padding, mode, to_image, to_where) for g, (a, w) in pieces]
        images, places = zip(*parts, strict=True)
        if samples > MOST:
            return images[0] + images[1], torch.cat(places)
        return torch.cat(images), torch.cat(places, dim=1 if to_where else 0)
    problem = Problem(grad, x, where, table, fill, kind, padding, mode)
    image = _to_image(problem) if to_image else x.new_empty(0)
    return image, _to_where(problem) if to_where else where.new_empty(0)


class Problem(NamedTuple):
    """What a backward pass is about."""

    grad: Tensor
    x: Tensor
    where: Tensor
    table: Tensor | None
    fill: Tensor | None
    kind: str
    padding: str
    mode: str


def _to_where(problem: Problem) -> Tensor:
    grad, x, where, _, _, kind, _, mode = problem
    if mode == "nearest" or grad.numel() == 0:
        return torch.zeros(where.shape, dtype=where.dtype, device=where.device)
    samples, batch = where.shape[:2]
    c = cut(tuple(grad.shape[3:]), x.shape[1], samples * batch, kind=kind)
    if kind in ("stored", "displaced"):
        into = where.new_empty((c.groups, *where.shape))
        _backward(problem, c, into=into, into_strides=(*into.stride()[:3], 0))
        return into[0] if c.groups == 1 else into.sum(0)
    into = where.new_empty((c.groups, samples, batch, c.runs, where.shape[2]))
    if kind == "cpab":  # pixels add to it
        into.zero_()
    _backward(problem, c, into=into, into_strides=into.stride()[:4])
    return into.sum((0, 3))  # the second step of a sum whose order is fixed


def _to_image(problem: Problem) -> Tensor:
    grad, x, where, _, _, kind, padding, mode = problem
    if grad.numel() == 0:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    samples, batch = where.shape[:2]
    c = cut(tuple(grad.shape[3:]), x.shape[1], samples * batch, kind=kind)
    if torch.are_deterministic_algorithms_enabled():
        # Whole numbers add up to the same sum in any order. No pixel gets more than every output pixel's gradient once,
        # so 2^62 is never passed; a gradient that is not finite makes the unit, and so the result, not finite.
        most = grad.abs().amax().double() * (samples * math.prod(grad.shape[3:]))
        scale = torch.exp2(61 - most.clamp_min(1e-30).log2().ceil()).where(most.isfinite(), torch.nan)
        total = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
        _backward(problem, c, total=total, scale=scale.float())
        return (total.double() / scale).to(x.dtype)
    if kind != "affine" or padding != "fill" or mode != "linear" or x.ndim != 4:
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        _backward(problem, c, total=total)
        return total.to(x.dtype)

    total = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    asked = torch.empty((samples, batch), dtype=torch.int32, device=x.device)
    size, _, shape = _frame(grad.shape[3:], x)
    places = (where.stride()[:2], _steps(where, 2))
    run(
        make_plan,
        (-(-samples * batch // 128), 1, 1),
        (asked, where),
        (size, shape, *places, batch, samples * batch),
        (),
        (128,),
        128,
    )
    i = cut(tuple(x.shape[2:]), x.shape[1], batch, 1)
    numbers = (size, shape, *_strides(total, 2), *_strides(grad, 3), *places, samples, batch, i.tiles)
    grid = (batch * i.tiles, x.shape[1] // i.chunk, 1)
    run(warp_gather, grid, (total, grad, where, asked), numbers, (), (i.chunk, i.wide, i.block), i.block)
    # what is left is rare: few programs, most of which find nothing to do
    length = max(c.length, -(-c.tiles // 8))
    left = c._replace(length=length, runs=-(-c.tiles // length))
    _backward(problem, left, total=total, asked=asked)
    return total.to(x.dtype)


def _backward(
    problem: Problem,
    c: Cut,
    *,
    into: Tensor | None = None,
    into_strides: tuple[int, ...] = (0, 0, 0, 0),
    total: Tensor | None = None,
    scale: Tensor | None = None,
    asked: Tensor | None = None,
) -> None:
    grad, x, where, table, fill, kind, padding, mode = problem
    numbers = (
        *_frame(grad.shape[3:], x),
        into_strides,
        *_strides(x if total is None else total, 2),
        *_strides(grad, 3),
        *_strides(x, 2),
        where.stride()[:2],
        _steps(where, 2),
        _steps(table, 0),
        0 if fill is None else fill.stride(0),
        x.shape[1],
        c.tiles,
        c.runs,
        c.length,
    )
    constants = (
        where.shape[2],
        padding,
        mode == "nearest",
        x.ndim - 2,
        c.groups > 1,
        c.group,
        c.chunk,
        c.wide,
        c.block,
    )
    tensors = (into, total, grad, x, where, table, fill, scale, asked)
    grid = (c.runs * c.groups, *where.shape[:2])
    run(warp_backward, grid, tensors, numbers, KINDS[kind], (*constants, kind), c.block)


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


def _halves(x: Tensor, where: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
    """A problem with more warps than a launch can count, in two."""
    if where.shape[0] > MOST:
        return [(x, part) for part in where.chunk(2)]
    return list(zip(x.chunk(2), where.chunk(2, dim=1), strict=True))
