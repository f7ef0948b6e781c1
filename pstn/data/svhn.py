"""Street View house numbers, format 1: whole numbers in photographs, from the publisher's own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pstn.data.base import Data
from pstn.data.files import StrPath, roots
from pstn.data.folder import _pillow
from pstn.data.normalise import Normalise
from pstn.grid import check_choice

SvhnSplit = Literal["train", "test", "extra"]

FOLDER, STRUCT = "SVHN", "digitStruct.mat"
ORIGIN = "format 1 of http://ufldl.stanford.edu/housenumbers, train.tar.gz, test.tar.gz and extra.tar.gz, unpacked"
#: A number has up to five digits; the eleventh class of each place is that there is none.
PLACES, NONE = 5, 10
_FIELDS = ("label", "left", "top", "width", "height")


@dataclass(frozen=True, eq=False, repr=False)
class Numbers(Data):
    """House numbers: five labels an image, the digits from left to right and then "none".

    Arguments:
        x: The images, (N, 3, size, size).
        y: The digits, (N, 5), from 0 to 10.
        classes: The digits' names.
        name: What to call the set.
    """

    y: Int64[Tensor, "n places"]

    def __post_init__(self) -> None:
        # Everything that holds of one label holds of each place.
        for place in self.y.unbind(1) if self.y.ndim == 2 else [self.y]:
            Data(self.x, place.contiguous(), self.classes, self.name)
        if self.y.ndim != 2:
            raise ValueError(f"y has shape {tuple(self.y.shape)}; {len(self.x)} numbers need ({len(self.x)}, places)")

    @property
    def counts(self) -> tuple[int, ...]:
        """How often each class occurs, over all places."""
        return tuple(torch.bincount(self.y.flatten(), minlength=self.num_classes).tolist())

    def split(self, parts: Sequence[float] | Sequence[int], seed: int = 0) -> tuple[Data, ...]:
        """Disjoint random parts that hold numbers of each length in the same proportions; see :meth:`Data.split`."""
        index = torch.arange(len(self), device=self.x.device)
        lengths = (self.y != NONE).sum(1)
        names = tuple(map(str, range(PLACES + 1)))
        by_length = Data(index.float().reshape(-1, 1, 1), lengths, names, self.name)
        return tuple(self.subset(part.x.flatten().long()) for part in by_length.split(parts, seed))

    def balanced_subset(self, per_class: int, seed: int = 0) -> Data:
        """Not for numbers, which have a class at every place."""
        raise TypeError("house numbers have a class at every place; there is no balanced subset: use split(...)")


@dataclass(frozen=True)
class Photograph:
    """A photograph of a house number.

    Arguments:
        file: Its name.
        digits: The digits from left to right.
        boxes: Left, top, width and height of each, in pixels.
    """

    file: str
    digits: tuple[int, ...]
    boxes: tuple[tuple[float, float, float, float], ...]

    def window(self, growth: float = 0.3) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the box around all digits, widened by a share of its size in all.

        Example:
            >>> Photograph("1.png", (4, 2), ((10.0, 20.0, 5.0, 10.0), (15.0, 20.0, 5.0, 10.0))).window()
            (8.5, 18.5, 21.5, 31.5)
        """
        left, top = (min(box[axis] for box in self.boxes) for axis in (0, 1))
        right, bottom = (max(box[axis] + box[axis + 2] for box in self.boxes) for axis in (0, 1))
        across, down = growth * (right - left) / 2, growth * (bottom - top) / 2
        return left - across, top - down, right + across, bottom + down


def find_svhn(split: SvhnSplit, root: StrPath | None = None) -> Path | None:
    """The folder of a split with its ``digitStruct.mat``, if it is at hand."""
    check_choice("split", split, get_args(SvhnSplit))
    folders = [place / FOLDER / split for place in roots(root)]
    return next((folder for folder in folders if (folder / STRUCT).is_file()), None)


def svhn_photographs(split: SvhnSplit = "train", root: StrPath | None = None) -> list[Photograph]:
    """What ``digitStruct.mat`` says of the photographs of a split. Needs h5py.

    The files are looked for as ``SVHN/train/digitStruct.mat`` beside ``SVHN/train/1.png`` and so on, in ``root`` or
    ``$PSTN_DATA`` and in the cache.

    Arguments:
        split: ``"train"``, ``"test"`` or ``"extra"``.
        root: The folder of all data sets.

    References:
        Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu and A. Y. Ng, Reading digits in natural images with
        unsupervised feature learning, 2011.
    """
    folder = _folder(split, root)
    try:
        h5py: Any = import_module("h5py")
    except ImportError as error:
        raise ImportError("reading digitStruct.mat needs h5py: pip install h5py") from error
    try:
        file = h5py.File(folder / STRUCT, "r")
    except OSError as error:
        raise ValueError(f"{folder / STRUCT} is not an HDF5 file ({error}); fetch it again") from error
    with file:
        return read_struct(file, str(folder / STRUCT))


def read_struct(file: Any, path: str = STRUCT) -> list[Photograph]:
    """The photographs in an open ``digitStruct.mat``.

    MATLAB keeps a structure of N entries as N references each for ``name`` and ``bbox``; a box's field is a number
    where there is one digit, and references to numbers where there are several. A zero has the label 10.

    Arguments:
        file: The file, as h5py opens it.
        path: What to call it in messages.
    """
    try:
        struct = file["digitStruct"]
        pairs = list(zip(struct["name"][:, 0], struct["bbox"][:, 0], strict=True))
        return [_photograph(file, name, box) for name, box in pairs]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a digitStruct of SVHN ({error!r}); expected names, and boxes with {', '.join(_FIELDS)}"
        ) from error


def svhn(
    split: SvhnSplit = "train",
    root: StrPath | None = None,
    *,
    size: int = 64,
    growth: float = 0.3,
    count: int | None = None,
) -> Numbers:
    """House numbers cut out with some of what is around them, (N, 3, size, size) from 0 to 1, five labels each.

    The box around all digits is widened by 30 % of its width and height in all, 15 % to each side, cut out as far as
    the photograph goes, and stretched to a square, as STN'15 does after its sources. Numbers of more than five digits
    (there is one, in training) are left out. Needs h5py and Pillow.

    Arguments:
        split: ``"train"`` (33,402), ``"test"`` (13,068) or ``"extra"`` (202,353).
        root: The folder of all data sets, as for :func:`svhn_photographs`.
        size: The side of the images: 64 for crops as in the papers; STN'15 has 128, too.
        growth: By which share of its size the box is widened.
        count: The first so many; all by default.

    References:
        I. Goodfellow, Y. Bulatov, J. Ibarz, S. Arnoud and V. Shet, Multi-digit number recognition from street view
        imagery, 2013; Jaderberg et al., Spatial Transformer Networks, 2015.
    """
    folder = _folder(split, root)
    photographs = [p for p in svhn_photographs(split, root) if 0 < len(p.digits) <= PLACES][:count]
    if not photographs:
        raise ValueError(f"{folder / STRUCT} has no number of 1 to {PLACES} digits")
    x = torch.empty(len(photographs), 3, size, size)
    for row, photograph in zip(x, photographs, strict=True):
        row.copy_(_cut(folder / photograph.file, photograph.window(growth), size))
    return Numbers(x, labels([p.digits for p in photographs]), (*"0123456789", "none"), f"SVHN {split}")


def labels(numbers: Sequence[Sequence[int]]) -> Int64[Tensor, "n places"]:
    """Digits of each number, filled up with "none".

    Example:
        >>> labels([(4, 2), (1, 9, 0)])
        tensor([[ 4,  2, 10, 10, 10],
                [ 1,  9,  0, 10, 10]])
    """
    return torch.tensor([[*digits, *[NONE] * (PLACES - len(digits))] for digits in numbers])


def read_right(probs: Float[Tensor, "n places k"], y: Int64[Tensor, "n places"]) -> float:
    """The share of numbers that are read right in all places: one minus the papers' error.

    Example:
        >>> read_right(torch.eye(11)[labels([(4, 2), (1,)])], labels([(4, 2), (7,)]))
        0.5
    """
    return float((probs.argmax(-1) == y).all(1).double().mean())


def svhn_normalised(train: Numbers, *others: Numbers) -> tuple[Numbers, ...]:
    """All sets shifted and scaled so that each colour of the training images has mean 0 and deviation 1."""
    how = Normalise.of(train.x)
    return tuple(replace(data, x=how(data.x)) for data in (train, *others))


def _photograph(file: Any, name: Any, box: Any) -> Photograph:
    text = "".join(chr(int(code)) for code in np.asarray(file[name]).flatten())
    group: Mapping[str, Any] = file[box]
    columns: list[list[float]] = []
    for field in _FIELDS:
        values = np.asarray(group[field]).reshape(-1)
        numbers = [np.asarray(file[value]).item() for value in values] if len(values) > 1 else [values.item()]
        columns.append([float(number) for number in numbers])
    places = sorted(zip(*columns, strict=True), key=lambda digit: digit[1])
    boxes = tuple((left, top, width, height) for _, left, top, width, height in places)
    return Photograph(text, tuple(int(digit[0]) % 10 for digit in places), boxes)


def _cut(path: Path, window: tuple[float, float, float, float], size: int) -> Tensor:
    """A window of a photograph, within its borders, as (3, size, size)."""
    pillow = _pillow()
    try:
        with pillow.open(path) as opened:
            image = opened.convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; {STRUCT} names it") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    left, top, right, bottom = window
    inside = (max(left, 0.0), max(top, 0.0), min(right, float(image.width)), min(bottom, float(image.height)))
    if inside[2] - inside[0] < 1 or inside[3] - inside[1] < 1:
        raise ValueError(f"{path} is {image.width}×{image.height}; its number is outside of it, at {window}")
    small = image.resize((size, size), pillow.Resampling.BILINEAR, box=inside)
    return torch.from_numpy(np.array(small, dtype=np.float32)).permute(2, 0, 1) / 255


def _folder(split: SvhnSplit, root: StrPath | None) -> Path:
    folder = find_svhn(split, root)
    if folder is None:
        looked = " or ".join(str(place / FOLDER / split / STRUCT) for place in roots(root))
        raise FileNotFoundError(f"SVHN {split} is not at hand: looked for {looked}; it is {ORIGIN}")
    return folder
