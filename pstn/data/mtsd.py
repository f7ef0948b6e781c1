"""Mapillary's traffic signs: photographs with one sign in view, from the publisher's own files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pstn.data.base import Data
from pstn.data.files import StrPath, roots
from pstn.data.folder import _pillow
from pstn.grid import check_choice

MtsdSplit = Literal["train", "val"]
View = Literal["margin", "box"]
#: (x1, y1, x2, y2) in pixels of a photograph.
Box = tuple[float, float, float, float]

FOLDER = "MTSD"
ORIGIN = "the fully annotated set of https://www.mapillary.com/dataset/trafficsign"
#: What the publisher calls signs that have no class of their own.
OTHER = "other-sign"


@dataclass(frozen=True)
class Sign:
    """A sign that stands alone.

    Arguments:
        key: The photograph.
        label: The sign's class, in the publisher's words.
        box: Where it is.
        view: The box with its margin, within the photograph.
    """

    key: str
    label: str
    box: Box
    view: Box

    @property
    def place(self) -> Box:
        """The box in normalised coordinates of the view, -1 to 1 at its edges."""
        x1, y1, x2, y2 = self.view
        found = [2 * (v - a) / (b - a) - 1 for v, a, b in zip(self.box, (x1, y1) * 2, (x2, y2) * 2, strict=True)]
        return found[0], found[1], found[2], found[3]


def find_mtsd(root: StrPath | None = None) -> Path | None:
    """The folder with ``annotations``, ``images`` and ``splits``, if it is at hand."""
    parts = ("annotations", "images", "splits")
    return next((p / FOLDER for p in roots(root) if all((p / FOLDER / part).is_dir() for part in parts)), None)


def lone_signs(split: MtsdSplit = "train", root: StrPath | None = None, *, margin: float = 150.0) -> list[Sign]:
    """The signs of a split whose box, widened by a margin to each side, meets no other sign's box.

    The files are looked for as ``MTSD/annotations/*.json``, ``MTSD/images/*.jpg`` or ``MTSD/images/SPLIT/*.jpg``, and
    ``MTSD/splits/*.txt`` in ``root`` or ``$PSTN_DATA`` and in the cache. Every sign counts as another, of whatever
    class; one that a panorama's border cuts counts, but is not chosen, and neither are signs without a class of their
    own (``other-sign``). The publisher keeps the labels of its test split; the validation split is what can be tested
    on.

    Arguments:
        split: ``"train"`` or ``"val"``.
        root: The folder of all data sets.
        margin: In pixels.

    Returns:
        The signs, in the split's order.

    References:
        C. Ertler, J. Mislej, T. Ollmann, L. Porzi, G. Neuhold and Y. Kuang, The Mapillary traffic sign dataset for
        detection and classification on a global scale, ECCV 2020.
    """
    check_choice("split", split, get_args(MtsdSplit))
    folder = _folder(root)
    found: list[Sign] = []
    for key in (folder / "splits" / f"{split}.txt").read_text().split():
        path = folder / "annotations" / f"{key}.json"
        try:
            about = json.loads(path.read_text())
            width, height, objects = about["width"], about["height"], about["objects"]
            boxes, labels = [_boxes(each["bbox"], width) for each in objects], [each["label"] for each in objects]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not an annotation of MTSD ({error!r}); expected width, height and objects with their "
                "labels and boxes"
            ) from error
        for i, label in enumerate(labels):
            if len(boxes[i]) > 1 or label == OTHER:
                continue
            x1, y1, x2, y2 = box = boxes[i][0]
            wide = (x1 - margin, y1 - margin, x2 + margin, y2 + margin)
            if not any(_meet(wide, other) for j, parts in enumerate(boxes) if j != i for other in parts):
                view = (max(wide[0], 0.0), max(wide[1], 0.0), min(wide[2], float(width)), min(wide[3], float(height)))
                found.append(Sign(key, label, box, view))
    return found


def common_labels(signs: Sequence[Sign], count: int = 10) -> tuple[str, ...]:
    """The classes with the most signs, most first; of equals the first by the alphabet."""
    counts = Counter(sign.label for sign in signs)
    return tuple(sorted(counts, key=lambda label: (-counts[label], label))[:count])


def mtsd(
    split: MtsdSplit = "train",
    root: StrPath | None = None,
    *,
    view: View = "margin",
    size: int = 224,
    margin: float = 150.0,
    classes: Sequence[str] | int = 10,
) -> tuple[Data, Float[Tensor, "n 4"]]:
    """Lone traffic signs as square images (N, 3, size, size) from 0 to 1, and where the sign is in each.

    Convention: boxes are (x1, y1, x2, y2) in normalised coordinates, -1 to 1 at the image's outer edges. An image is
    the part of the photograph in view, within its borders, stretched to a square. Needs Pillow.

    Arguments:
        split: ``"train"`` or ``"val"``; see :func:`lone_signs`.
        root: The folder of all data sets.
        view: The sign with its ``"margin"``, or its ``"box"`` alone.
        size: The side of the images.
        margin: In pixels of the photograph.
        classes: The classes in order, or how many: then the most common of the training split.

    Returns:
        The images with their labels, and the boxes, (N, 4).
    """
    check_choice("view", view, get_args(View))
    signs = lone_signs(split, root, margin=margin)
    if isinstance(classes, int):
        known = signs if split == "train" else lone_signs("train", root, margin=margin)
        classes = common_labels(known, classes)
    number = {name: k for k, name in enumerate(classes)}
    signs = [sign for sign in signs if sign.label in number]
    if not signs:
        raise ValueError(f"MTSD {split} has no lone sign of the classes {tuple(classes)}")
    images = _folder(root) / "images"
    x = torch.empty(len(signs), 3, size, size)
    for row, sign in zip(x, signs, strict=True):
        apart = images / split / f"{sign.key}.jpg"  # as the publisher's README has it
        path = apart if apart.is_file() else images / apart.name
        row.copy_(_look(path, sign.view if view == "margin" else sign.box, size))
    y = torch.tensor([number[sign.label] for sign in signs])
    whole: Box = (-1.0, -1.0, 1.0, 1.0)
    places = torch.tensor([sign.place if view == "margin" else whole for sign in signs])
    return Data(x, y, tuple(classes), f"MTSD {split}, {view}"), places


def _folder(root: StrPath | None) -> Path:
    folder = find_mtsd(root)
    if folder is None:
        looked = " or ".join(str(place / FOLDER) for place in roots(root))
        raise FileNotFoundError(
            f"MTSD is not at hand: looked for {looked} with annotations, images and splits; it is {ORIGIN}"
        )
    return folder


def _boxes(box: dict[str, Any], width: float) -> list[Box]:
    """A box; both of its parts where it crosses the border of a panorama."""
    parts = box["cross_boundary"].values() if "cross_boundary" in box else [box]
    found = [(float(p["xmin"]), float(p["ymin"]), float(p["xmax"]), float(p["ymax"])) for p in parts]
    if len(found) == 1 and found[0][2] < found[0][0]:
        x1, y1, x2, y2 = found[0]
        return [(x1, y1, float(width), y2), (0.0, y1, x2, y2)]
    return found


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _look(path: Path, view: Box, size: int) -> Tensor:
    """A part of a photograph, stretched to a square, smoothly where it shrinks."""
    pillow = _pillow()
    try:
        with pillow.open(path) as image:
            seen = image.convert("RGB").resize((size, size), pillow.Resampling.BILINEAR, box=view)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; it is part of {ORIGIN}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read at {view}: {error}") from error
    return torch.from_numpy(np.array(seen, dtype=np.float32)).permute(2, 0, 1) / 255
