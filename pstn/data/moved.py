"""Data moved at random with the truth kept: pictures turned about their centre, or pasted somewhere on a canvas.

A move is a module that draws anew for every batch, so it serves as an augmentation; :meth:`Move.data` moves a whole
data set once and keeps the poses. Draws come from ``torch.rand`` alone, which a fleet of networks can take over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pstn.data.base import Data
from pstn.families import Crop, Rotation
from pstn.families.base import Family
from pstn.warp import warp

#: Examples that are moved at a time.
CHUNK = 1024


@dataclass(frozen=True, eq=False, repr=False)
class Moved(Data):
    r"""Data with the pose of every example: the :math:`\theta` that undoes what was done to it.

    Convention: ``warp(x, move.family, pose)`` shows the example as it was, so a perfect localizer answers ``pose``.

    Arguments:
        x: The moved examples.
        y: The labels.
        classes: The names of the classes.
        name: What to call the set.
        pose: The poses, (N, d).
    """

    pose: Float[Tensor, "n d"] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pose.ndim != 2 or len(self.pose) != len(self.x):
            raise ValueError(f"pose has shape {tuple(self.pose.shape)}; {len(self.x)} examples need ({len(self.x)}, d)")

    def to(self, device: torch.device | str) -> Moved:
        """The same data on another device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device), pose=self.pose.to(device))

    def subset(self, indices: Tensor | np.ndarray | Sequence[int], name: str | None = None) -> Moved:
        """The examples at the given indices, in that order, with their poses."""
        part = Data(self.x, self.y, self.classes, self.name).subset(indices, name)
        pose = self.pose[torch.as_tensor(indices, device=self.pose.device)]
        return Moved(part.x, part.y, part.classes, part.name, pose=pose)


class Move(nn.Module):
    """Inputs moved at random, each by its own draw, in training and in evaluation alike.

    A move is written by :meth:`draw` and :meth:`move`.

    Attributes:
        family: The family that the poses are members of.
    """

    family: Family

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b d"]:
        """Random poses, (count, d), of ``family``."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(count, device, generator)")

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b d"]) -> Float[Tensor, "b c h2 w2"]:
        """The inputs moved so that the poses undo it."""
        raise NotImplementedError(f"{type(self).__name__} must define move(x, pose)")

    def forward(
        self, x: Float[Tensor, "b c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "b c h2 w2"]:
        """The inputs, each moved by its own draw."""
        return self.move(x, self.draw(len(x), x.device, generator))

    def data(self, data: Data, seed: int = 0) -> Moved:
        """A data set moved once, the same for the same seed on every device, with its poses."""
        pose = self.draw(len(data), generator=torch.Generator().manual_seed(seed)).to(data.x)
        parts = zip(data.x.split(CHUNK), pose.split(CHUNK), strict=True)
        x = torch.cat([self.move(some, poses) for some, poses in parts])
        return Moved(x, data.y, data.classes, f"{data.name}, moved by seed {seed}", pose=pose)


class Turn(Move):
    r"""Pictures turned about their centre by an angle :math:`\sim U(-a, a)`.

    Convention: the pose is the angle of :class:`pstn.families.Rotation` that turns the picture back, in radians; the
    picture itself was warped by its negative.

    Arguments:
        limit: The largest angle a; half a turn by default, so all angles.
        size: The picture's size (H, W), to turn rigidly where it is not square.
        fill: The value outside the picture.

    Example:
        >>> digits = Data(torch.rand(6, 1, 8, 8), torch.arange(6) % 2, ("a", "b"))
        >>> turned = Turn().data(digits, seed=1)
        >>> turned.x.shape, turned.pose.shape
        (torch.Size([6, 1, 8, 8]), torch.Size([6, 1]))
    """

    def __init__(self, limit: float = math.pi, *, size: Sequence[int] | None = None, fill: float = 0.0) -> None:
        super().__init__()
        if not 0 <= limit <= math.pi:
            raise ValueError(f"limit is {limit}; expected an angle from 0 to π, in radians")
        self.family = Rotation(size=size)
        self.limit, self.fill = limit, fill

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b 1"]:
        """Random angles, (count, 1)."""
        return self.limit * (2 * _uniform(count, 1, device, generator) - 1)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b 1"]) -> Float[Tensor, "b c h w"]:
        """The pictures turned the other way."""
        return warp(x, self.family, -pose, fill=self.fill)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"limit={self.limit}, fill={self.fill}"


class Place(Move):
    r"""Square pictures pasted on a square canvas, their corner on a pixel drawn from :math:`\{0, \dots, r\}^2`.

    Convention: the pose is that of :class:`pstn.families.Crop` for the window that holds the picture: the logarithm of
    ``item / canvas``, and the centre of the window.

    Arguments:
        item: The side of a picture, in pixels. Of larger inputs, the top left corner of this size is the picture.
        canvas: The side of the canvas.
        reach: The largest coordinate r of the corner; as far as the canvas goes by default.
        fill: The value of the empty canvas.

    Example:
        >>> move = Place(item=2, canvas=4)
        >>> move.move(torch.ones(1, 1, 2, 2), torch.tensor([[math.log(0.5), -0.5, 0.5]]))  # left, at the bottom
        tensor([[[[0., 0., 0., 0.],
                  [0., 0., 0., 0.],
                  [1., 1., 0., 0.],
                  [1., 1., 0., 0.]]]])
    """

    def __init__(self, item: int, canvas: int, reach: int | None = None, *, fill: float = 0.0) -> None:
        super().__init__()
        room = canvas - item
        reach = room if reach is None else reach
        if item < 1 or not 0 <= reach <= room:
            raise ValueError(
                f"a picture of {item} pixels on a canvas of {canvas} with corners up to {reach}; expected a picture "
                "that fits on the canvas wherever it is placed"
            )
        self.family = Crop()
        self.item, self.canvas, self.reach, self.fill = item, canvas, reach, fill

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b 3"]:
        """Random places, (count, 3): log-scale, x and y."""
        corner = (_uniform(count, 2, device, generator) * (self.reach + 1)).floor().clamp(max=self.reach)
        centre = (2 * corner + self.item) / self.canvas - 1
        return torch.cat([torch.full_like(centre[:, :1], math.log(self.item / self.canvas)), centre], dim=1)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b 3"]) -> Float[Tensor, "b c n n"]:
        """The pictures on their canvases, pixel by pixel."""
        back = torch.cat([-pose[:, :1], -pose[:, 1:] * (self.canvas / self.item)], dim=1)
        size = (self.canvas, self.canvas)
        picture = x[..., : self.item, : self.item]
        return warp(picture, self.family, back, size=size, fill=self.fill, mode="nearest")

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"item={self.item}, canvas={self.canvas}, reach={self.reach}, fill={self.fill}"


def _uniform(
    count: int, numbers: int, device: torch.device | str | None, generator: torch.Generator | None
) -> Float[Tensor, "b n"]:
    """Uniform numbers from 0 to 1, from torch's own generator on the device, or from a given one wherever it lives."""
    if generator is None:
        return torch.rand(count, numbers, device=device)
    return torch.rand(count, numbers, device=generator.device, generator=generator).to(device)
