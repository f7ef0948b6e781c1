"""Two images side by side on one canvas, and a class for every pair of their classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from pstn.data.base import Data


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of images and where they lie.

    Arguments:
        data: The canvases (N, C, H, W); the class of (a, b) is a · K₂ + b.
        places: The top and left pixel of either image, (N, 2, 2).
    """

    data: Data
    places: Int64[Tensor, "n 2 2"]


def pair(
    left: Data, right: Data, count: int | None = None, *, size: int = 64, tops: int = 32, room: int = 0, seed: int = 0
) -> Pairs:
    """One image of each set on a square canvas of zeros: the first at the left edge, the second at the right.

    Pair i is image i of the first set and image 2i of the second, counted round. The heights are drawn, uniformly and
    each by itself. What is drawn for a pair depends on the seed and on its number alone, so a shorter set is the
    beginning of a longer one.

    Convention: a place is (row, column) of an image's first pixel, in whole pixels.

    Arguments:
        left: The first set, images (N, C, h, w).
        right: The second, of the same channels.
        count: How many pairs; as many as the first set has by default.
        size: The canvas's side.
        tops: How many heights there are to draw from, from the canvas's upper edge down.
        room: By how many pixels at most each image moves in from its edge, drawn as well.
        seed: Which draw.

    Returns:
        The pairs with their places.

    References:
        Schwöbel et al., Probabilistic Spatial Transformers for Bayesian Data Augmentation, 2020: MNIST × KMNIST on
        64×64, with 32 heights and no room in the authors' code.

    Example:
        >>> a = Data(torch.ones(3, 1, 2, 2), torch.tensor([0, 1, 2]), tuple("abc"), "A")
        >>> b = Data(torch.ones(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]), tuple("xy"), "B")
        >>> pairs = pair(a, b, size=8, tops=7)
        >>> pairs.data
        Data('A × B', 3 examples of (1, 8, 8), 6 classes)
        >>> pairs.data.y.tolist(), pairs.data.classes[3]
        ([0, 2, 4], 'b-y')
    """
    count = len(left) if count is None else count
    (channels, h1, w1), (others, h2, w2) = left.x.shape[1:], right.x.shape[1:]
    if not 0 < count <= len(left) or channels != others:
        raise ValueError(
            f"{count} pairs of {left!r} and {right!r}; expected 1 to {len(left)}, and images of the same channels"
        )
    if tops < 1 or room < 0 or max(h1, h2) + tops - 1 > size or w1 + w2 + 2 * room > size:
        raise ValueError(
            f"images of {h1}×{w1} and {h2}×{w2} at {tops} heights, with room {room}, do not fit side by side on a "
            f"canvas of {size}×{size}"
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(count, 2, 2, dtype=torch.float64, generator=generator)
    top = (drawn[..., 0] * tops).long()
    moved = (drawn[..., 1] * (room + 1)).long()
    column = torch.stack([moved[:, 0], size - w2 - moved[:, 1]], 1)

    first = torch.arange(count)
    second = 2 * first % len(right)
    x = torch.zeros(count, channels, size, size)
    for n, (data, index) in enumerate(((left, first), (right, second))):
        height, width = data.x.shape[2:]
        rows = (top[:, n, None] + torch.arange(height))[:, :, None]
        columns = (column[:, n, None] + torch.arange(width))[:, None, :]
        # Indices on both sides of a slice: the indexed axes come first, (N, h, w, C).
        x[first[:, None, None], :, rows, columns] = data.x[index].permute(0, 2, 3, 1).to(x)
    y = left.y[first].cpu() * right.num_classes + right.y[second].cpu()
    classes = tuple(f"{a}-{b}" for a in left.classes for b in right.classes)
    data = Data(x, y, classes, f"{left.name} × {right.name}")
    return Pairs(data, torch.stack([top, column], -1))
