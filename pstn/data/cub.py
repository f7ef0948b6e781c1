"""Caltech-UCSD Birds 200-2011: photographs of birds in 200 species, from the publisher's own files."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pstn.data.base import Data
from pstn.data.distorted import drawn
from pstn.data.files import StrPath, roots
from pstn.data.folder import _pillow
from pstn.data.mnist import Split
from pstn.families import Crop
from pstn.grid import check_choice
from pstn.warp import warp

FOLDER = "CUB_200_2011"
LISTS = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")
ORIGIN = "CUB_200_2011.tgz of https://www.vision.caltech.edu/datasets/cub_200_2011, unpacked"


def find_cub(root: StrPath | None = None) -> Path | None:
    """The folder with ``images`` and the lists, if it is at hand."""
    for place in roots(root):
        folder = place / FOLDER
        if (folder / "images").is_dir() and all((folder / name).is_file() for name in LISTS):
            return folder
    return None


def cub_files(split: Split = "train", root: StrPath | None = None) -> tuple[tuple[str, ...], list[tuple[Path, int]]]:
    """The species' names, and the files of a split with the number of their species, from 0.

    The files are looked for as ``CUB_200_2011/images/*/*.jpg`` with the lists beside ``images``, in ``root`` or
    ``$PSTN_DATA`` and in the cache: 5,994 to train on and 5,794 to test.

    Arguments:
        split: ``"train"`` or ``"test"``.
        root: The folder of all data sets.

    References:
        C. Wah, S. Branson, P. Welinder, P. Perona and S. Belongie, The Caltech-UCSD Birds-200-2011 dataset, 2011.
    """
    check_choice("split", split, get_args(Split))
    folder = find_cub(root)
    if folder is None:
        looked = " or ".join(str(place / FOLDER) for place in roots(root))
        raise FileNotFoundError(
            f"CUB-200-2011 is not at hand: looked for {looked} with images and {', '.join(LISTS)}; it is {ORIGIN}"
        )
    names, files, species, parts = (_read(folder / name) for name in LISTS)
    wanted = "1" if split == "train" else "0"
    numbers = {key: n for n, key in enumerate(names)}
    try:
        found = [
            (folder / "images" / file, numbers[species[key]]) for key, file in files.items() if parts[key] == wanted
        ]
    except KeyError as error:
        raise ValueError(
            f"{folder}: the lists do not fit together, {error} is missing from one; expected a line for each image in "
            f"{', '.join(LISTS[1:])}, and for each species in {LISTS[0]}"
        ) from error
    return tuple(names.values()), found


def cub(
    split: Split = "train", root: StrPath | None = None, *, size: int = 256, wide: int | None = None, per: int = 0
) -> Data:
    """Birds, (N, 3, size, wide) from 0 to 1: the shorter side resized to ``size``, the longer one cut to ``wide``.

    STN'15 cuts 224 from the shorter side 256, or 448 from 512, with all of the longer side; here an image has one size,
    so ends of long sides are lost on both sides of the centre. Needs Pillow.

    Arguments:
        split: ``"train"`` or ``"test"``.
        root: The folder of all data sets, as for :func:`cub_files`.
        size: The shorter side, in pixels.
        wide: The side of the square that is kept; the shorter side by default. Above it, what is not there is black.
        per: The first so many images of each species; all for 0.
    """
    classes, files = cub_files(split, root)
    if per:
        each = [[file for file in files if file[1] == label] for label in range(len(classes))]
        files = [file for some in each for file in some[:per]]
    if not files:
        raise ValueError(f"CUB-200-2011 has no image for {split}: {LISTS[3]} names none")
    side = size if wide is None else wide
    x = torch.zeros(len(files), 3, side, side)
    for row, (path, _) in zip(x, files, strict=True):
        _fit(path, size, row)
    return Data(x, torch.tensor([label for _, label in files]), classes, f"CUB-200-2011 {split}")


class Cut(nn.Module):
    """Square windows at random places, one in two mirrored: the papers' augmentation of photographs.

    Convention: a draw is the :class:`pstn.families.Crop` of the window within the photograph, and a fourth number: 1,
    or -1 where it is mirrored. Drawn alike in training and in evaluation.

    Arguments:
        side: The side of the photographs.
        size: The side of the windows; corners are whole pixels.

    Example:
        >>> Cut(256, 224)(torch.rand(2, 3, 256, 256)).shape
        torch.Size([2, 3, 224, 224])
    """

    def __init__(self, side: int = 256, size: int = 224) -> None:
        super().__init__()
        if not 1 <= size <= side:
            raise ValueError(f"a window of {size} pixels in photographs of {side}; expected one that fits")
        self.family, self.side, self.size = Crop(), side, size

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b 4"]:
        """Random windows: log-scale, x, y and side."""
        numbers = drawn("uniform", (count, 3), device, generator)
        room = self.side - self.size
        corner = (numbers[:, :2] * (room + 1)).floor().clamp(max=room)
        centre = (2 * corner + self.size) / self.side - 1
        scale = torch.full_like(centre[:, :1], self.size / self.side).log()
        return torch.cat([scale, centre, 1 - 2 * (numbers[:, 2:] < 0.5).to(numbers)], dim=1)

    def forward(
        self, x: Float[Tensor, "b c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "b c n n"]:
        """A window of each photograph."""
        pose = self.draw(len(x), x.device, generator)
        seen = warp(x, self.family, pose[:, :3], size=(self.size, self.size), mode="nearest")
        return torch.where(pose[:, 3, None, None, None] > 0, seen, seen.flip(-1))

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"{self.size} of {self.side}"


def ten_crops(x: Float[Tensor, "b c h w"], size: int) -> Float[Tensor, "ten b c n n"]:
    """The four corners and the centre of each image, and the same mirrored: predictions are averaged over the ten.

    Example:
        >>> ten_crops(torch.rand(2, 3, 16, 16), 14).shape
        torch.Size([10, 2, 3, 14, 14])
    """
    height, width = x.shape[2:]
    if not 1 <= size <= min(height, width):
        raise ValueError(f"windows of {size} pixels in images of {height}×{width}; expected ones that fit")
    down, right = height - size, width - size
    corners = [(0, 0), (0, right), (down, 0), (down, right), (down // 2, right // 2)]
    five = torch.stack([x[..., top : top + size, left : left + size] for top, left in corners])
    return torch.cat([five, five.flip(-1)])


def _read(path: Path) -> dict[str, str]:
    """Lines of a number and a word."""
    pairs = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{path} is not a list of CUB-200-2011; expected a number and a word a line")
    return {key: value.strip() for key, value in pairs}


def _fit(path: Path, size: int, out: Tensor) -> None:
    """Write an image, its shorter side resized, into the centre of a square."""
    pillow = _pillow()
    try:
        with pillow.open(path) as opened:
            image = opened.convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; {LISTS[1]} names it") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    ratio, side = size / min(image.size), out.shape[-1]
    image = image.resize([max(1, round(ratio * n)) for n in image.size], pillow.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1) / 255
    (top, left), (up, start) = ([max(0, sign * (n - side) // 2) for n in pixels.shape[1:]] for sign in (1, -1))
    part = pixels[:, top : top + side, left : left + side]
    out[:, up : up + part.shape[1], start : start + part.shape[2]] = part
