"""German traffic signs at 32×32 pixels with their boxes, and the same signs pasted on clutter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from pstn.data.base import Data
from pstn.data.files import StrPath, roots
from pstn.data.mnist import Split
from pstn.data.npz import read_arrays, read_npz
from pstn.grid import check_choice

FILE = Path("GTSRB32") / "gtsrb32_subset.npz"
ORIGIN = "made from the GTSRB recognition benchmark, https://benchmark.ini.rub.de, at 32×32 pixels"


@dataclass(frozen=True, eq=False)
class Boxed:
    """Images with a box in each.

    Arguments:
        data: The images.
        boxes: x1, y1, x2, y2 of each box in normalised coordinates, -1 to 1 at the image's outer edges, (N, 4).
        tracks: Which images show the same object, (N,): images of one track belong on one side of a split.
    """

    data: Data
    boxes: Float[Tensor, "n 4"]
    tracks: Int64[Tensor, " n"]

    def subset(self, indices: Tensor) -> Boxed:
        """The images at the given indices, with their boxes."""
        return Boxed(self.data.subset(indices), self.boxes[indices], self.tracks[indices])

    def crops(self, size: int, room: float = 1.0) -> Data:
        """What is in the boxes, at one size, (N, C, size, size); with room, in boxes so many times as wide and high."""
        middle, half = (self.boxes[:, 2:] + self.boxes[:, :2]) / 2, room * (self.boxes[:, 2:] - self.boxes[:, :2]) / 2
        boxes = torch.cat([middle - half, middle + half], 1) if room != 1 else self.boxes
        return replace(self.data, x=_cut(self.data.x, boxes, size), name=f"{self.data.name}, boxes")


def find_gtsrb(root: StrPath | None = None) -> Path | None:
    """The file, if it is at hand."""
    return next((place / FILE for place in roots(root) if (place / FILE).is_file()), None)


def gtsrb(split: Split = "train", root: StrPath | None = None) -> Boxed:
    """Traffic signs, (N, 3, 32, 32) from 0 to 1, of 43 classes, with the box of each sign.

    The file is looked for as ``GTSRB32/gtsrb32_subset.npz`` in ``root`` or ``$PSTN_DATA`` and in the cache: every sixth
    frame of each track of the benchmark's training images, every third of its test images, resized to 32×32; the arrays
    ``x_*``, ``y_*``, ``box_*`` with width, height, x1, y1, x2, y2 in pixels of the image before, and ``name_*`` with
    the files' names, ``CLASS/TRACK_FRAME.ppm`` in training.

    Arguments:
        split: ``"train"`` or ``"test"``.
        root: The folder of all data sets.

    References:
        J. Stallkamp, M. Schlipsing, J. Salmen and C. Igel, Man vs. computer, 2012.
    """
    check_choice("split", split, get_args(Split))
    path = find_gtsrb(root)
    if path is None:
        looked = " or ".join(str(place / FILE) for place in roots(root))
        raise FileNotFoundError(f"GTSRB-32 is not at hand: looked for {looked}; it is {ORIGIN}")
    data = read_npz(path, split, layout="NHWC", name=f"GTSRB-32 {split}")
    arrays = read_arrays(path)
    if lacking := [name for name in (f"box_{split}", f"name_{split}") if name not in arrays]:
        raise ValueError(f"{path} lacks {' and '.join(lacking)}; expected the boxes and files' names of its images")
    found = torch.from_numpy(arrays[f"box_{split}"]).float()
    tracks = np.unique([name.rpartition("_")[0] or name for name in arrays[f"name_{split}"]], return_inverse=True)[1]
    if found.shape != (len(data), 6):
        raise ValueError(f"{path} has boxes of shape {tuple(found.shape)}; {len(data)} images need ({len(data)}, 6)")
    sides = found[:, [0, 1, 0, 1]]
    # A box's last pixel belongs to it: its outer edge is one further.
    edges = found[:, 2:] + torch.tensor([0.0, 0.0, 1.0, 1.0])
    return Boxed(data, (2 * edges / sides - 1).clamp(-1, 1), torch.from_numpy(tracks.reshape(-1)).long())


def most_common(data: Data, count: int) -> tuple[str, ...]:
    """The classes with the most examples, most first; of equals the one that comes first."""
    order = sorted(range(data.num_classes), key=lambda k: -data.counts[k])
    return tuple(data.classes[k] for k in order[:count])


def of_classes(signs: Boxed, classes: tuple[str, ...]) -> Boxed:
    """The images of some classes, which become 0, 1, 2, ... in the order given."""
    number = torch.full((signs.data.num_classes,), -1)
    for k, name in enumerate(classes):
        number[signs.data.classes.index(name)] = k
    y = number[signs.data.y.cpu()]
    kept = (y >= 0).nonzero().squeeze(1)
    data = Data(signs.data.x[kept], y[kept], classes, signs.data.name)
    return Boxed(data, signs.boxes[kept], signs.tracks[kept])


def on_clutter(
    signs: Boxed, *, size: int = 64, sides: tuple[int, int] = (16, 32), patches: int = 8, seed: int = 0
) -> Boxed:
    """Each sign at a random place and scale on a background of soft colours and pieces of other signs' images.

    The side is drawn log-uniformly, the place uniformly where the sign fits. The background is colours drawn on a 4×4
    lattice, smooth between, with square pieces of 4 to 10 pixels cut from any of the images at random; the sign lies on
    top. The same seed gives the same canvases.

    Arguments:
        signs: The signs with their boxes; what is in the box is pasted.
        size: The canvas's side.
        sides: The least and the greatest side of a pasted sign, in pixels.
        patches: How many pieces.
        seed: Which draw.

    Returns:
        The canvases (N, C, size, size) with the signs' boxes.
    """
    low, high = sides
    if not 1 <= low <= high <= size or size < 16:
        raise ValueError(f"sides are {sides} on a canvas of {size}; expected 1 <= least <= greatest <= {size} >= 16")
    count, channels = signs.data.x.shape[:2]
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, 3, dtype=torch.float64, generator=generator)
    side = (low * (high / low) ** uniform[:, 0]).round().long()
    corner = (uniform[:, 1:] * (size - side + 1)[:, None]).long()

    x = F.interpolate(torch.rand(count, channels, 4, 4, generator=generator), size=size, mode="bicubic").clamp(0, 1)
    source = torch.randint(count, (count, patches), generator=generator)
    for n in range(patches):
        length = int(torch.randint(4, 11, (), generator=generator))
        cut, put = (
            torch.randint(limit - length + 1, (count, 2), generator=generator)
            for limit in (min(signs.data.x.shape[2:]), size)
        )
        _copy(signs.data.x[source[:, n]], cut, x, put, length)
    for i in range(count):
        length, (left, top) = int(side[i]), corner[i].tolist()
        x[i, :, top : top + length, left : left + length] = _cut(
            signs.data.x[i : i + 1], signs.boxes[i : i + 1], length
        )[0]
    boxes = 2 * torch.cat([corner, corner + side[:, None]], 1) / size - 1
    return replace(signs, data=replace(signs.data, x=x, name=f"{signs.data.name} on clutter"), boxes=boxes.float())


def _copy(source: Tensor, cut: Tensor, target: Tensor, put: Tensor, length: int) -> None:
    """Copy a square from each source, at (column, row), to its target."""
    across = torch.arange(length)
    rows = torch.arange(len(source))[:, None, None]

    def at(corner: Tensor) -> tuple[Tensor, slice, Tensor, Tensor]:
        return rows, slice(None), (corner[:, 1:] + across)[:, :, None], (corner[:, :1] + across)[:, None, :]

    target[at(put)] = source[at(cut)]


def _cut(x: Tensor, boxes: Tensor, size: int) -> Tensor:
    """What is in the boxes, each pixel the mean of nine points so that shrinking does not alias."""
    fine = 3 * size
    steps = (torch.arange(fine, dtype=torch.float32) + 0.5) / fine
    xs, ys = (boxes[:, [a]] + steps * (boxes[:, [a + 2]] - boxes[:, [a]]) for a in (0, 1))
    grid = torch.stack([xs[:, None, :].expand(-1, fine, -1), ys[:, :, None].expand(-1, -1, fine)], -1)
    looked = F.grid_sample(x, grid.to(x), mode="bilinear", padding_mode="border", align_corners=False)
    return F.avg_pool2d(looked, 3)
