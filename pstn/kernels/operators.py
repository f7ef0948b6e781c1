"""The fused warp as torch operators: shapes, gradients, vmap, torch.compile. Triton is met when one of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake, register_vmap
from torch.nn import Parameter

_LIBRARY = Library("pstn", "FRAGMENT")


def _operator(name: str, schema: str, run: Any, fake: Any) -> Any:
    """Define an operator: what it computes, and the shapes it returns where nothing is computed."""
    _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, run, device)
    register_fake(f"pstn::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.pstn, name).default


def _forward(*inputs: Any) -> Tensor:
    from pstn.kernels import launch

    x, where, table, fill, kind, size, padding, mode = inputs
    return launch.forward(launch.Problem(x, where, table, fill, kind, padding, mode), size)


def _backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    from pstn.kernels import launch

    *problem, to_image, to_where = inputs
    return launch.backward(grad, launch.Problem(*problem), to_image, to_where)


def _forward_shape(x: Tensor, where: Tensor, *options: Any) -> Tensor:
    _table, _fill, _kind, size, *_ = options
    return x.new_empty(*where.shape[:2], x.shape[1], *size)


def _backward_shapes(grad: Tensor, x: Tensor, where: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    *_, to_image, to_where = options
    return x.new_empty(x.shape if to_image else (0,)), where.new_empty(where.shape if to_where else (0,))


_warp = _operator(
    "warp",
    "(Tensor x, Tensor where, Tensor? table, Tensor? fill, str kind, SymInt[] size, str padding, str mode) -> Tensor",
    _forward,
    _forward_shape,
)
_warp_backward = _operator(
    "warp_backward",
    "(Tensor grad, Tensor x, Tensor where, Tensor? table, Tensor? fill, str kind, str padding, str mode, "
    "bool to_image, bool to_where) -> (Tensor, Tensor)",
    _backward,
    _backward_shapes,
)


# Gradients. torch.func's transforms want an autograd.Function with its own setup_context, operators register theirs
# with two functions: the same two serve both.


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None = None) -> None:
    x, where, table, fill, kind, _size, padding, mode = inputs
    ctx.save_for_backward(x, where, table, fill)
    ctx.options = (kind, padding, mode)


def _pull(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, where, table, fill = ctx.saved_tensors
    to_image, to_where = ctx.needs_input_grad[:2]
    to_image, to_where = warp_backward(grad, x, where, table, fill, *ctx.options, to_image, to_where)
    empty = [not need for need in ctx.needs_input_grad[:2]]
    return (None if empty[0] else to_image, None if empty[1] else to_where, *[None] * 6)


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    pass


def _pull_backward(ctx: Any, *grads: Tensor) -> NoReturn:
    raise RuntimeError(
        "the fused warp has first derivatives only, and this asks for a derivative of its gradient; warp inside "
        "`with pstn.kernels.reference():`, or in float64, to use the plain torch path, which has them"
    )


register_autograd("pstn::warp", _pull, setup_context=_setup, lib=_LIBRARY)
register_autograd("pstn::warp_backward", _pull_backward, setup_context=_setup_backward, lib=_LIBRARY)


class _Warp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return _warp(*inputs)

    setup_context = staticmethod(_setup)
    backward = staticmethod(_pull)


class _Eager(torch.autograd.Function):
    """The operator without torch's dispatcher, which takes several times as long as a small warp."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _setup(ctx, inputs)
        return _forward(*inputs)

    backward = staticmethod(_pull)


class _WarpBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return _warp_backward(*inputs)

    setup_context = staticmethod(_setup_backward)
    backward = staticmethod(_pull_backward)


def warp(
    x: Tensor,
    where: Tensor,
    table: Tensor | None,
    fill: Tensor | None,
    kind: str,
    size: Sequence[int],
    padding: str,
    mode: str,
) -> Tensor:
    """Warp arrays (B, C, *space) at places ``where`` (S, B, ...): (S, B, C, *size).

    Arguments:
        x: The arrays, with any strides.
        where: What the coordinate function needs, float32: the homogeneous matrices (S, B, (k + 1)²), row by row
            (projective ones perhaps followed by a window), the parameters (S, B, m k) of m functions, the
            velocities of :func:`pstn.kernels.lattice.lattice`, or the places themselves or displacements,
            (S, B, k, *size).
        table: What all warps share, float32: the m functions at all pixels, (m, *size). None otherwise.
        fill: The value outside a channel, (C,), or (B, C) for one an array, or None for zero.
        kind: The coordinate function: ``"affine"``, ``"projective"``, ``"linear"``, ``"cpab"``, ``"displaced"`` or
            ``"stored"``.
        size: The output's spatial size.
        padding: ``"fill"``, ``"border"`` or ``"reflect"``.
        mode: ``"linear"`` or ``"nearest"``.
    """
    inputs = (x, where, table, fill, kind, size, padding, mode)
    if _transformed():
        return _Warp.apply(*inputs)
    if not _unwatched(x, where, table, fill):
        return _warp(*inputs)
    if torch.is_grad_enabled() and (x.requires_grad or where.requires_grad):
        return _Eager.apply(*inputs)
    return _forward(*inputs)


def warp_backward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`warp` to x and ``where``."""
    if _transformed():
        return _WarpBackward.apply(*inputs)
    unwatched = not torch.is_grad_enabled() and _unwatched(*inputs[:5])
    return _backward(*inputs) if unwatched else _warp_backward(*inputs)


def _transformed() -> bool:
    """Whether torch.func is at work."""
    return torch._C._are_functorch_transforms_active()


def _unwatched(*tensors: Tensor | None) -> bool:
    """Whether these are tensors like any other, and nothing wants to see the operators that work on them."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    return all(t is None or type(t) is Tensor or type(t) is Parameter for t in tensors)


# vmap: samples of the same arrays become more samples; other arrays, or other values outside, become a larger batch.


def _front(value: Tensor, dim: int | None, size: int) -> Tensor:
    return value.movedim(dim, 0) if dim is not None else value.expand(size, *value.shape)


def _fills(fill: Tensor | None, dim: int | None, size: int, batch: int) -> Tensor | None:
    """The values outside, one row for each of ``size`` times ``batch`` arrays, or one for all of them."""
    if fill is None or (dim is None and fill.ndim == 1):
        return fill
    fill = _front(fill, dim, size)
    fill = fill[:, None] if fill.ndim == 2 else fill
    return fill.expand(size, batch, -1).flatten(0, 1)


def _warp_vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
    x, where, table, fill, *rest = inputs
    n = info.batch_size
    where = _front(where, in_dims[1], n)
    if in_dims[0] is None and in_dims[3] is None:
        out = _warp(x, where.flatten(0, 1), table, fill, *rest)
        return out.unflatten(0, (n, -1)), 0
    x = _front(x, in_dims[0], n)
    fill = _fills(fill, in_dims[3], n, x.shape[1])
    out = _warp(x.flatten(0, 1), where.transpose(0, 1).flatten(1, 2), table, fill, *rest)
    return out.unflatten(1, (n, -1)), 1


def _warp_backward_vmap(
    info: Any, in_dims: tuple[int | None, ...], *inputs: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    grad, x, where, table, fill, *rest, to_image, to_where = inputs
    n = info.batch_size
    grad, where = _front(grad, in_dims[0], n), _front(where, in_dims[2], n)
    if in_dims[1] is None and in_dims[4] is None and not to_image:
        image, places = _warp_backward(grad.flatten(0, 1), x, where.flatten(0, 1), table, fill, *rest, False, to_where)
        return (image.expand(n, 0), places.unflatten(0, (n, -1)) if to_where else places.expand(n, 0)), (0, 0)
    x = _front(x, in_dims[1], n)
    fill = _fills(fill, in_dims[4], n, x.shape[1])
    grad, where = grad.transpose(0, 1).flatten(1, 2), where.transpose(0, 1).flatten(1, 2)
    image, places = _warp_backward(grad, x.flatten(0, 1), where, table, fill, *rest, to_image, to_where)
    image = image.unflatten(0, (n, -1)) if to_image else image.expand(n, 0)
    places = places.unflatten(1, (n, -1)).movedim(1, 0) if to_where else places.expand(n, 0)
    return (image, places), (0, 0)


register_vmap("pstn::warp", _warp_vmap, lib=_LIBRARY)
register_vmap("pstn::warp_backward", _warp_backward_vmap, lib=_LIBRARY)
