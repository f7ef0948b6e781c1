"""Reading the data that somebody has: what kind it is, what it holds, and the same again for new files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pstn.apply import tables
from pstn.data import Data, from_arrays, read_folder, read_image, read_npz
from pstn.data.folder import _files, opaque
from pstn.data.npz import read_arrays
from pstn.data.series import Cases, assemble
from pstn.data.ts import parse_ts
from pstn.grid import resized
from pstn.recipe import SCENE, seen_size

#: Images are brought to at most so many pixels a side, series to so many points, unless a size is asked for.
PIXELS, POINTS = 64, 256
SHEETS = (".csv", ".tsv", ".txt")
#: How series are read: gaps filled, and in double until they are normalised.
_SERIES: dict[str, Any] = {"missing": "interpolate", "double": True}
#: A folder within the folder that holds the images to train on, and those that may hold others.
TRAIN, VALIDATION = "train", ("validation", "valid", "val")
#: Where several parts are, which to measure on: the first that there is.
MEASURED = ("test", *VALIDATION, TRAIN)


@dataclass(frozen=True)
class Source:
    """Data as it was read.

    Arguments:
        data: The examples, not normalised: series in float64, to keep small changes of large numbers until they are.
        validation: Those that were set apart by whoever made the data; None where there are none.
        how: What it takes to read more like them: kind, size, colour, label.
        remarks: What was done to them, a sentence each.
    """

    data: Data
    validation: Data | None = None
    how: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read(
    path: Path,
    *,
    size: int | None = None,
    label: str | None = None,
    classes: Sequence[str] = (),
    layout: str | None = None,
) -> Source:
    """Labelled data to train on: a folder of folders of images, npz, csv, tsv, txt or ts.

    Arguments:
        path: The folder or the file.
        size: The height and width of images, or the points of series; found by itself by default.
        label: The column of labels in a csv or tsv file.
        classes: The classes to keep, in this order; all by default.
        layout: The order of the axes in an npz file.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    ending = _ending(path)
    if path.is_dir():
        source = _read_images(path, size)
    elif ending == ".npz":
        source = _read_npz(path, size, layout)
    elif ending == ".ts" or ending in SHEETS:
        source = _read_series(path, size, label)
    else:
        raise ValueError(f"{path} is no folder of images and no npz, csv, tsv, txt or ts file")
    if classes:
        unknown = [name for name in classes if name not in source.data.classes]
        if unknown:
            raise ValueError(f"{source.data.name} has the classes {_list(source.data.classes)}; not {_list(unknown)}")
        other = None if source.validation is None else only(source.validation, classes)
        source = replace(source, data=only(source.data, classes), validation=other)
    source.data.check_trainable()
    return source


def read_again(path: Path, how: Mapping[str, Any], shape: Sequence[int], classes: Sequence[str]) -> Data:
    """Labelled data like that a model was trained on, in the model's shape, its classes in the model's order.

    Examples of other classes are left out, and the name of the data says so.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        _check_pictures(path, how, shape)
        parts = [path / name for name in MEASURED if (path / name).is_dir()] if is_nested(path) else [path]
        name = path.name if parts[0] == path else f"{path.name} {parts[0].name}"
        return _known(read_folder(parts[0], size=(shape[1], shape[2]), colour=shape[0] == 3, name=name), classes)
    if _ending(path) == ".npz":
        found = read_arrays(path)
        split = next((name for name in MEASURED if "x" not in found and f"x_{name}" in found), None)
        x = found.get(f"x_{split}" if split else "x", np.empty(0))
        data = read_npz(path, split, layout=_layout(x, how), **_SERIES)
        return _known(replace(data, x=_fitted(data.x, how, shape, path)), classes)
    _check_kind(path, how, "series")
    cases = parse_ts(path) if _ending(path) == ".ts" else tables.labelled(path, how.get("label"))[0]
    data = assemble(cases, length=shape[1], name=_name(path), **_SERIES)
    return _known(replace(data, x=_fitted(data.x, how, shape, path)), classes)


def read_inputs(
    path: Path, how: Mapping[str, Any], shape: Sequence[int], classes: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """Inputs with or without labels: a name and (C, *space) in the model's shape, for each."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        found = _images(path)
        if not found:
            raise ValueError(f"{path} holds no images")
        for file in found:
            yield from read_inputs(file, how, shape, classes)
    elif _ending(path) == ".npz":
        arrays = read_arrays(path)
        x = arrays.get("x", arrays.get("x_test"))
        if x is None:
            raise ValueError(f"{path} has {', '.join(sorted(arrays)) or 'nothing'}; expected an array x")
        y = np.zeros(len(x), dtype=np.int64)
        data = from_arrays(x, y, layout=_layout(x, how), name=str(path), **_SERIES)
        yield from _numbered(path, _fitted(data.x, how, shape, path))
    elif _ending(path) == ".ts" or _ending(path) in SHEETS:
        _check_kind(path, how, "series")
        if _ending(path) == ".ts":
            series = parse_ts(path, labelled=False).series
        else:
            series = tables.unlabelled(path, str(how.get("label") or 0), classes, shape[1])
        cases = Cases(series, ["0"] * len(series), str(path))
        data = assemble(cases, length=shape[1], **_SERIES)
        yield from _numbered(path, _fitted(data.x, how, shape, path))
    else:
        _check_pictures(path, how, shape)
        yield str(path), read_image(path, size=(shape[1], shape[2]), colour=shape[0] == 3)


def only(data: Data, classes: Sequence[str]) -> Data:
    """The examples of the given classes, numbered in that order."""
    missing = [name for name in classes if name not in data.classes]
    extra = [name for name in data.classes if name not in classes]
    if len(set(classes)) < len(classes):
        raise ValueError(f"classes are {', '.join(classes)}; expected each once")
    if missing and len(missing) == len(classes):
        raise ValueError(f"{data.name} has the classes {_list(data.classes)}; expected some of {_list(classes)}")
    if tuple(classes) == data.classes:
        return data
    number = torch.tensor([classes.index(name) if name in classes else -1 for name in data.classes])
    y = number[data.y]
    if not (y >= 0).any():
        raise ValueError(f"{data.name} has no example of {_list(classes)}, only of {_list(extra)}")
    return Data(data.x[y >= 0], y[y >= 0], tuple(classes), data.name)


def _known(data: Data, classes: Sequence[str]) -> Data:
    kept, extra = only(data, classes), [name for name in data.classes if name not in classes]
    return kept.renamed(f"{data.name} without {_list(extra)}") if extra else kept


def _read_images(path: Path, size: int | None) -> Source:
    root, other = path, None
    if is_nested(path):
        root = path / TRAIN
        other = next((path / name for name in VALIDATION if (path / name).is_dir()), None)
    folders = sorted(one for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not folders:
        loose = any(file.suffix.lower() in _endings() for file in root.iterdir())
        what = "images, but no folders" if loose else "no folders"
        raise ValueError(f"{root} holds {what}; expected one folder of images a class, such as {root}/cat/1.png")
    if len(folders) == 1:
        inner = sum(one.is_dir() for one in folders[0].iterdir())
        deeper = f"; the classes may be in it: pstn fit {folders[0]}" if inner > 1 else ""
        raise ValueError(f"{root} holds one folder, {folders[0].name}; a classifier needs at least two classes{deeper}")
    odd = next((one for one in (path, *folders) if one.name != one.name.encode(errors="replace").decode()), None)
    if odd is not None:
        raise ValueError(f"the name of the folder {str(odd)!r} is not UTF-8; rename it: it becomes a name in the model")
    sizes, grey = _look([file for folder in folders for file in _images(folder)])
    if not sizes:
        raise ValueError(f"{root} holds folders, but no images in them")
    common, remarks = sizes.most_common(1)[0][0], []
    wanted = (size, size) if size else common if len(sizes) == 1 and max(common) <= PIXELS else _smaller(sizes)
    if len(sizes) > 1:
        (low, high) = (min(sizes, key=lambda s: s[0] * s[1]), max(sizes, key=lambda s: s[0] * s[1]))
        remarks.append(f"Sizes differ, from {low[0]}×{low[1]} to {high[0]}×{high[1]} pixels: all become the same.")
    if wanted != common or len(sizes) > 1:
        remarks.append(_brought(wanted))
    remarks.append("Grey, one channel." if grey else "Colour, three channels.")
    how = {"kind": "images", "colour": not grey}
    data = read_folder(root, size=wanted, colour=not grey, name=path.name)
    if other is not None:
        remarks.append(f"{other.name}/ is for validation.")
        held = read_folder(other, size=wanted, colour=not grey, classes=data.classes, name=f"{path.name} {other.name}")
        return Source(data, held, how, tuple(remarks))
    return Source(data, None, how, tuple(remarks))


def _read_npz(path: Path, size: int | None, layout: Any) -> Source:
    arrays = read_arrays(path)
    split = None if "x" in arrays or "x_train" not in arrays else "train"
    other = next((name for name in VALIDATION if f"x_{name}" in arrays), None)
    if ("x" if split is None else "x_train") not in arrays or ("y" if split is None else "y_train") not in arrays:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise ValueError(f"{path} has {found}; expected x and y, the examples and their labels, or x_train and y_train")
    shape = arrays["x" if split is None else "x_train"].shape
    if len(shape) > 4 or "D" in (layout or ""):
        raise ValueError(f"{path} has examples of shape {shape[1:]}, volumes; expected series or images")
    try:
        data = read_npz(path, split, layout=layout, name=_name(path), **_SERIES)
    except ValueError as error:  # the reader speaks of its arguments, and here they are options
        raise ValueError(str(error).replace("layout= one of", "with --layout, one of")) from error
    held = None if other is None else read_npz(path, other, layout=layout, **_SERIES)
    images = data.x.ndim == 4
    remarks = [f"x_{other} is for validation."] if other else []
    x = arrays["x" if split is None else "x_train"]
    if gaps := int(np.isnan(x).sum()) if x.dtype.kind == "f" else 0:
        remarks.append(f"{gaps} missing values are interpolated, but for those after a series's end.")
    if size is None and not images and data.x.shape[2] > POINTS:
        size = POINTS
    if size is not None and not images and data.x.shape[2] != size:
        remarks.append(_resampled(size))
    now = tuple(data.x.shape[2:])
    wanted = (size,) * len(now) if size is not None else seen_size(now)
    if images and wanted != now:
        remarks.append(_brought(wanted))
    if size is not None or wanted != now:
        data = replace(data, x=_resized(data.x, wanted))
        held = None if held is None else replace(held, x=_resized(held.x, wanted))
    if held is not None and held.x.shape[1:] != data.x.shape[1:]:
        raise ValueError(
            f"{path} has examples of shape {tuple(data.x.shape[1:])} to train on and {tuple(held.x.shape[1:])} in "
            f"x_{other}; expected one shape (--size asks for one)"
        )
    how: dict[str, Any] = {"kind": "images" if images else "series", "colour": data.x.shape[1] == 3}
    if layout is not None:
        how["layout"] = layout
    if images:
        how["values"] = [float(v) for v in torch.aminmax(data.x)]
    return Source(data, held, how, tuple(remarks))


def _read_series(path: Path, size: int | None, label: str | None) -> Source:
    how: dict[str, Any] = {"kind": "series"}
    remarks: list[str]
    if _ending(path) == ".ts":
        cases, remarks = parse_ts(path), []
    else:
        cases, how["label"], remarks = tables.labelled(path, label)
    different = len(set(cases.labels))
    if different > 2 and different > len(cases.labels) / 2:
        which = "" if _ending(path) == ".ts" else f" in column {how['label']!r} (--label NAME or NUMBER names another)"
        raise ValueError(
            f"{path} has {different} different labels in {len(cases.labels)} lines{which}; expected classes with two "
            "or more examples each"
        )
    lengths = {len(channel) for case in cases.series for channel in case}
    points = size or min(max(lengths), POINTS)
    if len(lengths) > 1:
        remarks.append(f"Lengths differ, from {min(lengths)} to {max(lengths)} points.")
    if lengths != {points}:
        remarks.append(_resampled(points))
    gaps = sum(int(np.isnan(channel).sum()) for case in cases.series for channel in case)
    if gaps:
        remarks.append(f"{gaps} missing values are interpolated.")
    data = assemble(cases, length=points, name=_name(path), **_SERIES)
    return Source(data, None, how, tuple(remarks))


def _brought(size: Sequence[int]) -> str:
    return f"Resized to {size[0]}×{size[1]} pixels; --size asks for another size."


def _resampled(points: int) -> str:
    return f"Resampled to {points} points; --size asks for another number."


def _images(folder: Path) -> list[Path]:
    """The images in a folder and the folders within it, hidden ones left out."""
    endings = _endings()
    return [file for file in _files(folder) if file.suffix.lower() in endings]


def _look(files: Sequence[Path]) -> tuple[Counter[tuple[int, int]], bool]:
    """How often each size (height, width) occurs among images held upright, and whether all are grey."""
    from PIL import ExifTags, Image

    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for file in files:
        try:
            with Image.open(file) as image:
                turned = image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)  # it is read upright
                sizes[image.size if turned else image.size[::-1]] += 1
                plain = image.mode in ("1", "L", "LA", "I", "I;16", "I;16B")
                if grey and not plain:
                    red, green, blue = (np.asarray(c) for c in opaque(image).convert("RGB").split())
                    grey = bool((red == green).all() and (green == blue).all())
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{file} cannot be read as an image: {error}; remove it or restore it") from error
    return sizes, grey


def _smaller(sizes: Counter[tuple[int, int]]) -> tuple[int, int]:
    """The median height and width, at most :data:`PIXELS`, of whole multiples of four; strips keep their short side."""
    height, width = (float(np.median([s[i] for s in sizes.elements()])) for i in (0, 1))
    factor = min(1.0, PIXELS / max(height, width))
    high, wide = (max(8, 4 * round(max(side * factor, min(side, SCENE)) / 4)) for side in (height, width))
    return high, wide


def _layout(x: np.ndarray, how: Mapping[str, Any]) -> Any:
    """The order of the axes, if it was given in training; three axes are grey images to a model of images."""
    return how.get("layout") or ("NHW" if how["kind"] == "images" and x.ndim == 3 else None)


def _fitted(x: Tensor, how: Mapping[str, Any], shape: Sequence[int], path: Path) -> Tensor:
    if x.ndim - 1 != len(shape) or x.shape[1] != shape[0]:
        kind = "images (channels, height, width)" if how["kind"] == "images" else "series (channels, points)"
        raise ValueError(f"{path} has examples of shape {tuple(x.shape[1:])}; the model takes {kind} {tuple(shape)}")
    return x if x.shape[1:] == torch.Size(shape) else _resized(x, shape[1:])


def _resized(x: Tensor, size: Sequence[int]) -> Tensor:
    if x.ndim == 3:
        return resized(x, size)
    if x.ndim == 4:
        return F.interpolate(x, list(size), mode="bilinear", align_corners=False, antialias=True)
    raise ValueError(f"examples have shape {tuple(x.shape[1:])}; expected series or images")


def _numbered(path: Path, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    return ((f"{path}:{i}", one) for i, one in enumerate(x))


def _check_kind(path: Path, how: Mapping[str, Any], kind: str) -> None:
    if how["kind"] != kind:
        wanted = "npz, csv, tsv or ts files" if how["kind"] == "series" else "images, or npz files of them"
        raise ValueError(f"{path} holds no {how['kind']}, and the model was trained on {how['kind']}: give it {wanted}")


def _check_pictures(path: Path, how: Mapping[str, Any], shape: Sequence[int]) -> None:
    _check_kind(path, how, "images")
    if shape[0] not in (1, 3):
        raise ValueError(f"{path} is grey or coloured; the model takes {shape[0]} channels: give it npz files")
    if scale := other_scale(how):
        raise ValueError(f"{path} would be read as {scale}: give it npz files")


def other_scale(how: Mapping[str, Any]) -> str:
    """In words, that a model was trained on other values than files of images are read as; nothing if it was not."""
    low, high = how.get("values", (0, 1))
    same = low > -0.1 and high < 1.1
    return "" if same else f"values from 0 to 1, and the model was trained on values from {low:g} to {high:g}"


def is_nested(path: Path) -> bool:
    """Whether a folder has its classes' folders within train/."""
    inner = path / TRAIN
    return inner.is_dir() and any(one.is_dir() and not one.name.startswith(".") for one in inner.iterdir())


def _ending(path: Path) -> str:
    """The ending, without that of a packed file."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _name(path: Path) -> str:
    """The file's name without its endings."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def _endings() -> set[str]:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images need Pillow: pip install 'pstn[images]'") from error
    return set(Image.registered_extensions())


def _list(names: Sequence[str]) -> str:
    return ", ".join([*names[:8], *["..."] * (len(names) > 8)])
