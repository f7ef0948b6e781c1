"""PlanktonSet 1.0: silhouettes of plankton in 121 classes, and the augmentation networks are trained on it with."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pstn.data.base import Data
from pstn.data.distorted import drawn
from pstn.data.files import StrPath, roots
from pstn.data.folder import BROKEN, _files, _pillow
from pstn.data.moved import Move
from pstn.families import Affine
from pstn.warp import warp

FOLDER, ARCHIVE = "PlanktonSet", "ndsb_train_gray.zip"
ORIGIN = "train.zip of https://www.kaggle.com/c/datasciencebowl, unpacked, or the same images in one archive"


def find_plankton(root: StrPath | None = None) -> Path | None:
    """The folder of the classes' folders, or the archive that it is in, if either is at hand."""
    places = [place / FOLDER / name for place in roots(root) for name in ("train", ARCHIVE)]
    return next((path for path in places if (path.is_file() if path.name == ARCHIVE else path.is_dir())), None)


def plankton(root: StrPath | None = None, *, size: int = 192, per_class: int | None = None) -> Data:
    """Plankton, light on black, (N, 1, size, size) from 0 to 1: each image's longest side is the frame's.

    The files are looked for as ``PlanktonSet/train/CLASS/*.jpg``, or the same within
    ``PlanktonSet/ndsb_train_gray.zip``, in ``root`` or ``$PSTN_DATA`` and in the cache: 30,336 images of 121 classes.
    The labels of the competition's test images were never published, so a test set is to be split off. Images keep
    their shape, are resized smoothly to the frame's size, larger or smaller, and lie in its centre; the background, in
    the files white, is 0. Needs Pillow.

    Arguments:
        root: The folder of all data sets.
        size: The side of the frame; at 192, all images are 4.5 GB.
        per_class: The first so many of each class; all by default.

    References:
        R. K. Cowen, S. Sponaugle, K. Robinson and J. Luo, PlanktonSet 1.0, 2015.
    """
    found = find_plankton(root)
    if found is None:
        looked = " or ".join(str(place / FOLDER) for place in roots(root))
        raise FileNotFoundError(
            f"PlanktonSet is not at hand: looked for train or {ARCHIVE} in {looked}; it is {ORIGIN}"
        )
    top = _opened(found)
    folders = [entry for entry in top.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    folders.sort(key=lambda folder: folder.name)
    endings = _pillow().registered_extensions()
    files: list[tuple[Any, int]] = []
    for label, folder in enumerate(folders):
        images = [file for file in _files(folder) if Path(file.name).suffix.lower() in endings]
        files += [(file, label) for file in images[:per_class]]
    if not files:
        raise ValueError(f"{top} holds no images; expected a folder a class: {ORIGIN}")
    x = torch.zeros(len(files), 1, size, size)
    for row, (file, _) in zip(x, files, strict=True):
        framed(file, row)
    return Data(x, torch.tensor([label for _, label in files]), tuple(f.name for f in folders), "PlanktonSet")


def _opened(path: Path) -> Any:
    """The folder of the classes' folders, which may be within an archive."""
    if path.is_dir():
        return path
    try:
        return zipfile.Path(path, "train/")
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not a zip archive ({error}); fetch it again") from error


def framed(file: Any, out: Float[Tensor, "1 n n"]) -> None:
    """Write an image into the centre of a square frame of zeros, black and white exchanged."""
    pillow = _pillow()
    try:
        with file.open("rb") as stream, pillow.open(stream) as opened:
            image = opened.convert("L")
    except BROKEN as error:
        raise ValueError(f"{file} cannot be read as an image: {error}") from error
    size = out.shape[-1]
    ratio = size / max(image.size)
    width, height = (max(1, round(ratio * n)) for n in image.size)
    image = image.resize((width, height), pillow.Resampling.BILINEAR)
    left, top = (size - width) // 2, (size - height) // 2
    out[0, top : top + height, left : left + width] = 1 - torch.from_numpy(np.array(image, dtype=np.float32)) / 255


class Drift(Move):
    r"""Plankton turned, sheared, scaled, shifted and mirrored at random, then at half the size: 192 to 95 pixels.

    The angle is :math:`\sim U(-180°, 180°)`, the shear's :math:`\sim U(-20°, 20°)`, either shift
    :math:`\sim U(-20, 20)` pixels; the scale is uniform in its logarithm from 1/1.3 to 1.3; one in two is mirrored.

    Convention: the pose is that of :class:`pstn.families.Affine` (as a matrix less the identity) which shows the
    picture as it was, mirrored back; the picture was warped by its inverse.

    Arguments:
        side: The side of the pictures, in pixels.
        size: The side of what comes out; a pixel is the mean of as many points as it stands for pixels.
        angle: The largest angle, in radians.
        shift: The largest shift, in pixels.
        shear: The largest angle of shear, in radians.
        scale: The largest scale.
        mirror: Whether to mirror one in two.

    References:
        Finnveden et al., ICPR 2020, after J. Burms et al., Classifying plankton with deep neural networks, 2015

    Example:
        >>> Drift()(torch.rand(2, 1, 192, 192)).shape
        torch.Size([2, 1, 95, 95])
    """

    identity: Tensor

    def __init__(
        self,
        side: int = 192,
        size: int = 95,
        *,
        angle: float = math.pi,
        shift: float = 20.0,
        shear: float = math.radians(20),
        scale: float = 1.3,
        mirror: bool = True,
    ) -> None:
        super().__init__()
        if side < 1 or size < 1 or min(angle, shift, shear) < 0 or shear >= math.pi / 2 or scale < 1:
            raise ValueError(
                f"sides {side} and {size}, angle {angle}, shift {shift}, shear {shear} and scale {scale}; expected "
                "positive sides, limits of at least 0, a shear below a right angle and a scale of at least 1"
            )
        self.family = Affine(scale="linear")
        self.register_buffer("identity", torch.tensor([1.0, 0, 0, 1, 0, 0]), persistent=False)
        self.side, self.size, self.mirror = side, size, mirror
        self.angle, self.shift, self.shear, self.scale = angle, shift, shear, scale

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b 6"]:
        """Random poses, (count, 6)."""
        numbers = drawn("uniform", (count, 6), device, generator)
        turn, shear, size, x, y = (2 * numbers[:, :5] - 1).unbind(1)
        flip = 1 - 2 * (self.mirror * (numbers[:, 5] < 0.5)).to(numbers)
        turn, lean, scale = self.angle * turn, (self.shear * shear).tan(), self.scale**size
        cos, sin, reach = turn.cos(), turn.sin(), 2 * self.shift / self.side
        # Turned, leaning, scaled and mirrored, from right to left: where the upright picture's points are now.
        rows = [scale * flip * cos, scale * (lean * cos - sin), scale * flip * sin, scale * (lean * sin + cos)]
        matrix = torch.stack([*rows, reach * x, reach * y], dim=1)
        return matrix - self.identity.to(matrix)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b 6"]) -> Float[Tensor, "b c n n"]:
        """The pictures, drifted and shrunk."""
        a, b, c, d, s, t = (pose + self.identity.to(pose)).unbind(1)
        inverse = torch.stack([d, -b, -c, a, b * t - d * s, c * s - a * t], dim=1) / (a * d - b * c)[:, None]
        fine = max(1, round(self.side / self.size))  # points along each side of a pixel
        looked = warp(x, self.family, inverse - self.identity.to(pose), size=(fine * self.size,) * 2)
        return F.avg_pool2d(looked, fine) if fine > 1 else looked

    def still(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c n n"]:
        """The pictures as they are, shrunk in the same way: what a network is tested on."""
        return self.move(x, self.family.zeros(len(x), device=x.device, dtype=x.dtype))

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"{self.side} → {self.size}, angle={self.angle}, shift={self.shift}, scale={self.scale}"
