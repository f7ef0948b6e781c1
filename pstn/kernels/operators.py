"""The fused warp as torch operators: shapes, gradients, vmap, torch.compile. Triton is met when one of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake, register_vmap

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

    return launch.forward(*inputs)


def _backward(*inputs: Any) -> tuple[Tensor, Tensor]:
    from pstn.kernels import launch

    return launch.backward(*inputs)


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


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
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
        fill: The value outside a channel, (C,), or None for zero.
        kind: The coordinate function: ``"affine"``, ``"projective"``, ``"linear"``, ``"cpab"``, ``"displaced"`` or
            ``"stored"``.
        size: The output's spatial size.
        padding: ``"fill"``, ``"border"`` or ``"reflect"``.
        mode: ``"linear"`` or ``"nearest"``.
    """
    operator = _Warp.apply if _transformed() else _warp
    return operator(x, where, table, fill, kind, size, padding, mode)


def warp_backward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`warp` to x and ``where``."""
    return _WarpBackward.apply(*inputs) if _transformed() else _warp_backward(*inputs)


def _transformed() -> bool:
    """Whether torch.func is at work."""
    return torch._C._are_functorch_transforms_active()


# vmap: samples of the same arrays become more samples, other arrays become a larger batch.


def _front(value: Tensor, dim: int | None, size: int) -> Tensor:
    return value.movedim(dim, 0) if dim is not None else value.expand(size, *value.shape)


def _warp_vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
    x, where, *rest = inputs
    _shared(in_dims[2:4])
    n = info.batch_size
    where = _front(where, in_dims[1], n)
    if in_dims[0] is None:
        out = _warp(x, where.flatten(0, 1), *rest)
        return out.unflatten(0, (n, -1)), 0
    x = _front(x, in_dims[0], n)
    out = _warp(x.flatten(0, 1), where.transpose(0, 1).flatten(1, 2), *rest)
    return out.unflatten(1, (n, -1)), 1


def _warp_backward_vmap(
    info: Any, in_dims: tuple[int | None, ...], *inputs: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    grad, x, where, *rest, to_image, to_where = inputs
    _shared(in_dims[3:5])
    n = info.batch_size
    grad, where = _front(grad, in_dims[0], n), _front(where, in_dims[2], n)
    if in_dims[1] is None and not to_image:
        image, places = _warp_backward(grad.flatten(0, 1), x, where.flatten(0, 1), *rest, False, to_where)
        return (image.expand(n, 0), places.unflatten(0, (n, -1)) if to_where else places.expand(n, 0)), (0, 0)
    x = _front(x, in_dims[1], n)
    grad, where = grad.transpose(0, 1).flatten(1, 2), where.transpose(0, 1).flatten(1, 2)
    image, places = _warp_backward(grad, x.flatten(0, 1), where, *rest, to_image, to_where)
    image = image.unflatten(0, (n, -1)) if to_image else image.expand(n, 0)
    places = places.unflatten(1, (n, -1)).movedim(1, 0) if to_where else places.expand(n, 0)
    return (image, places), (0, 0)


def _shared(dims: tuple[int | None, ...]) -> None:
    if any(dim is not None for dim in dims):
        raise NotImplementedError("vmap over fill is not supported by the fused warp: pass one fill for all")


register_vmap("pstn::warp", _warp_vmap, lib=_LIBRARY)
register_vmap("pstn::warp_backward", _warp_backward_vmap, lib=_LIBRARY)
