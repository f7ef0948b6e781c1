"""CelebA's faces and their forty attributes, from the publisher's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pstn.data.base import Data
from pstn.data.files import StrPath, roots
from pstn.data.folder import read_image
from pstn.grid import check_choice

CelebaSplit = Literal["train", "valid", "test"]

FOLDER = "CelebA"
IMAGES, ATTRIBUTES, PARTITION = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"
ORIGIN = "the aligned and cropped images of https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"


def find_celeba(root: StrPath | None = None) -> Path | None:
    """The folder with the images and the two lists, if it is at hand."""
    for place in roots(root):
        folder = place / FOLDER
        if (folder / IMAGES).is_dir() and (folder / ATTRIBUTES).is_file() and (folder / PARTITION).is_file():
            return folder
    return None


def celeba_attributes(
    split: CelebaSplit = "train", root: StrPath | None = None, *, count: int | None = None
) -> tuple[tuple[str, ...], tuple[str, ...], Bool[Tensor, "n a"]]:
    """The attributes' names, the files of a split, and which file has which attribute, (N, A).

    The files are looked for as ``CelebA/img_align_celeba/*.jpg``, ``CelebA/list_attr_celeba.txt`` and
    ``CelebA/list_eval_partition.txt`` in ``root`` or ``$PSTN_DATA`` and in the cache.

    Arguments:
        split: ``"train"``, ``"valid"`` or ``"test"``.
        root: The folder of all data sets.
        count: The first so many files of the split; all by default.

    References:
        Z. Liu, P. Luo, X. Wang and X. Tang, Deep learning face attributes in the wild, ICCV 2015.
    """
    check_choice("split", split, get_args(CelebaSplit))
    folder = _folder(root)
    path = folder / ATTRIBUTES
    lines = path.read_text().splitlines()
    names = tuple(lines[1].split()) if len(lines) > 1 else ()
    rows = [line.split() for line in lines[2:] if line.strip()]
    if not names or any(len(row) != 1 + len(names) or set(row[1:]) - {"1", "-1"} for row in rows):
        raise ValueError(f"{path} is no list of attributes; expected a count, the names, then a file and ±1 a line")
    values = {row[0]: row[1:] for row in rows}
    wanted = str(get_args(CelebaSplit).index(split))
    pairs = [line.split() for line in (folder / PARTITION).read_text().splitlines() if line.strip()]
    files = tuple(pair[0] for pair in pairs if pair[1:] == [wanted])[:count]
    unknown = [file for file in files if file not in values]
    if not files or unknown:
        raise ValueError(
            f"{folder / PARTITION} names {len(files)} files of {split}, {len(unknown)} of them without attributes; "
            "expected a file and 0, 1 or 2 a line, and the same files as the list of attributes"
        )
    table = np.array([values[file] for file in files]) == "1"
    return names, files, torch.from_numpy(table)


def celeba_images(
    split: CelebaSplit = "train",
    root: StrPath | None = None,
    *,
    size: int | tuple[int, int] = 64,
    count: int | None = None,
) -> Float[Tensor, "n 3 h w"]:
    """The faces of a split, (N, 3, H, W) from 0 to 1, in the order of :func:`celeba_attributes`. Needs Pillow.

    Arguments:
        split: ``"train"``, ``"valid"`` or ``"test"``.
        root: The folder of all data sets.
        size: The height and width after resizing, one number if they are equal; the files have 218×178.
        count: The first so many files of the split; all by default.
    """
    folder = _folder(root)
    _, files, _ = celeba_attributes(split, root, count=count)
    height, width = (size, size) if isinstance(size, int) else size
    x = torch.empty(len(files), 3, height, width)
    for row, file in zip(x, files, strict=True):
        row.copy_(read_image(folder / IMAGES / file, size=(height, width)))
    return x


def celeba(
    attribute: str,
    split: CelebaSplit = "train",
    root: StrPath | None = None,
    *,
    size: int | tuple[int, int] = 64,
    images: Float[Tensor, "n 3 h w"] | None = None,
) -> Data:
    """The faces of a split with one attribute as the label: 1 where a face has it.

    Arguments:
        attribute: The attribute, in the publisher's words, such as ``"Bald"``.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        root: The folder of all data sets.
        size: The images' height and width.
        images: What :func:`celeba_images` gave for the split, or for its first files; it is not copied.
    """
    names, files, table = celeba_attributes(split, root, count=None if images is None else len(images))
    if attribute not in names:
        raise ValueError(f"CelebA has no attribute {attribute!r}; it has {', '.join(names)}")
    x = celeba_images(split, root, size=size) if images is None else images
    if len(x) != len(files):
        raise ValueError(f"{len(x)} images are given; {split} has {len(files)} files")
    y = table[:, names.index(attribute)].long()
    return Data(x, y, (f"not {attribute}", attribute), f"CelebA {split}, {attribute}")


def _folder(root: StrPath | None) -> Path:
    folder = find_celeba(root)
    if folder is None:
        looked = " or ".join(str(place / FOLDER) for place in roots(root))
        raise FileNotFoundError(
            f"CelebA is not at hand: looked for {looked} with {IMAGES}, {ATTRIBUTES} and {PARTITION}; it is {ORIGIN}"
        )
    return folder
