"""The flow of a batch of fields: with gradients, under ``vmap``, and as one operator for ``torch.compile``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from pstn.families.cpab import compiled, walk
from pstn.families.cpab.interval import Line, travel, travel_back
from pstn.families.cpab.tessellation import tessellation
from pstn.families.cpab.walk import Field

#: Whether to use Numba on the CPU; the results are the same.
use_numba = compiled.available()
#: Whether an exported flow is plain operations; see :func:`plain`.
_plain = False


def flow(nodal: Tensor, points: Tensor, boxes: Sequence[int], volume: bool = True) -> tuple[Tensor, Tensor | None]:
    """Where points are after unit time, and the logarithm of the determinant of the map's derivative there.

    Arguments:
        nodal: Velocities at the nodes of ``tessellation(boxes)``, (b, m, k), float64.
        points: Points, (b, n, k) or (1, n, k), float64.
        boxes: The number of boxes along each axis.
        volume: Whether log-determinants are wanted; without, they may be missing.

    Returns:
        The moved points, (b, n, k), and the log-determinants, (b, n), with gradients to ``nodal`` and ``points``.
    """
    if torch.compiler.is_compiling():
        return _drawn(nodal, points, tuple(boxes)) if _plain else _integrate(nodal, points, boxes)
    if _recorded():
        return _integrate(nodal, points, boxes)
    return _Flow.apply(nodal, points, tuple(boxes), volume)[:2]


def _recorded() -> bool:
    """Whether the operations are being written down (``make_fx``) or have no numbers (``FakeTensorMode``), with all of
    torch.func's transforms behind us."""
    dispatching = torch.utils._python_dispatch._get_current_dispatch_mode()
    modes = torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode, torch._subclasses.FakeTensorMode
    return isinstance(dispatching, modes) and not torch._C._are_functorch_transforms_active()


@contextmanager
def plain() -> Iterator[None]:
    """Export the flow as plain operations inside, for runtimes that do not have this library's operator."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def _drawn(nodal: Tensor, points: Tensor, boxes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The numbers of :func:`flow` by plain operations: in 1-D no loop, else one."""
    if len(boxes) == 1:
        trip = travel(Line.of(nodal[..., 0]), points[..., 0])
        return trip.end[..., None], trip.growth()
    from pstn.families.cpab.plain import carry  # loads torch's compiler

    mesh = tessellation(boxes).on(nodal.device)
    simplices, b = mesh.locate(points.flatten(0, 1))
    end, growth = carry(Field(nodal, mesh), simplices.view(points.shape[:2]), b.unflatten(1, points.shape[:2]))
    shape = (nodal.shape[0], points.shape[1])
    return end.reshape(*shape, len(boxes)), growth.reshape(shape)


def integrate(
    nodal: Tensor, points: Tensor, boxes: tuple[int, ...], volume: bool, record: bool
) -> tuple[Tensor, Tensor | None, Any]:
    """The numbers of :func:`flow`, and if asked for a tape that makes :func:`adjoint` faster."""
    if len(boxes) == 1:
        line = Line.of(nodal[..., 0])
        trip = travel(line, points[..., 0])
        return trip.end[..., None], trip.growth() if volume else None, (line, trip) if record else None
    engine: Any = compiled if use_numba and nodal.device.type == "cpu" else walk
    mesh = tessellation(boxes).on(nodal.device)
    field = Field(nodal, mesh)
    simplices, b = mesh.locate(points.flatten(0, 1))
    end, growth, steps = engine.carry(field, simplices.view(points.shape[:2]), b.unflatten(1, points.shape[:2]), record)
    shape = (len(nodal), points.shape[1])
    return end.reshape(*shape, len(boxes)), growth.reshape(shape), (field, engine, steps) if record else None


def adjoint(
    nodal: Tensor, points: Tensor, boxes: tuple[int, ...], tape: Any, pull: Tensor, swell: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients to ``nodal`` and ``points`` of :func:`flow`, given those to its results."""
    tape = tape or integrate(nodal, points, boxes, False, record=True)[2]
    if len(boxes) == 1:
        line, trip = tape
        to_nodal, to_points = travel_back(line, trip, pull[..., 0], swell)
        return to_nodal[..., None], to_points[..., None].sum_to_size(points.shape)
    field, engine, steps = tape
    swell = None if swell is None else swell.flatten()
    to_nodal, to_points = engine.retrace(field, steps, pull.flatten(0, 1), swell)
    return to_nodal, to_points.reshape(len(nodal), *points.shape[1:]).sum_to_size(points.shape)


class _Flow(torch.autograd.Function):
    """:func:`integrate` with :func:`adjoint` as its derivative. The third result is the tape, not a tensor."""

    @staticmethod
    def forward(nodal: Tensor, points: Tensor, boxes: tuple[int, ...], volume: bool) -> tuple[Tensor, Any, Any]:
        return integrate(nodal, points, boxes, volume, record=nodal.requires_grad or points.requires_grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        nodal, points, ctx.boxes, _ = inputs
        ctx.tape = output[2]
        ctx.save_for_backward(nodal, points)
        ctx.set_materialize_grads(False)  # most have no use for log-determinants

    @staticmethod
    def backward(ctx: Any, pull: Tensor | None, swell: Tensor | None, _: None) -> tuple[Any, Any, None, None]:
        nodal, points = ctx.saved_tensors
        if pull is None and swell is None:
            return None, None, None, None
        if pull is None:
            pull = points.new_zeros(len(nodal), *points.shape[1:])
        return *_Adjoint.apply(nodal, points, ctx.boxes, ctx.tape, pull, swell), None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, nodal: Tensor, points: Tensor, boxes: tuple[int, ...], volume: bool
    ) -> tuple[Any, Any]:
        v = info.batch_size
        nodal, points = _front(nodal, dims[0], v), _front(points, dims[1], v)
        batch = nodal.shape[1]
        shared = dims[1] is None and points.shape[1] == 1
        points = points[0] if shared else points.expand(-1, batch, -1, -1).flatten(0, 1)
        end, swell = flow(nodal.flatten(0, 1), points, boxes, volume)
        end, swell = end.unflatten(0, (v, batch)), None if swell is None else swell.unflatten(0, (v, batch))
        return (end, swell, None), (0, None if swell is None else 0, None)


class _Adjoint(torch.autograd.Function):
    """:func:`adjoint`, which has no derivative."""

    @staticmethod
    def forward(
        nodal: Tensor, points: Tensor, boxes: tuple[int, ...], tape: Any, pull: Tensor, swell: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return adjoint(nodal, points, boxes, tape, pull, swell)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> NoReturn:
        raise RuntimeError(
            "CPAB has first derivatives only: the second derivative of its flow is not implemented. Leave out "
            "create_graph=True, or take finite differences of the gradient"
        )

    @staticmethod
    def vmap(
        info: Any,
        dims: Any,
        nodal: Tensor,
        points: Tensor,
        boxes: tuple[int, ...],
        tape: Any,
        pull: Tensor,
        swell: Tensor | None,
    ) -> tuple[Any, Any]:
        # A tape would be that of a walk which was not mapped over.
        v = info.batch_size
        nodal, points, pull = (_front(t, d, v) for t, d in ((nodal, dims[0]), (points, dims[1]), (pull, dims[4])))
        batch, shared = nodal.shape[1], points.shape[1] == 1
        points = points.expand(-1, batch, -1, -1)
        swell = None if swell is None else _front(swell, dims[5], v).flatten(0, 1)
        found = _Adjoint.apply(*(t.flatten(0, 1) for t in (nodal, points)), boxes, None, pull.flatten(0, 1), swell)
        to_nodal, to_points = (t.unflatten(0, (v, batch)) for t in found)
        return (to_nodal, to_points.sum(1, keepdim=True) if shared else to_points), (0, 0)


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


# A compiler cannot follow loops that depend on numbers: it sees two operators.


@torch.library.custom_op(
    "pstn::cpab_flow", mutates_args=(), schema="(Tensor nodal, Tensor points, int[] boxes) -> (Tensor, Tensor)"
)
def _integrate(nodal: Tensor, points: Tensor, boxes: Sequence[int]) -> tuple[Tensor, Tensor]:
    end, growth, _ = integrate(nodal, points, tuple(boxes), True, record=False)
    assert growth is not None
    return end.clone(), growth.clone()


@_integrate.register_fake
def _(nodal: Tensor, points: Tensor, boxes: Sequence[int]) -> tuple[Tensor, Tensor]:
    shape = (nodal.shape[0], points.shape[1])
    return points.new_empty(*shape, points.shape[2]), points.new_empty(shape)


@torch.library.custom_op(
    "pstn::cpab_adjoint",
    mutates_args=(),
    schema="(Tensor nodal, Tensor points, int[] boxes, Tensor pull, Tensor swell) -> (Tensor, Tensor)",
)
def _pull_back(
    nodal: Tensor, points: Tensor, boxes: Sequence[int], pull: Tensor, swell: Tensor
) -> tuple[Tensor, Tensor]:
    to_nodal, to_points = adjoint(nodal, points, tuple(boxes), None, pull, swell)
    return to_nodal.clone(), to_points.clone()


@_pull_back.register_fake
def _(nodal: Tensor, points: Tensor, boxes: Sequence[int], pull: Tensor, swell: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(nodal), torch.empty_like(points)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    nodal, points, ctx.boxes = inputs
    ctx.save_for_backward(nodal, points)


def _backward(ctx: Any, pull: Tensor, swell: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_pull_back(*ctx.saved_tensors, ctx.boxes, pull, swell), None


_integrate.register_autograd(_backward, setup_context=_save)
