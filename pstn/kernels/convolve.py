# Triton's language, not quite Python: its tensors have no annotations.
# ruff: noqa: ANN001, ANN201
# mypy: allow-untyped-defs
"""Convolutions and max-pooling of many small networks at once, each with kernels of its own, as torch operators.

A convolution and both its gradients are matrix products of a few rows: the kernels' taps by the windows of the input,
with the windows gathered as they are needed instead of copied out. Importing this module imports Triton.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.library import register_autograd, register_vmap
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

from pstn.kernels.operators import _LIBRARY, _front, _operator, _transformed

#: Tiles of (taps, patches), the warps that work on one, and the most rows of one: for products with windows, and for
#: gradients to weights.
PRODUCT, TO_WEIGHT = (16, 128, 4, 32), (64, 32, 4, 64)
#: How many patches' worth of the weight's gradient a program sums. Of nothing else: the sum of one network must not
#: depend on how many there are.
LENGTH = 512
#: The rows that a tensor core multiplies at once, and what taps are filled up to.
ROWS, FULL = 16, 128
#: What gathering a number costs in multiplications by it, and how much more for every pixel that a patch is broad.
GATHER, BREADTH = 100, 10
#: Products of float32 by tensor cores, as three of its upper and lower halves: about as exact as float32.
PRECISION = "tf32x3"
#: Elements that a program of the pooling works on.
BLOCK = 1024


class Plan(NamedTuple):
    """How patches of a target are products with windows of a source.

    The rows of a product are a target's channels at all pixels of a patch: a few channels fill a tensor core, and a
    patch reads the window around it once. All patches' windows are the same but for a shift.
    """

    target: tuple[int, int, int]  # channels, height, width
    patch: tuple[int, int]  # its size
    number: tuple[int, int]  # how many down and across
    source: tuple[int, int, int]
    window: tuple[int, int]
    step: tuple[int, int]  # from one patch's window to the next one's
    origin: tuple[int, int]  # where the first begins
    rows: int  # of the product
    taps: int  # in a window


@triton.jit
def split(index, inner: tl.constexpr, last: tl.constexpr):
    """A flat index as three, of which the last two are below ``inner`` and ``last``."""
    return index // (inner * last), index // last % inner, index % last


@triton.jit
def gather(source, strides, table, q, k, count, PLAN: tl.constexpr, FULL: tl.constexpr):
    """The numbers k of the windows of patches q, (K, Q); zero beyond the source.

    The table has the places of a window's numbers from its corner on, and their rows and columns. Beyond the last of
    them it has the corner, and beyond the last patch that one is read again: what is found there is not kept.
    """
    b, y, x = split(tl.minimum(q, count - 1), PLAN[2][0], PLAN[2][1])
    y, x = y * PLAN[5][0] + PLAN[6][0], x * PLAN[5][1] + PLAN[6][1]
    spot = (b * strides[1] + y * strides[3] + x * strides[4])[None, :] + tl.load(table + k)[:, None]
    DOWN: tl.constexpr = (PLAN[2][0] - 1) * PLAN[5][0] + PLAN[6][0] + PLAN[4][0]  # where the last window ends
    ACROSS: tl.constexpr = (PLAN[2][1] - 1) * PLAN[5][1] + PLAN[6][1] + PLAN[4][1]
    if PLAN[6][0] < 0 or PLAN[6][1] < 0 or PLAN[3][1] < DOWN or PLAN[3][2] < ACROSS:
        row = y[None, :] + tl.load(table + FULL + k)[:, None]
        column = x[None, :] + tl.load(table + 2 * FULL + k)[:, None]
        # as numbers without a sign those below zero are large
        live = (row.to(tl.uint32, bitcast=True) < PLAN[3][1]) & (column.to(tl.uint32, bitcast=True) < PLAN[3][2])
        return tl.load(source + spot, mask=live, other=0.0)
    else:
        return tl.load(source + spot)


@triton.jit
def patches(q, r, strides, count, PLAN: tl.constexpr):
    """Where the rows r of patches q lie in the target, (R, Q), and which of them exist."""
    HIGH: tl.constexpr = PLAN[1][0]
    BROAD: tl.constexpr = PLAN[1][1]
    b, y, x = split(q, PLAN[2][0], PLAN[2][1])
    c, j, i = split(r, HIGH, BROAD)
    live = (q < count)[None, :] & (c < PLAN[0][0])[:, None]
    if PLAN[0][1] < PLAN[2][0] * HIGH:
        live = live & ((y * HIGH)[None, :] + j[:, None] < PLAN[0][1])
    if PLAN[0][2] < PLAN[2][1] * BROAD:
        live = live & ((x * BROAD)[None, :] + i[:, None] < PLAN[0][2])
    corner = b * strides[1] + y * HIGH * strides[3] + x * BROAD * strides[4]
    return corner[None, :] + (c * strides[2] + j * strides[3] + i * strides[4])[:, None], live


@triton.jit
def product_kernel(
    out, source, matrix, bias, table, o_strides, s_strides, b_strides, count,
    PLAN: tl.constexpr, FULL: tl.constexpr, ROWS: tl.constexpr, TAPS: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Target patches (R, Q) = matrix (R, K) times source windows (K, Q), plus the channel's bias."""
    R: tl.constexpr = PLAN[7]
    K: tl.constexpr = PLAN[8]
    m = tl.program_id(2).to(tl.int64)
    q = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    source += m * s_strides[0]
    matrix += m * (R * K)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(0, K, TAPS):
        k = first + tl.arange(0, TAPS)
        values = gather(source, s_strides, table, q, k, count, PLAN, FULL)
        there = (r < R)[:, None] & (k < K)[None, :]
        part = tl.load(matrix + r[:, None] * K + k[None, :], mask=there, other=0.0)
        total = tl.dot(part, values, total, input_precision=PRECISION)
    if bias is not None:
        c = r // (PLAN[1][0] * PLAN[1][1])
        total += tl.load(bias + m * b_strides[0] + c * b_strides[1], mask=r < R, other=0.0)[:, None]
    spot, live = patches(q, r, o_strides, count, PLAN)
    tl.store(out + m * o_strides[0] + spot, total, mask=live)


@triton.jit
def to_weight_kernel(
    out, grad, source, table, g_strides, s_strides, count, parts,
    PLAN: tl.constexpr, FULL: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr,
    TAPS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient to the matrix (R, K), over a part of the patches: those of grad times windows of the source."""
    R: tl.constexpr = PLAN[7]
    K: tl.constexpr = PLAN[8]
    BLOCKS: tl.constexpr = (K + TAPS - 1) // TAPS
    m = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    k = tl.program_id(1) % BLOCKS * TAPS + tl.arange(0, TAPS)
    r = tl.program_id(1) // BLOCKS * ROWS + tl.arange(0, ROWS)
    grad += m * g_strides[0]
    source += m * s_strides[0]
    total = tl.zeros((ROWS, TAPS), tl.float32)
    for first in range(0, LENGTH, WIDE):
        q = part * LENGTH + first + tl.arange(0, WIDE)
        values = gather(source, s_strides, table, q, k, count, PLAN, FULL)
        spot, live = patches(q, r, g_strides, count, PLAN)
        slope = tl.load(grad + spot, mask=live, other=0.0)
        total = tl.dot(slope, tl.trans(values), total, input_precision=PRECISION)
    out += (m * parts + part) * (R * K)
    tl.store(out + r[:, None] * K + k[None, :], total, mask=(r < R)[:, None] & (k < K)[None, :])


@triton.jit
def pool_kernel(
    out, where, x, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
    WORD: tl.constexpr,
):  # fmt: skip
    """The largest value of each window and which it is: of equals the first, of NaNs the last, as torch has it."""
    index = tl.program_id(0).to(WORD) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = split(index, H // KH, W // KW)
    x += (plane * H + row * KH) * W + column * KW
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    found = tl.zeros((BLOCK,), tl.int32)
    for j in tl.static_range(KH):
        for i in tl.static_range(KW):
            value = tl.load(x + j * W + i, mask=index < count, other=0.0)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            found = tl.where(better, j * KW + i, found)
    tl.store(out + index, best, mask=index < count)
    tl.store(where + index, found.to(tl.int8), mask=index < count)


@triton.jit
def unpool_kernel(
    out, grad, where, count, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
    WORD: tl.constexpr,
):  # fmt: skip
    """Each window's gradient at the place its value came from, and zero elsewhere."""
    index = tl.program_id(0).to(WORD) * BLOCK + tl.arange(0, BLOCK)
    plane, row, column = split(index, H, W)
    live = (index < count) & (row < H // KH * KH) & (column < W // KW * KW)
    source = (plane * (H // KH) + row // KH) * (W // KW) + column // KW
    here = tl.load(where + source, mask=live, other=-1) == row % KH * KW + column % KW
    tl.store(out + index, tl.load(grad + source, mask=here & live, other=0.0), mask=index < count)


def _tile(rows: int, most: int) -> int:
    return min(most, max(ROWS, triton.next_power_of_2(rows)))


def _cheapest(target: Any, source: Any, unit: Any, most: int, window: Callable[[int, int], Sequence[int]]) -> Plan:
    """The best plan whose patches are multiples of ``unit``; ``window(axis, n)`` is (size, step, origin)."""
    found = []
    for high in range(unit[0], max(unit[0], target[1]) + 1, unit[0]):
        for broad in range(unit[1], max(unit[1], target[2]) + 1, unit[1]):
            if (high, broad) != unit and target[0] * high * broad > most:
                break
            number = (triton.cdiv(target[1], high), triton.cdiv(target[2], broad))
            size, step, origin = zip(window(0, high), window(1, broad), strict=True)
            rows, taps = target[0] * high * broad, source[0] * math.prod(size)
            made = Plan(target, (high, broad), number, source, size, step, origin, rows, taps)
            tiles = math.prod(number) * triton.cdiv(rows, most) * triton.cdiv(taps, ROWS)
            found.append((tiles * (GATHER + BREADTH * (broad - 1) + _tile(rows, most)), made))
    return min(found)[1]


@lru_cache(maxsize=256)
def plan(x: Any, weight: Any, stride: Any, padding: Any, backward: bool, most: int) -> tuple[Plan, Tensor]:
    """The plan for inputs (C, H, W) and kernels (O, C, KH, KW), and its matrix's places in the kernels, -1 for zeros.

    Backward the target is the input. Its patches begin at multiples of the stride, so that the positions whose windows
    touch one are the same for all but for a shift.
    """
    axes = list(zip(x[1:], weight[2:], stride, padding, strict=True))
    out = (weight[0], *((n + 2 * p - k) // s + 1 for n, k, s, p in axes))

    def reads(axis: int, n: int) -> tuple[int, int, int]:
        _, k, s, p = axes[axis]
        return (n - 1) * s + k, n * s, -p

    def touched(axis: int, n: int) -> tuple[int, int, int]:
        _, k, s, p = axes[axis]
        first, last = -((k - 1 - p) // s), (n - 1 + p) // s
        return last - first + 1, n // s, first

    made = _cheapest(x, out, stride, most, touched) if backward else _cheapest(out, x, (1, 1), most, reads)
    where = []  # the kernel's tap by which a pixel of the patch and one of the window meet
    for (_, k, s, p), size, window, origin in zip(axes, made.patch, made.window, made.origin, strict=True):
        pixel, other = torch.arange(size)[:, None], torch.arange(window)[None, :]
        tap = pixel + p - s * (other + origin) if backward else other - s * pixel
        where.append(torch.where((tap >= 0) & (tap < k), tap, -1))
    y, left = where[0][:, None, :, None], where[1][None, :, None, :]
    both = torch.arange(math.prod(weight)).view(weight)[:, :, y, left]  # (O, C, patch, window)
    table = torch.where((y >= 0) & (left >= 0), both, -1).permute(*((1, 2, 3, 0) if backward else (0, 2, 3, 1)), 4, 5)
    return made, table.reshape(made.rows, made.taps)


# Tables on a device: made when a shape is met first, which is before a graph is recorded, and kept.
@lru_cache(maxsize=256)
def _spread(device: torch.device, key: tuple[Any, ...]) -> Tensor:
    """The matrix's places in the kernels, behind which there is a zero."""
    places = plan(*key)[1].flatten()
    return torch.where(places < 0, math.prod(key[1]), places).to(device, torch.int32)


@lru_cache(maxsize=256)
def _collect(device: torch.device, key: tuple[Any, ...]) -> Tensor:
    """The reverse: the places of each of the kernels' numbers in the matrix, (patch, numbers)."""
    made, spread = plan(*key)
    order = spread.flatten().argsort(stable=True)[int((spread < 0).sum()) :]
    return order.view(-1, math.prod(made.patch)).t().flatten().to(device)  # each is used once a pixel


@lru_cache(maxsize=256)
def _window(device: torch.device, key: tuple[Any, ...], strides: tuple[int, ...]) -> Tensor:
    """The places of a window's numbers from its corner on, their rows and columns, (3, taps filled up)."""
    made = plan(*key)[0]
    ranges = (torch.arange(n) for n in (made.source[0], *made.window))
    c, y, x = (axis.flatten() for axis in torch.meshgrid(*ranges, indexing="ij"))
    rows = torch.stack([c * strides[0] + y * strides[1] + x * strides[2], y, x])
    return pad(rows, (0, -made.taps % FULL)).to(device, torch.int32)


def _key(x: Any, weight: Any, how: Any, backward: bool, most: int) -> tuple[Any, ...]:
    return tuple(x), tuple(weight), *map(tuple, how), backward, most


def _product(out: Tensor, source: Tensor, weight: Tensor, bias: Tensor | None, key: tuple[Any, ...]) -> Tensor:
    made, (taps, wide, warps, most) = plan(*key)[0], PRODUCT
    table = _window(source.device, key, source.stride()[2:])
    matrix = pad(weight.flatten(1), (0, 1)).index_select(1, _spread(source.device, key))
    count, rows = source.shape[1] * math.prod(made.number), _tile(made.rows, most)
    with torch.cuda.device_of(source):
        product_kernel[(triton.cdiv(count, wide), triton.cdiv(made.rows, rows), len(source))](
            out, source, matrix, bias, table, out.stride(), source.stride(), None if bias is None else bias.stride(),
            count, tuple(made), table.shape[1], rows, taps, wide, PRECISION, num_warps=warps,
        )  # fmt: skip
    return out


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    out = _forward_shape(x, weight, bias, *how)
    return _product(out, x, weight, bias, _key(x.shape[2:], weight.shape[1:], how, False, PRODUCT[-1]))


def _to_input(grad: Tensor, weight: Tensor, size: Sequence[int], *how: Any) -> Tensor:
    out = _to_input_shape(grad, weight, size)
    return _product(out, grad, weight, None, _key(out.shape[2:], weight.shape[1:], how, True, PRODUCT[-1]))


def _to_weight(grad: Tensor, x: Tensor, kernel: Sequence[int], *how: Any) -> Tensor:
    taps, wide, warps, most = TO_WEIGHT
    out = _to_weight_shape(grad, x, kernel)
    key = _key(x.shape[2:], out.shape[1:], how, False, most)
    made, table = plan(*key)[0], _window(x.device, key, x.stride()[2:])
    count, rows = x.shape[1] * math.prod(made.number), _tile(made.rows, most)
    taps, parts = min(taps, max(ROWS, triton.next_power_of_2(made.taps))), triton.cdiv(count, LENGTH)
    sums = x.new_empty(len(x), parts, made.rows * made.taps)
    with torch.cuda.device_of(x):
        to_weight_kernel[(parts, triton.cdiv(made.taps, taps) * triton.cdiv(made.rows, rows), len(x))](
            sums, grad, x, table, grad.stride(), x.stride(), count, parts,
            tuple(made), table.shape[1], LENGTH, rows, taps, wide, PRECISION, num_warps=warps,
        )  # fmt: skip
    pixels = sums.sum(1).index_select(1, _collect(x.device, key))
    return pixels.view(len(x), math.prod(made.patch), -1).sum(1).view(out.shape)


def _word(x: Tensor) -> tl.dtype:
    return tl.int32 if x.numel() + BLOCK < 2**31 else tl.int64  # divisions of the long ones are slow


def _pool(x: Tensor, kernel: Sequence[int]) -> tuple[Tensor, Tensor]:
    out, where = _pool_shapes(x, kernel)
    with torch.cuda.device_of(x):
        grid, x = (triton.cdiv(out.numel(), BLOCK),), x.contiguous()
        pool_kernel[grid](out, where, x, out.numel(), *x.shape[-2:], *kernel, BLOCK, _word(x))
    return out, where


def _unpool(grad: Tensor, where: Tensor, size: Sequence[int], kernel: Sequence[int]) -> Tensor:
    out = _unpool_shape(grad, where, size, kernel)
    with torch.cuda.device_of(grad):
        grid, grad, where = (triton.cdiv(out.numel(), BLOCK),), grad.contiguous(), where.contiguous()
        unpool_kernel[grid](out, grad, where, out.numel(), *size, *kernel, BLOCK, _word(out))
    return out


def _forward_shape(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    sizes = zip(x.shape[3:], weight.shape[3:], *how, strict=True)
    return x.new_empty(*x.shape[:2], weight.shape[1], *((n + 2 * p - k) // s + 1 for n, k, s, p in sizes))


def _to_input_shape(grad: Tensor, weight: Tensor, size: Sequence[int], *_: Any) -> Tensor:
    return grad.new_empty(*grad.shape[:2], weight.shape[2], *size)


def _to_weight_shape(grad: Tensor, x: Tensor, kernel: Sequence[int], *_: Any) -> Tensor:
    return x.new_empty(len(x), grad.shape[2], x.shape[2], *kernel)


def _pool_shapes(x: Tensor, kernel: Sequence[int]) -> tuple[Tensor, Tensor]:
    size = (*x.shape[:-2], x.shape[-2] // kernel[0], x.shape[-1] // kernel[1])
    return x.new_empty(size), x.new_empty(size, dtype=torch.int8)


def _unpool_shape(grad: Tensor, where: Tensor, size: Sequence[int], kernel: Sequence[int]) -> Tensor:
    return grad.new_empty(*grad.shape[:-2], *size)


def _make(name: str, schema: str, run: Any, fake: Any, pull: Any) -> Callable[..., Any]:
    """An operator on tensors with one network a row, to call under torch.func as well; ``pull`` is its gradient."""
    operator = _operator(name, schema, run, fake)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        # beside its value, an operator returns what its gradient needs
        kept = (*inputs, *output[1:]) if isinstance(output, tuple) else inputs
        ctx.save_for_backward(*(value for value in kept if isinstance(value, Tensor)))
        ctx.kept = [None if isinstance(value, Tensor) else (value,) for value in kept]

    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if value is None else value[0] for value in ctx.kept]
        return pull(grad, ctx.needs_input_grad, *kept)

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        n = info.batch_size
        pairs = zip(inputs, in_dims, strict=True)
        rows = (_front(v, d, n).flatten(0, 1) if isinstance(v, Tensor) else v for v, d in pairs)
        out = tree_map(lambda part: part.unflatten(0, (n, -1)), operator(*rows))
        return out, tree_map(lambda _: 0, out)

    register_autograd(f"pstn::{name}", backward, setup_context=setup, lib=_LIBRARY)
    register_vmap(f"pstn::{name}", rule, lib=_LIBRARY)
    methods: dict[str, Callable[..., Any]] = {
        "forward": lambda *inputs: operator(*inputs),
        "setup_context": setup,
        "backward": backward,
    }
    body = {"generate_vmap_rule": True, **{key: staticmethod(value) for key, value in methods.items()}}
    function = type(name, (torch.autograd.Function,), body)
    return lambda *inputs: function.apply(*inputs) if _transformed() else operator(*inputs)  # type: ignore[attr-defined]


def _pull_forward(grad: Tensor, needs: Sequence[bool], x: Tensor, weight: Tensor, bias: Any, *how: Any) -> Any:
    # linear in x and in weight: the three operators are one another's gradients, to every order
    to_x = to_input(grad, weight, x.shape[3:], *how) if needs[0] else None
    to_w = to_weight(grad, x, weight.shape[3:], *how) if needs[1] else None
    return to_x, to_w, grad.sum((1, 3, 4)) if needs[2] else None, None, None


def _pull_to_input(grad: Tensor, needs: Sequence[bool], slope: Tensor, weight: Tensor, size: Any, *how: Any) -> Any:
    to_slope = _convolve(grad, weight, None, *how) if needs[0] else None
    return to_slope, to_weight(slope, grad, weight.shape[3:], *how) if needs[1] else None, None, None, None


def _pull_to_weight(grad: Tensor, needs: Sequence[bool], slope: Tensor, x: Tensor, kernel: Any, *how: Any) -> Any:
    to_slope = _convolve(x, grad, None, *how) if needs[0] else None
    return to_slope, to_input(slope, grad, x.shape[3:], *how) if needs[1] else None, None, None, None


def _pull_pool(grad: Tensor, needs: Sequence[bool], x: Tensor, kernel: Any, where: Tensor) -> Any:
    return unpool(grad, where, x.shape[-2:], kernel), None


def _pull_unpool(*_: Any) -> NoReturn:
    raise RuntimeError("the fused pooling has first derivatives only; `with pstn.kernels.reference():` torch's has all")


_HOW = "SymInt[] stride, SymInt[] padding"
_convolve = _make(
    "convolve", f"(Tensor x, Tensor weight, Tensor? bias, {_HOW}) -> Tensor", _forward, _forward_shape, _pull_forward
)
to_input = _make(
    "convolve_to_input", f"(Tensor grad, Tensor weight, SymInt[] size, {_HOW}) -> Tensor",
    _to_input, _to_input_shape, _pull_to_input,
)  # fmt: skip
to_weight = _make(
    "convolve_to_weight", f"(Tensor grad, Tensor x, SymInt[] kernel, {_HOW}) -> Tensor",
    _to_weight, _to_weight_shape, _pull_to_weight,
)  # fmt: skip
_pooled = _make("pool", "(Tensor x, SymInt[] kernel) -> (Tensor, Tensor)", _pool, _pool_shapes, _pull_pool)
unpool = _make(
    "unpool", "(Tensor grad, Tensor where, SymInt[] size, SymInt[] kernel) -> Tensor",
    _unpool, _unpool_shape, _pull_unpool,
)  # fmt: skip


def convolve(
    x: Float[Tensor, "m b c h w"], weight: Float[Tensor, "m o c kh kw"], bias: Float[Tensor, "m o"] | None,
    stride: Sequence[int], padding: Sequence[int],
) -> Float[Tensor, "m b o oh ow"]:  # fmt: skip
    """What ``conv2d`` gives for each of M networks, float32, on a GPU; any strides, derivatives of every order."""
    return _convolve(x, weight, bias, tuple(stride), tuple(padding))


def pool(x: Float[Tensor, "*n h w"], kernel: Sequence[int]) -> Float[Tensor, "*n oh ow"]:
    """What ``max_pool2d`` gives for windows side by side, float32, on a GPU; first derivatives."""
    return _pooled(x, tuple(kernel))[0]
