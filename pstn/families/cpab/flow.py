"""The flow of a batch of fields as an operator: with gradients, under ``vmap``, and opaque to ``torch.compile``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from pstn.families.cpab.interval import Line, travel, travel_back
from pstn.families.cpab.tessellation import Tessellation, tessellation
from pstn.families.cpab.walk import Field, Step, retrace, walk


@torch.library.custom_op("pstn::cpab_flow", mutates_args=())
def flow(nodal: Tensor, points: Tensor, boxes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Where points are after unit time, and the logarithm of the determinant of the map's derivative there.

    Arguments:
        nodal: Velocities at the nodes of ``tessellation(boxes)``, (b, m, k), float64.
        points: Points, (b, n, k) or (1, n, k), float64.
        boxes: The number of boxes along each axis.

    Returns:
        The moved points, (b, n, k), and the log-determinants, (b, n).
    """
    if len(boxes) == 1:
        line = Line.of(nodal[..., 0])
        trip = travel(line, points[..., 0].expand(len(nodal), -1))
        return trip.end[..., None], trip.growth
    mesh = tessellation(tuple(boxes)).on(nodal.device)
    field = Field.of(nodal, mesh)
    rows, b, _ = _start(mesh, points, len(nodal))
    rows, b, swell = walk(field, rows, b)
    end = (mesh.corners[rows % len(mesh.simplices)] * b.T[..., None]).sum(1)
    return end.unflatten(0, (len(nodal), -1)), swell.unflatten(0, (len(nodal), -1))


@torch.library.custom_op("pstn::cpab_adjoint", mutates_args=())
def adjoint(
    nodal: Tensor, points: Tensor, boxes: Sequence[int], pull: Tensor, swell: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients to ``nodal`` and ``points`` of :func:`flow`, given those to its results.

    It walks the way again and remembers it this time: no memory is held between the two.
    """
    if len(boxes) == 1:
        line = Line.of(nodal[..., 0])
        trip = travel(line, points[..., 0].expand(len(nodal), -1))
        to_nodal, to_points = travel_back(line, trip, pull[..., 0], swell)
        return to_nodal[..., None], to_points[..., None].sum_to_size(points.shape)
    mesh = tessellation(tuple(boxes)).on(nodal.device)
    field = Field.of(nodal, mesh)
    rows, b, simplices = _start(mesh, points, len(nodal))
    tape: list[Step] = []
    ends, _, _ = walk(field, rows, b, tape)
    pull = (mesh.corners[ends % len(mesh.simplices)] * pull.flatten(0, 1)[:, None]).sum(-1).T
    rates, invariants, pull = retrace(field, tape, pull, swell.flatten())
    to_points = (mesh.gradients[simplices] * pull.T[..., None]).sum(1).unflatten(0, (len(nodal), -1))
    return field.pull_back(rates, invariants, len(nodal)), to_points.sum_to_size(points.shape)


def _start(mesh: Tessellation, points: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the field, coordinates and simplices of all points; points that are shared are located once."""
    simplices, b = mesh.locate(points.flatten(0, 1))
    if len(points) != batch:
        simplices, b = simplices.repeat(batch), b.repeat(1, batch)
    first = torch.arange(batch, device=points.device).repeat_interleave(points.shape[1]) * len(mesh.simplices)
    return first + simplices, b, simplices


@flow.register_fake
def _(nodal: Tensor, points: Tensor, boxes: Sequence[int]) -> tuple[Tensor, Tensor]:
    shape = (nodal.shape[0], points.shape[1])
    return points.new_empty(*shape, points.shape[2]), points.new_empty(shape)


@adjoint.register_fake
def _(nodal: Tensor, points: Tensor, boxes: Sequence[int], pull: Tensor, swell: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(nodal), torch.empty_like(points)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    nodal, points, ctx.boxes = inputs[:3]
    ctx.save_for_backward(nodal, points)


def _backward(ctx: Any, pull: Tensor, swell: Tensor) -> tuple[Tensor, Tensor, None]:
    return *adjoint(*ctx.saved_tensors, ctx.boxes, pull, swell), None


def _no_backward(ctx: Any, *pulls: Tensor) -> NoReturn:
    raise RuntimeError(
        "CPAB has first derivatives only: its flow is piecewise smooth and the second derivative is not implemented. Use "
        "finite differences of the gradient, or leave out create_graph=True"
    )


flow.register_autograd(_backward, setup_context=_save)
adjoint.register_autograd(_no_backward, setup_context=_save)


@flow.register_vmap
def _(info: Any, dims: tuple[Any, ...], nodal: Tensor, points: Tensor, boxes: Sequence[int]) -> tuple[Any, Any]:
    v = info.batch_size
    nodal, points = _front(nodal, dims[0], v), _front(points, dims[1], v)
    batch = nodal.shape[1]
    if dims[1] is None and points.shape[1] == 1:
        points = points[0]  # shared by all
    else:
        points = points.expand(-1, batch, -1, -1).flatten(0, 1)
    end, swell = flow(nodal.flatten(0, 1), points, boxes)
    return (end.unflatten(0, (v, batch)), swell.unflatten(0, (v, batch))), (0, 0)


@adjoint.register_vmap
def _(
    info: Any,
    dims: tuple[Any, ...],
    nodal: Tensor,
    points: Tensor,
    boxes: Sequence[int],
    pull: Tensor,
    swell: Tensor,
) -> tuple[Any, Any]:
    v = info.batch_size
    at = (dims[0], dims[1], dims[3], dims[4])
    nodal, points, pull, swell = (_front(t, d, v) for t, d in zip((nodal, points, pull, swell), at, strict=True))
    batch, shared = nodal.shape[1], points.shape[1] == 1
    points = points.expand(-1, batch, -1, -1)
    flat = (t.flatten(0, 1) for t in (nodal, points, pull, swell))
    nodal, points, pull, swell = flat
    to_nodal, to_points = (t.unflatten(0, (v, batch)) for t in adjoint(nodal, points, boxes, pull, swell))
    return (to_nodal, to_points.sum(1, keepdim=True) if shared else to_points), (0, 0)


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
