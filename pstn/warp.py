"""The one way an array is transformed: output point p takes its value from the input at :math:`T_\\theta(p)`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pstn import kernels
from pstn.families.affine import MatrixFamily
from pstn.families.base import Family
from pstn.grid import Mode, Padding, check_array, covered, identity_grid, is_mark, marked, sample


def warp(
    x: Float[Tensor, "b c *space"],
    family: Family,
    theta: Float[Tensor, "*sb d"],
    *,
    size: Sequence[int] | None = None,
    fill: float | Float[Tensor, " c"] = 0.0,
    padding: Padding = "fill",
    mode: Mode = "linear",
    antialias: bool = False,
    window: Float[Tensor, "*#sb w"] | None = None,
) -> Float[Tensor, "*sb c *size"]:
    r"""Warp arrays: :math:`y(p) = x(T_\theta(p))` at every output pixel p.

    Convention: normalised coordinates, [-1, 1] at the outer edges of the border pixels, (x, y, z) order. Positions and
    interpolation are computed in float32 at least, also under autocast; the result has the dtype of ``x``. A
    :math:`\theta` that is not finite or enormous gives a finite result.

    Arguments:
        x: Series (B, C, L), images (B, C, H, W) or volumes (B, C, D, H, W).
        family: The family of transformations.
        theta: Its parameters, (B, d), or (S, B, d) for S warps of each array; the array is not copied S times.
        size: The output's spatial size; the input's by default.
        fill: The value outside the input, one number or one a channel: the background *after* normalisation.
        padding: What lies outside: ``"fill"``, the ``"border"`` continued, or the array ``"reflect"``-ed at its edges.
        mode: ``"linear"`` or ``"nearest"``.
        antialias: Average over the area a pixel covers where the warp shrinks the picture (``mode="linear"`` only).
        window: (scale, *shift) of the part of the input that the frame [-1, 1] stands for, broadcast against ``theta``:
            :math:`y(p) = x(scale\,T_\theta(p) + shift)`. The whole input by default.

    Returns:
        The warped arrays, (B, C, *size) or (S, B, C, *size).

    Example:
        >>> from pstn.families import Translation
        >>> x = torch.arange(4.0).view(1, 1, 4)
        >>> warp(x, Translation(1), torch.tensor([[0.5]]), fill=-1)  # half of half the array: one pixel
        tensor([[[ 1.,  2.,  3., -1.]]])
    """
    check_array(x)
    k = x.ndim - 2
    if family.ndim != k:
        raise ValueError(f"x has shape {tuple(x.shape)}, {k}-D; {family.label} acts on {family.ndim}-D arrays")
    if theta.ndim not in (2, 3) or theta.shape[-2] != x.shape[0]:
        raise ValueError(
            f"theta has shape {tuple(theta.shape)}; a batch of {x.shape[0]} needs ({x.shape[0]}, {family.dim}) "
            f"or (S, {x.shape[0]}, {family.dim})"
        )
    if antialias and mode != "linear":
        raise ValueError("antialias=True averages pixels; it needs mode='linear'")
    size = tuple(x.shape[2:] if size is None else size)
    if len(size) != k or min(size) < 1:
        raise ValueError(f"size is {size}; expected {k} positive numbers")
    if not antialias and kernels.usable(x, theta, fill):
        return kernels.warp(x, family, theta, size, fill, padding, mode, window)

    # Samples go behind the batch, so that all the looks at one array are one sampling call and no array is repeated.
    several = theta.ndim == 3
    if several:
        theta = theta.transpose(0, 1)
        window = None if window is None else _batch_first(window, theta)
    work = torch.promote_types(torch.promote_types(theta.dtype, x.dtype), torch.float32)
    points = _pixels_moved(family, theta.to(work), size)
    if window is not None:
        window = window.to(work)
        window = window.reshape(*window.shape[:-1], *[1] * k, window.shape[-1])
        points = window[..., :1] * points + window[..., 1:]

    options = {"fill": fill, "padding": padding, "mode": mode}
    result = _sample_prefiltered(x, points, options) if antialias else sample(x, points, **options)  # type: ignore[arg-type]
    return result.movedim(2, 0) if several else result


def _pixels_moved(family: Family, theta: Tensor, size: tuple[int, ...]) -> Tensor:
    """The pixel centres, moved: (*b, *size, k)."""
    k = len(size)
    if not isinstance(family, MatrixFamily) or type(family).move is not MatrixFamily.move:
        grid = identity_grid(size, dtype=theta.dtype, device=theta.device)
        return family(theta, grid.reshape(-1, k)).unflatten(-2, size)
    # A p + t is a sum of one vector an axis: one addition a pixel, and a gradient that is a sum along the other axes
    matrix = family.matrix(theta)
    batch = matrix.shape[:-2]
    moved = matrix[..., :k, k].reshape(*batch, *[1] * k, k)
    for j in range(k):
        n = size[k - 1 - j]
        centres = identity_grid((n,), dtype=theta.dtype, device=theta.device)
        along = centres * matrix[..., None, :k, j]
        moved = moved + along.reshape(*batch, *[1] * (k - 1 - j), n, *[1] * j, k)
    return moved


def _batch_first(window: Tensor, theta: Tensor) -> Tensor:
    """The window (*#sb, w) of S-major parameters, ready for parameters that were made batch-major (B, S, d)."""
    if window.ndim == 3:
        return window.transpose(0, 1)
    return window[:, None] if window.ndim == 2 else window.expand(*theta.shape[:-1], -1)


def _sample_prefiltered(x: Tensor, points: Tensor, options: dict) -> Tensor:
    """Sample from a pyramid of ever smoother copies of x, between the two levels whose pixels fit the step size.

    The step is how far apart, in input pixels, neighbouring output pixels look. At most one pixel: the array itself.
    """
    if options["padding"] == "fill" and is_mark(fill := options["fill"]):
        work = torch.promote_types(x.dtype, points.dtype)
        result = _sample_prefiltered(covered(x.to(work)), points, {**options, "fill": 0.0})
        return marked(result, fill).to(x.dtype)
    k = x.ndim - 2
    pixels = torch.tensor(x.shape[:1:-1], dtype=points.dtype, device=points.device) / 2
    step = torch.ones_like(points[..., 0])
    for axis in range(-1 - k, -1):
        if points.shape[axis] > 1:
            square = (points.diff(dim=axis) * pixels).square().sum(-1)
            apart = square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()  # whose slope at zero is infinite
            # the last row has no next neighbour: it takes the step before it
            last = apart.narrow(axis + 1, apart.shape[axis + 1] - 1, 1)
            step = torch.maximum(step, torch.cat([apart, last], dim=axis + 1))
    level = step.log2()

    top = max(1, math.ceil(math.log2(max(x.shape[2:]))))
    level = level.clamp(max=top)
    total: Tensor | None = None
    for n in range(top + 1):
        weight = (1 - (level - n).abs()).clamp(min=0)
        part = sample(x, points, **options) * weight[:, None].to(x.dtype)
        total = part if total is None else total + part
        x = _halved(x)
    assert total is not None
    return total


def _halved(x: Tensor) -> Tensor:
    """The array at half the resolution, each pixel the mean of those it covers."""
    size = [math.ceil(n / 2) for n in x.shape[2:]]
    pool = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[len(size)]
    return pool(x, size)  # type: ignore[arg-type]
