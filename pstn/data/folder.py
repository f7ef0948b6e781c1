"""Images in folders, one folder a class."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pstn.data.base import Data
from pstn.data.files import StrPath

#: What a broken image surfaces as, or a broken archive that it is in.
BROKEN = (OSError, SyntaxError, ValueError, zipfile.BadZipFile, zlib.error)
_SIXTEEN_BITS = ("I", "I;16", "I;16L", "I;16B")


def read_folder(
    root: StrPath | zipfile.Path,
    *,
    size: int | tuple[int, int] | None = None,
    colour: bool = True,
    classes: Sequence[str] | None = None,
    name: str | None = None,
) -> Data:
    """Images in folders named after their classes, ``root/cat/1.png``, with values from 0 to 1.

    Folders within a class's folder belong to that class. Hidden files, files that are not images by their ending, and
    what lies beside the classes' folders are left out. Needs Pillow: ``pip install 'pstn[images]'``.

    Arguments:
        root: The folder of the classes' folders, or a ``zipfile.Path`` to one within an archive.
        size: Resize to this height and width (smoothly when shrinking); by default all images must have one size.
        colour: Three channels, or one.
        classes: The classes in order; by default the names of the folders by the alphabet.
        name: What to call the set; by default the folder's name.

    Returns:
        A data set (N, 3, H, W) or (N, 1, H, W).
    """
    top: Any = root if isinstance(root, zipfile.Path) else Path(root)
    if not top.is_dir():
        raise FileNotFoundError(f"{root} is not a folder; expected one that holds a folder of images a class")
    folders = {folder.name: folder for folder in top.iterdir() if folder.is_dir() and folder.name[0] != "."}
    names = tuple(sorted(folders)) if classes is None else tuple(classes)
    if not folders or set(folders) - set(names):
        raise ValueError(
            f"{root} holds the folders {sorted(folders)}; expected one a class" + (f": {list(names)}" if names else "")
        )
    endings = _pillow().registered_extensions()
    files: list[tuple[Any, int]] = []
    for label, folder_name in enumerate(names):
        if folder_name not in folders:
            continue
        found = [file for file in _files(folders[folder_name]) if Path(file.name).suffix.lower() in endings]
        if not found:
            raise ValueError(f"{folders[folder_name]} holds no images; remove it or fill it")
        files += [(file, label) for file in found]

    first = read_image(files[0][0], size=size, colour=colour)
    x = torch.empty(len(files), *first.shape)
    for row, (file, _) in zip(x, files, strict=True):
        image = read_image(file, size=size, colour=colour)
        if image.shape != first.shape:
            raise ValueError(
                f"{file} is {image.shape[1]} x {image.shape[2]} pixels and {files[0][0]} {first.shape[1]} x "
                f"{first.shape[2]}; expected one size: size=(height, width) resizes them"
            )
        row.copy_(image)
    return Data(x, torch.tensor([label for _, label in files]), names, name or top.name or "images")


def read_image(
    file: StrPath | zipfile.Path, *, size: int | tuple[int, int] | None = None, colour: bool = True
) -> Float[Tensor, "c h w"]:
    """One image, upright, on white where it is transparent, as (3, H, W) or (1, H, W) with values from 0 to 1.

    Arguments:
        file: The image, in any format that Pillow reads; 8 or 16 bits.
        size: Its height and width after resizing, one number if they are equal.
        colour: Three channels, or one.
    """
    pillow = _pillow()
    from PIL import ImageOps

    shape = (size, size) if isinstance(size, int) else size
    if shape is not None and min(shape) < 1:
        raise ValueError(f"size is {size}; expected a height and a width of at least one pixel")

    path: Any = file if isinstance(file, zipfile.Path) else Path(file)
    try:
        with path.open("rb") as stream, pillow.open(stream) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode == "F":  # Pillow would cut off what lies outside of 0 to 255, and round the rest
                raise ValueError("its pixels are floating-point numbers of no known range; expected 8 or 16 bits")
            if image.mode in _SIXTEEN_BITS:  # Pillow's own conversion to 8 bits would cut off everything above 255
                image = pillow.fromarray(np.asarray(image, dtype=np.float32) / 257)
            else:
                image = opaque(image).convert("RGB" if colour else "L")
            if shape is not None:
                image = image.resize(shape[::-1], pillow.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(image, dtype=np.float32)) / 255
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist") from None
    # Broken files surface as any of these, by format.
    except (*BROKEN, EOFError, IndexError, pillow.DecompressionBombError) as error:
        raise ValueError(f"{file} cannot be read as an image: {error}") from error
    channels = pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    return channels.expand(3 if colour else 1, -1, -1)


def opaque(image: Any) -> Any:
    """A Pillow image on white where it is transparent: what it hides there is not meant to be seen."""
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")
    return _pillow().alpha_composite(_pillow().new("RGBA", image.size, "white"), image)


def _files(folder: Any) -> Iterator[Any]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry)
        else:
            yield entry


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading images needs Pillow: pip install 'pstn[images]'") from error
    return Image
