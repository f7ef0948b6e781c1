"""Pictures nudged at random, a little turned, shifted and scaled, with the pose that undoes it kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.data.moved import Move
from pstn.families import Similarity
from pstn.vae.pose import undo
from pstn.warp import warp


class Nudge(Move):
    r"""Pictures turned by :math:`\pm a`, scaled by :math:`1 \pm s` and shifted by :math:`\pm t` pixels along each axis.

    Each of the three happens or not, independently; what happens is drawn uniformly from its range.

    Convention: the pose is that of :class:`pstn.families.Similarity` which maps the picture as it was to where its
    content is now, so that warping by it shows the picture as it was.

    References:
        An Investigation Into Transformation-Invariant Variational Autoencoders (Williams, 2024), section 3.1.

    Arguments:
        size: The picture's size (H, W).
        turn: a, in degrees.
        scale: s.
        shift: t, in pixels.
        chance: How probable each of the three is.
        fill: The value outside the picture.

    Example:
        >>> from pstn.data import Data
        >>> pictures = Data(torch.rand(6, 1, 28, 28), torch.arange(6) % 2, ("a", "b"))
        >>> moved = Nudge((28, 28)).data(pictures, seed=1)
        >>> moved.x.shape, moved.pose.shape
        (torch.Size([6, 1, 28, 28]), torch.Size([6, 4]))
    """

    limits: Tensor

    def __init__(
        self, size: Sequence[int], *, turn: float = 10.0, scale: float = 0.2, shift: float = 4.0, chance: float = 0.5,
        fill: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if len(size) != 2 or min(size) < 1:
            raise ValueError(f"size is {tuple(size)}; expected a picture's height and width")
        if not 0 <= scale < 1 or min(turn, shift) < 0 or not 0 <= chance <= 1:
            raise ValueError(
                f"turns of {turn}°, scales of 1 ± {scale} and shifts of {shift} pixels with chance {chance}; expected "
                "no negative number, a scale below 1 and a probability"
            )
        height, width = size
        self.family = Similarity(size=None if height == width else size)
        self.turn, self.scale, self.shift, self.chance, self.fill = turn, scale, shift, chance, fill
        limits = torch.tensor([math.radians(turn), scale, 2 * shift / width, 2 * shift / height])
        self.register_buffer("limits", limits, persistent=False)

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b 4"]:
        """Random poses, (count, 4)."""
        where = device if generator is None else generator.device
        numbers = torch.rand(count, 7, device=where, generator=generator)
        happens = (numbers[:, :3] < self.chance).to(numbers.dtype)
        happens = torch.cat([happens, happens[:, 2:]], dim=1)  # both axes are one shift
        angle, scale, x, y = ((2 * numbers[:, 3:] - 1) * happens * self.limits.to(numbers)).unbind(1)
        return torch.stack([angle, torch.log1p(scale), x, y], dim=1).to(device)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b 4"]) -> Float[Tensor, "b c h w"]:
        """The pictures moved so that the poses undo it."""
        return warp(x, self.family, undo(self.family, pose), fill=self.fill)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"turn={self.turn}, scale={self.scale}, shift={self.shift}, chance={self.chance}, fill={self.fill}"
