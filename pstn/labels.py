"""Labels that travel with a warped array, and predictions that travel back: points, boxes and masks.

Convention: as everywhere; boxes are (x1, y1, x2, y2) in the same normalised coordinates (:func:`pstn.grid.from_pixels`
makes them). A warp reads the input at :math:`T_\\theta(p)`, so a landmark at q in the input appears at
:math:`T_\\theta^{-1}(q)` in the output: ``warp_*`` carries labels from input to output, ``unwarp_*`` carries
predictions from output to input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from pstn.families.base import Family
from pstn.grid import Mode, identity_grid, sample
from pstn.warp import warp

#: points along each side of a box, so that a bent side is bounded too
_SIDE = 17


@dataclass(frozen=True)
class Labels:
    """What belongs to a batch of B arrays beside their classes; each may be None.

    Example:
        >>> from pstn.families import Translation
        >>> theta = torch.tensor([[0.5, 0.0]])
        >>> there = Labels(points=torch.tensor([[[0.5, 0.0]]])).warped(Translation(), theta)
        >>> there.points, there.unwarped(Translation(), theta).points
        (tensor([[[0., 0.]]]), tensor([[[0.5000, 0.0000]]]))
    """

    points: Float[Tensor, "*b n k"] | None = None
    """Landmarks, (B, n, k)."""
    boxes: Float[Tensor, "*b m 4"] | None = None
    """Boxes (x1, y1, x2, y2), (B, n, 4)."""
    masks: Shaped[Tensor, ...] | None = None
    """Masks or label maps, (B, C, *space)."""
    ignore: float = 0
    """The label where a warp has nothing to show, such as the index that a loss ignores."""

    def warped(self, family: Family, theta: Float[Tensor, "*sb d"]) -> Labels:
        """The labels of the warped arrays, for parameters (B, d) or (S, B, d)."""
        return Labels(
            None if self.points is None else warp_points(self.points, family, theta),
            None if self.boxes is None else warp_boxes(self.boxes, family, theta),
            None if self.masks is None else warp_masks(self.masks, family, theta, fill=self.ignore),
            self.ignore,
        )

    def unwarped(self, family: Family, theta: Float[Tensor, "b d"], size: Sequence[int] | None = None) -> Labels:
        """What was predicted on the warped arrays, where it lies in the arrays themselves; ``size`` is theirs."""
        return Labels(
            None if self.points is None else unwarp_points(self.points, family, theta),
            None if self.boxes is None else unwarp_boxes(self.boxes, family, theta),
            None if self.masks is None else unwarp_masks(self.masks, family, theta, size=size, fill=self.ignore),
            self.ignore,
        )


def warp_points(
    points: Float[Tensor, "*#b n k"], family: Family, theta: Float[Tensor, "*b d"]
) -> Float[Tensor, "*b n k"]:
    r"""Where landmarks of the input appear in the output: :math:`T_\theta^{-1}(q)`.

    Arguments:
        points: Landmarks in the input, (*b, n, k).
        family: The family of transformations.
        theta: The parameters of the warp, (*b, d).

    Returns:
        Landmarks in the output, (*b, n, k); NaN where a map without closed inverse does not reach a point.

    Example:
        >>> from pstn.families import Translation
        >>> warp_points(torch.tensor([[0.5, 0.0]]), Translation(), torch.tensor([0.5, 0.0]))
        tensor([[0., 0.]])
    """
    return family.invert(theta, points)


def unwarp_points(
    points: Float[Tensor, "*#b n k"], family: Family, theta: Float[Tensor, "*b d"]
) -> Float[Tensor, "*b n k"]:
    r"""Where points of the output lie in the input: :math:`T_\theta(p)`. The inverse of :func:`warp_points`."""
    return family(theta, points)


def warp_boxes(
    boxes: Float[Tensor, "*#b n 4"], family: Family, theta: Float[Tensor, "*b d"]
) -> Float[Tensor, "*b n 4"]:
    """The smallest upright boxes around the warped boxes, in the output.

    Arguments:
        boxes: (x1, y1, x2, y2) in the input, (*b, n, 4).
        family: A 2-D family.
        theta: The parameters of the warp, (*b, d).

    Example:
        >>> from pstn.families import Crop
        >>> zoom = torch.tensor([0.5, 0.0, 0.0]).log1p() * torch.tensor([1.0, 0, 0])  # look at 1.5 times the area
        >>> warp_boxes(torch.tensor([[-0.3, -0.3, 0.3, 0.6]]), Crop(), zoom)
        tensor([[-0.2000, -0.2000,  0.2000,  0.4000]])
    """
    return _bounds(family.invert(theta, _outline(boxes, family)), boxes.shape[-2])


def unwarp_boxes(
    boxes: Float[Tensor, "*#b n 4"], family: Family, theta: Float[Tensor, "*b d"]
) -> Float[Tensor, "*b n 4"]:
    """The smallest upright boxes, in the input, around boxes of the output."""
    return _bounds(family(theta, _outline(boxes, family)), boxes.shape[-2])


def warp_masks(
    masks: Shaped[Tensor, "b c *space"],
    family: Family,
    theta: Float[Tensor, "*sb d"],
    *,
    size: Sequence[int] | None = None,
    fill: float = 0,
    mode: Mode = "nearest",
) -> Shaped[Tensor, "*sb c *size"]:
    """Masks or label maps of any dtype, warped with the array they belong to; by nearest neighbours, or soft ones not.

    Arguments:
        masks: (B, C, *space), boolean, integer or floating point.
        family: The family of transformations.
        theta: (B, d) or (S, B, d).
        size: The output's spatial size; the input's by default.
        fill: The label outside, such as the index that a loss ignores.
        mode: ``"nearest"``, or ``"linear"`` for probabilities.
    """
    return warp(masks.double(), family, theta, size=size, fill=float(fill), mode=mode).to(masks.dtype)


def unwarp_masks(
    masks: Shaped[Tensor, "b c *space"],
    family: Family,
    theta: Float[Tensor, "b d"],
    *,
    size: Sequence[int] | None = None,
    fill: float = 0,
    mode: Mode = "nearest",
) -> Shaped[Tensor, "b c *size"]:
    r"""Masks predicted on the warped array, brought back to the input's frame: :math:`m(T_\theta^{-1}(q))`.

    Arguments:
        masks: (B, C, *space), what was predicted in the output's frame.
        family: The family of transformations.
        theta: (B, d), the parameters of the warp.
        size: The input's spatial size; the mask's by default.
        fill: The label where the warp did not look.
        mode: ``"nearest"``, or ``"linear"`` for probabilities.
    """
    size = tuple(masks.shape[2:] if size is None else size)
    grid = identity_grid(size, dtype=torch.promote_types(theta.dtype, torch.float32), device=masks.device)
    points = family.invert(theta, grid.flatten(0, -2)).nan_to_num(torch.inf).unflatten(-2, size)
    return sample(masks.double(), points, fill=float(fill), mode=mode).to(masks.dtype)


def clip_boxes(boxes: Float[Tensor, "*b n 4"]) -> tuple[Float[Tensor, "*b n 4"], Float[Tensor, "*b n"]]:
    """The part of each box that lies in the frame [-1, 1], and how large a share of the box it is.

    A box that a warp has moved out of the frame has a share of 0: training on it would be wrong.

    Example:
        >>> clip_boxes(torch.tensor([[0.0, 0.0, 2.0, 1.0], [3.0, 0.0, 4.0, 1.0]]))[1]
        tensor([0.5000, 0.0000])
    """
    inside = boxes.clamp(-1, 1)
    area, whole = ((b[..., 2:] - b[..., :2]).clamp(min=0).prod(-1) for b in (inside, boxes))
    return inside, torch.where(whole > 0, area / whole.clamp(min=torch.finfo(boxes.dtype).tiny), 0.0)


def _outline(boxes: Tensor, family: Family) -> Tensor:
    if boxes.shape[-1] != 4 or family.ndim != 2:
        raise ValueError(
            f"boxes have shape {tuple(boxes.shape)} and {family.label} is {family.ndim}-D; expected (..., n, 4) in 2-D"
        )
    t = torch.linspace(0, 1, _SIDE, dtype=boxes.dtype, device=boxes.device)
    low, high = torch.zeros_like(t), torch.ones_like(t)
    u, v = torch.cat([t, t, low, high]), torch.cat([low, high, t, t])
    x1, y1, x2, y2 = boxes[..., None].unbind(-2)
    return torch.stack([x1 + (x2 - x1) * u, y1 + (y2 - y1) * v], dim=-1).flatten(-3, -2)


def _bounds(outline: Tensor, n: int) -> Tensor:
    points = outline.unflatten(-2, (n, 4 * _SIDE))
    return torch.cat([points.amin(-2), points.amax(-2)], dim=-1)
