"""Fused warps: coordinates, interpolation and gradients in one kernel, where a GPU and Triton are at hand.

:func:`pstn.warp.warp` asks :func:`usable` and calls :func:`warp` by itself. Triton is imported when the first kernel
runs; the plain torch path is the reference the kernels are tested against.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.affine import MatrixFamily
from pstn.families.base import Family
from pstn.families.cpab import CPAB
from pstn.families.projective import Projective
from pstn.families.tps import TPS
from pstn.grid import Mode, Padding, background, check_choice, identity_grid, is_mark
from pstn.kernels import operators

__all__ = ["reference", "usable", "warp"]

_TRITON = importlib.util.find_spec("triton") is not None
_STORED = (torch.float32, torch.float16, torch.bfloat16)
#: The most parameters of a spline whose gradients a program sums, in registers: beyond, a matrix product is faster.
_REGISTERS = 32
#: Which devices' tensors go to the kernels. Triton's interpreter takes those of the CPU as well, and the tests say so.
_DEVICES = frozenset({"cuda"})


@contextmanager
def reference() -> Iterator[None]:
    """Use the plain torch path inside, on a GPU too: it has derivatives of every order.

    Example:
        >>> with reference():
        ...     usable(torch.zeros(1, 1, 2, 2), torch.zeros(1, 4), 0.0)
        False
    """
    global _DEVICES
    before, _DEVICES = _DEVICES, frozenset()
    try:
        yield
    finally:
        _DEVICES = before


def usable(x: Float[Tensor, "b c *space"], theta: Float[Tensor, "*sb d"], fill: float | Float[Tensor, " c"]) -> bool:
    """Whether the kernels can do a warp: a GPU, Triton, at most float32, a fill that needs no gradient and is no mark.

    Example:
        >>> usable(torch.zeros(1, 1, 2, 2), torch.zeros(1, 4), 0.0)  # not on the CPU
        False
    """
    return (
        _TRITON
        and x.device.type in _DEVICES
        and x.dtype in _STORED
        and theta.dtype in _STORED
        and not (isinstance(fill, Tensor) and fill.requires_grad)
        and not is_mark(fill)  # with a weight of next to nothing it would still be seen inside
        # within one channel, positions are 32-bit numbers
        and sum((n - 1) * abs(s) for n, s in zip(x.shape[2:], x.stride()[2:], strict=True)) < 2**31
    )


def warp(
    x: Float[Tensor, "b c *space"],
    family: Family,
    theta: Float[Tensor, "*sb d"],
    size: Sequence[int],
    fill: float | Float[Tensor, " c"],
    padding: Padding,
    mode: Mode,
    window: Float[Tensor, "*#sb w"] | None = None,
) -> Float[Tensor, "*sb c *size"]:
    """What :func:`pstn.warp.warp` returns, by a fused kernel; arguments as there, checked."""
    check_choice("padding", padding, ("fill", "border", "reflect"))
    check_choice("mode", mode, ("linear", "nearest"))
    several = theta.ndim == 3
    if not several:
        theta = theta[None]
    kind, where, table = _where(family, theta, size, window)
    outside: Tensor | None = None
    if padding == "fill" and not (isinstance(fill, (int, float)) and fill == 0):
        outside = background(fill, x, torch.float32)
    out = operators.warp(x, where, table, outside, kind, tuple(size), padding, mode)
    return out if several else out[0]


def _where(
    family: Family, theta: Tensor, size: Sequence[int], window: Tensor | None
) -> tuple[str, Tensor, Tensor | None]:
    """The coordinate function of a family, what it needs to know of each warp, and of all of them."""
    if window is not None:
        window = window.to(torch.float32).expand(*theta.shape[:-1], -1)
    if isinstance(family, Projective) and type(family).move is Projective.move:
        matrix = family.matrix(theta).flatten(-2)
        return "projective", matrix if window is None else torch.cat([matrix, window], dim=-1), None
    if isinstance(family, MatrixFamily) and type(family).move is MatrixFamily.move:
        matrix = family.matrix(theta)
        if window is not None:
            matrix = _framed(matrix, window)
        return "affine", matrix.flatten(-2), None
    if type(family) is TPS and window is None:
        # Linear in theta. Few functions: a kernel sums them, and their gradients, in registers. Many: one product,
        # whose columns are the pixels' displacements, one plane a coordinate.
        theta, table = family.bounded(theta), _cardinal(family, tuple(size), theta.device)
        if family.dim <= _REGISTERS:
            return "linear", theta, table.unflatten(-1, tuple(size))
        with torch.autocast(theta.device.type, enabled=False):
            # as one matrix: torch would multiply every warp's few rows on their own
            control = theta.unflatten(-1, (-1, family.ndim)).transpose(-1, -2).flatten(0, 2)
            moved = (control @ table).unflatten(0, (*theta.shape[:2], family.ndim))
            return "displaced", moved.unflatten(-1, tuple(size)), None
    # the gradient adds up in no fixed order
    if (
        type(family) is CPAB
        and family.ndim == 2
        and window is None
        and not torch.are_deterministic_algorithms_enabled()
    ):
        from pstn.kernels.lattice import lattice  # here, because it loads torch's compiler

        return "cpab", lattice(family, theta), None
    grid = identity_grid(size, dtype=torch.float32, device=theta.device)
    points = family(theta, grid.reshape(math.prod(size), -1))
    if window is not None:
        points = window[..., None, :1] * points + window[..., None, 1:]
    return "stored", points.unflatten(-2, tuple(size)).movedim(-1, 2), None


_CARDINAL: dict[tuple, Tensor] = {}


def _cardinal(family: TPS, size: tuple[int, ...], device: torch.device) -> Tensor:
    """The cardinal splines at all pixels, (control points, n), in float32: constants, so they are kept."""
    key = (family.points, family.ndim, size, device)
    if torch.compiler.is_compiling() or key not in _CARDINAL:
        with torch.inference_mode(False), torch.no_grad():
            grid = identity_grid(size, dtype=torch.float64, device=device)
            found = family.cardinal(grid.reshape(math.prod(size), -1)).T.to(torch.float32).contiguous()
        if torch.compiler.is_compiling() or type(found) is not Tensor:  # not a value to keep
            return found
        if len(_CARDINAL) >= 16:
            _CARDINAL.clear()
        _CARDINAL[key] = found
    return _CARDINAL[key]


def _framed(matrix: Tensor, window: Tensor) -> Tensor:
    """The matrix followed by a window: scale · T(p) + shift."""
    scaled = window[..., :1, None] * matrix[..., :-1, :]
    shifted = torch.cat([scaled[..., :-1], scaled[..., -1:] + window[..., 1:, None]], dim=-1)
    return torch.cat([shifted, matrix[..., -1:, :]], dim=-2)
