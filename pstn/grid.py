"""The one coordinate convention, identity grids, and sampling an array at given points.

Convention: positions are normalised so that [-1, 1] spans the *outer edges* of the border pixels; pixel ``i`` of ``n``
has its centre at ``(2i + 1)/n - 1``. The last axis of a point holds (x), (x, y) or (x, y, z), the reverse of the
array's own axis order (length), (height, width), (depth, height, width). Nothing in this library has an
``align_corners`` argument: it is this, everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeGuard, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Padding = Literal["fill", "border", "reflect"]
Mode = Literal["linear", "nearest"]

#: positions are clamped here before they become integers: far outside is far outside
FAR = 1e4
#: a fill beyond this is no background, but a mark for what lies outside
MARK = 1e3

_TORCH_PADDING = {"fill": "zeros", "border": "border", "reflect": "reflection"}
_TORCH_MODE = {"linear": "bilinear", "nearest": "nearest"}


def identity_grid(
    size: Sequence[int], *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Float[Tensor, "*size k"]:
    r"""Positions of the pixel centres of an array of the given size: :math:`(2i + 1)/n - 1` along each axis.

    Arguments:
        size: The array's spatial size, (L,), (H, W) or (D, H, W).
        dtype: The dtype of the positions.
        device: Where they live.

    Example:
        >>> identity_grid((2, 3))[0]
        tensor([[-0.6667, -0.5000],
                [ 0.0000, -0.5000],
                [ 0.6667, -0.5000]])
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    work = torch.promote_types(dtype, torch.float32)  # 16 bits cannot count that far
    axes = [((2 * torch.arange(n, dtype=work, device=device) + 1) / n - 1).to(dtype) for n in size]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], dim=-1)


def to_pixels(points: Float[Tensor, "*b k"], size: Sequence[int]) -> Float[Tensor, "*b k"]:
    """Normalised positions as pixel indices: the centre of the first pixel is 0, of the last n - 1.

    Example:
        >>> to_pixels(torch.tensor([-1.0, 0.0]), (5, 10))  # x at the left edge of 10 columns, y in the middle of 5 rows
        tensor([-0.5000,  2.0000])
    """
    n = torch.tensor(list(size)[::-1], dtype=points.dtype, device=points.device)
    return ((points + 1) * n - 1) / 2


def from_pixels(pixels: Float[Tensor, "*b k"], size: Sequence[int]) -> Float[Tensor, "*b k"]:
    """Pixel indices as normalised positions: the inverse of :func:`to_pixels`.

    Example:
        >>> from_pixels(torch.tensor([-0.5, 2.0]), (5, 10))
        tensor([-1.,  0.])
    """
    n = torch.tensor(list(size)[::-1], dtype=pixels.dtype, device=pixels.device)
    return (2 * pixels + 1) / n - 1


def sample(
    x: Float[Tensor, "b c *space"],
    points: Float[Tensor, "b ... k"],
    *,
    fill: float | Float[Tensor, " c"] = 0.0,
    padding: Padding = "fill",
    mode: Mode = "linear",
) -> Float[Tensor, "b c ..."]:
    r"""Values of :math:`x` at the given points, by (bi-, tri-) linear or nearest-neighbour interpolation.

    Convention: as everywhere (see the module). A point outside [-1, 1] takes ``fill``, the nearest border value, or the
    value mirrored at the edge. Interpolation runs in float32 at least; the result has the dtype of ``x``.

    Arguments:
        x: Series (B, C, L), images (B, C, H, W) or volumes (B, C, D, H, W).
        points: Where to look, (B, *out, k) with any number of output axes, k = 1, 2 or 3.
        fill: The value outside, one number or one a channel.
        padding: ``"fill"``, ``"border"`` or ``"reflect"``.
        mode: ``"linear"`` or ``"nearest"``.

    Returns:
        The values, (B, C, *out).

    Example:
        >>> x = torch.arange(4.0).view(1, 1, 4)
        >>> sample(x, torch.tensor([-0.75, -0.5, 5.0]).view(1, 3, 1), fill=9.0)
        tensor([[[0.0000, 0.5000, 9.0000]]])
    """
    check_array(x)
    check_choice("padding", padding, get_args(Padding))
    check_choice("mode", mode, get_args(Mode))
    k = x.ndim - 2
    if points.shape[-1] != k or points.shape[0] != x.shape[0]:
        raise ValueError(
            f"points have shape {tuple(points.shape)}; {x.shape[0]} arrays in {k}-D need ({x.shape[0]}, ..., {k})"
        )
    out = points.shape[1:-1]
    work = torch.promote_types(torch.promote_types(x.dtype, points.dtype), torch.float32)
    values, where = x.to(work), points.to(work).clamp(-FAR, FAR)

    outside: Tensor | None = None
    if padding == "fill" and is_mark(fill):
        return marked(sample(covered(values), where, mode=mode), fill).to(x.dtype)
    if padding == "fill" and not (isinstance(fill, (int, float)) and fill == 0):
        outside = background(fill, x, work).view(1, -1, *[1] * k)
        values = values - outside

    # grid_sample knows 2-D and 3-D arrays; a series is an image of height one, looked at along its middle. Any number
    # of output axes fits in the last one.
    if k == 1:
        values = values.unsqueeze(-2)
        where = torch.cat([where, torch.zeros_like(where)], dim=-1)
    where = where.reshape(x.shape[0], *[1] * (max(k, 2) - 1), math.prod(out), max(k, 2))
    result = F.grid_sample(
        values, where, mode=_TORCH_MODE[mode], padding_mode=_TORCH_PADDING[padding], align_corners=False
    )
    result = result.reshape(x.shape[0], values.shape[1], *out)
    if outside is not None:
        result = result + outside.reshape(1, -1, *[1] * len(out))
    return result.to(x.dtype)


def resized(x: Float[Tensor, "n c *space"], size: Sequence[int]) -> Float[Tensor, "n c *size"]:
    """Inputs at another size: means over what each new point covers where they shrink, else linear interpolation.

    Example:
        >>> resized(torch.tensor([[[0.0, 2.0, 4.0, 6.0]]]), (2,))
        tensor([[[1., 5.]]])
    """
    if tuple(x.shape[2:]) == tuple(size):
        return x
    if all(after <= before for before, after in zip(x.shape[2:], size, strict=True)):
        return F.interpolate(x, tuple(size), mode="area")
    grid = identity_grid(size, dtype=x.dtype, device=x.device)
    return sample(x, grid.expand(len(x), *grid.shape), padding="border")


def check_array(x: Tensor) -> None:
    """Raise unless ``x`` is a floating-point batch of series, images or volumes with something in it."""
    if x.ndim not in (3, 4, 5):
        raise ValueError(
            f"x has shape {tuple(x.shape)}; expected series (B, C, L), images (B, C, H, W) or volumes (B, C, D, H, W)"
        )
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; expected floating point: convert it first, e.g. x.float() / 255")
    if 0 in x.shape[1:]:
        raise ValueError(f"x has shape {tuple(x.shape)}: every axis but the batch needs at least one entry")


def background(fill: float | Tensor, x: Tensor, dtype: torch.dtype) -> Float[Tensor, " c"]:
    """The value outside each channel of ``x``."""
    found = torch.as_tensor(fill, dtype=dtype, device=x.device).reshape(-1)
    if len(found) not in (1, x.shape[1]):
        raise ValueError(f"fill has {len(found)} numbers for {x.shape[1]} channels; expected one, or one each")
    return found.expand(x.shape[1])


def is_mark(fill: float | Tensor) -> TypeGuard[float]:
    """Whether a fill is no background but a mark for what lies outside, such as NaN or -1e9."""
    return isinstance(fill, (int, float)) and not abs(fill) <= MARK


def covered(x: Float[Tensor, "b c *space"]) -> Float[Tensor, "b d *space"]:
    """The array with one more channel, of ones: by it :func:`marked` knows how much of a value lies inside."""
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def marked(result: Float[Tensor, "b d ..."], mark: float) -> Float[Tensor, "b c ..."]:
    """What was made of a :func:`covered` array, with zero outside, with a mark there instead.

    Beside a mark such as 1e9, what is in the picture would have no digits, and beside NaN it would be none.
    """
    result, inside = result[:, :-1], result[:, -1:]
    part = torch.where(inside < 1 - 1e-5, 1 - inside, 0)
    mixed = result + part * mark if math.isfinite(mark) else torch.full_like(result, mark)
    return torch.where(part > 0, mixed, result)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")
