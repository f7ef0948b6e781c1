"""Moves beyond turning and placing: similarities on a canvas, corners pulled about, and thin-plate splines."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.data.moved import Move
from pstn.families import TPS, Compose, Crop, Projective, Similarity
from pstn.families.base import Family
from pstn.grid import check_choice
from pstn.warp import warp

Where = Literal["anywhere", "centre"]
Kind = Literal["uniform", "normal"]
Along = Literal["axes", "diagonals"]


class Similar(Move):
    r"""Square pictures turned, scaled and put on a square canvas: R, RTS, T and S of the papers are cases of it.

    The angle is :math:`\sim U(-a, a)`; the scale is uniform, or uniform on a logarithmic scale; the place is uniform
    where the scaled picture, before it is turned, fits on the canvas, or the canvas's centre. Places are not rounded to
    pixels, and pixels are interpolated linearly.

    Convention: the pose is that of :class:`pstn.families.Similarity` that shows the picture as it was: the angle that
    turns it back, the logarithm of ``scale · item / canvas``, and the picture's centre on the canvas.

    Arguments:
        item: The side of a picture, in pixels. Of larger inputs, the top left corner of this size is the picture.
        canvas: The side of the canvas.
        angle: The largest angle a, in radians.
        scale: The least and the greatest scale.
        log: Whether the scale's logarithm is uniform, not the scale.
        where: ``"anywhere"`` or ``"centre"``.
        fill: The value of the empty canvas.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015; Finnveden et al., ICPR 2020

    Example:
        >>> rts = Similar(28, 42, angle=math.pi / 4, scale=(0.7, 1.2))
        >>> rts(torch.rand(5, 1, 28, 28)).shape
        torch.Size([5, 1, 42, 42])
    """

    def __init__(
        self,
        item: int,
        canvas: int,
        *,
        angle: float = 0.0,
        scale: tuple[float, float] = (1.0, 1.0),
        log: bool = False,
        where: Where = "anywhere",
        fill: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("where", where, get_args(Where))
        if not 0 <= angle <= math.pi:
            raise ValueError(f"angle is {angle}; expected an angle from 0 to π, in radians")
        if item < 1 or not 0 < scale[0] <= scale[1] or item * scale[1] > canvas:
            raise ValueError(
                f"a picture of {item} pixels scaled by {scale[0]} to {scale[1]} on a canvas of {canvas}; expected "
                "positive scales, the least first, at which the picture fits on the canvas"
            )
        self.family = Similarity()
        self.item, self.canvas, self.angle, self.scale = item, canvas, angle, scale
        self.log, self.where, self.fill = log, where, fill

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*shape"]:
        """Random poses, (count, 4): rotation, log-scale, x and y."""
        turn, size, place = drawn("uniform", (count, 4), device, generator).split([1, 1, 2], dim=1)
        low, high = self.scale
        scale = low * (size * math.log(high / low)).exp() if self.log else low + (high - low) * size
        scale = scale * self.item / self.canvas
        room = (1 - scale) * (self.where == "anywhere")
        return torch.cat([self.angle * (2 * turn - 1), scale.log(), room * (2 * place - 1)], dim=1)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b 4"]) -> Float[Tensor, "b c n n"]:
        """The pictures on their canvases."""
        # In closed form: a matrix inverse would ask the device whether it went well.
        turn, size, shift = pose.split([1, 1, 2], dim=1)
        cos, sin, (a, b) = turn.cos(), turn.sin(), shift.split(1, dim=1)
        back = -(-size).exp() * torch.cat([cos * a + sin * b, cos * b - sin * a], dim=1)
        picture = x[..., : self.item, : self.item]
        inverse = torch.cat([-turn, -size, back], dim=1)
        return warp(picture, self.family, inverse, size=(self.canvas, self.canvas), fill=self.fill)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        log = ", log" if self.log else ""
        return f"item={self.item}, canvas={self.canvas}, angle={self.angle}, scale={self.scale}{log}, {self.where}"


class Projected(Move):
    r"""Pictures scaled about their centre, their corners then pulled about by :math:`N(0, \sigma^2)`.

    Convention: the pose is that of :class:`pstn.families.Projective` whose map takes the corners of the picture as it
    was to where they are now. Corners pulled across each other (one draw in seventy at the paper's figures)
    fold the picture; what is behind the fold is empty.

    Arguments:
        side: The side of a picture, in pixels.
        scale: The least and the greatest scale; uniform.
        deviation: σ in pixels.
        along: Whether each coordinate of a corner is pulled by itself, along the ``"axes"``, or a corner outwards or
            inwards by one amount, along the ``"diagonals"``. The paper's words, stretching each corner by an amount,
            allow both.
        fill: The value outside the picture.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015

    Example:
        >>> Projected(28).draw(3).shape
        torch.Size([3, 8])
    """

    family: Projective
    corners: Tensor

    def __init__(
        self,
        side: int = 28,
        *,
        scale: tuple[float, float] = (0.75, 1.0),
        deviation: float = 5.0,
        along: Along = "axes",
        fill: float = 0.0,
    ) -> None:
        super().__init__()
        _check_bent(side, scale, deviation)
        check_choice("along", along, get_args(Along))
        self.along = along
        self.family = Projective()
        self.side, self.scale, self.deviation, self.fill = side, scale, deviation, fill
        self.register_buffer("corners", torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]]), persistent=False)

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*shape"]:
        """Random poses, (count, 8)."""
        low, high = self.scale
        scale = low + (high - low) * drawn("uniform", (count, 1), device, generator)
        numbers = 8 if self.along == "axes" else 4
        pulled = drawn("normal", (count, numbers), device, generator) * (2 * self.deviation / self.side)
        square, pulled = self.corners.to(pulled), pulled.unflatten(1, (4, -1))
        if self.along == "diagonals":
            pulled = pulled * square / math.sqrt(2)
        return self.family.from_matrix(_square_to(scale[..., None] * square + pulled))

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b 8"]) -> Float[Tensor, "b c h w"]:
        """The pictures seen through the inverse maps."""
        back = self.family.from_matrix(_adjugate(self.family.matrix(pose)))
        return warp(x, self.family, back, fill=self.fill)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        along = "" if self.along == "axes" else f", along={self.along}"
        return f"side={self.side}, scale={self.scale}, deviation={self.deviation}{along}"


class Elastic(Move):
    r"""Pictures scaled about their centre, then bent by a thin-plate spline, its control points moved by
    :math:`N(0, \sigma^2)`.

    Convention: the picture is warped by the spline, so the spline's inverse shows it as it was: the pose holds the
    parameters of scale and spline, and ``family`` is the family of their :class:`Undone` maps.

    Arguments:
        side: The side of a picture, in pixels.
        scale: The least and the greatest scale; uniform.
        deviation: σ in pixels.
        points: Control points along each axis, corners included.
        fill: The value outside the picture.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015

    Example:
        >>> Elastic(28).draw(3).shape  # a scale with two shifts that are zero, and sixteen points
        torch.Size([3, 35])
    """

    def __init__(
        self,
        side: int = 28,
        *,
        scale: tuple[float, float] = (0.75, 1.0),
        deviation: float = 1.5,
        points: int = 4,
        fill: float = 0.0,
    ) -> None:
        super().__init__()
        _check_bent(side, scale, deviation)
        self.bend = Compose(Crop(), TPS(points))
        self.family = Undone(self.bend)
        self.side, self.scale, self.deviation, self.fill = side, scale, deviation, fill

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*shape"]:
        """Random poses, (count, 3 + 2 · points²)."""
        low, high = self.scale
        scale = low + (high - low) * drawn("uniform", (count, 1), device, generator)
        moved = drawn("normal", (count, self.bend.dim - 3), device, generator) * (2 * self.deviation / self.side)
        return torch.cat([-scale.log(), torch.zeros_like(moved[:, :2]), moved], dim=1)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b d"]) -> Float[Tensor, "b c h w"]:
        """The pictures, scaled and bent."""
        return warp(x, self.bend, pose, fill=self.fill)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"side={self.side}, scale={self.scale}, deviation={self.deviation}"


class Undone(Family):
    r"""The inverse maps of another family, with its parameters: :math:`T_\theta = F_\theta^{-1}`.

    Found point by point by Newton's method where the family has no closed inverse: for measuring, not for training.

    Example:
        >>> from pstn.families import Translation
        >>> Undone(Translation())(torch.tensor([0.5, 0.0]), torch.tensor([[0.5, 0.25]]))
        tensor([[0.0000, 0.2500]])
    """

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.of = family
        self.ndim, self.names = family.ndim, family.names

    def move(self, theta: Tensor, points: Tensor) -> Tensor:
        """The points through the inverse; far outside where there is none."""
        return self.of.invert(theta, points).nan_to_num(nan=1e3)

    def invert(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        """The points through the family itself."""
        return self.of(theta, points)


def drawn(
    kind: Kind, shape: tuple[int, ...], device: torch.device | str | None, generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """Uniform or normal numbers, from torch's own generator on the device, or from a given one wherever it lives."""
    make = torch.rand if kind == "uniform" else torch.randn
    if generator is None:  # as a call of its own: a fleet takes over calls that name no generator
        return make(*shape, device=device)
    return make(*shape, device=generator.device, generator=generator).to(device)


def _square_to(corners: Float[Tensor, "b 4 2"]) -> Float[Tensor, "b 3 3"]:
    """The homography that takes (-1, -1), (1, -1), (1, 1), (-1, 1) to four points, in closed form."""
    p, q, r, s = corners.unbind(1)
    one, two, three = q - r, s - r, p - q + r - s
    below = _cross(one, two)
    g, h = _cross(three, two) / below, _cross(one, three) / below
    g, h = g[:, None], h[:, None]
    across, down = q - p + g * q, s - p + h * s
    # Of the unit square's map, which takes (0, 0) to p; the picture's corners are at ±1.
    top = torch.stack([across, down, across + down + 2 * p], dim=2)
    bottom = torch.stack([g, h, g + h + 2], dim=2)
    return torch.cat([top, bottom], dim=1)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _adjugate(matrix: Float[Tensor, "b 3 3"]) -> Float[Tensor, "b 3 3"]:
    """The inverse times the determinant, which a homography does not see."""
    a, b, c = matrix.unbind(-2)
    columns = [torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)]
    return torch.stack(columns, dim=-1)


def _check_bent(side: int, scale: tuple[float, float], deviation: float) -> None:
    if side < 1 or not 0 < scale[0] <= scale[1] or deviation < 0:
        raise ValueError(
            f"side is {side}, scale {scale} and deviation {deviation}; expected a positive side, positive scales, the "
            "least first, and a deviation of at least 0 pixels"
        )
