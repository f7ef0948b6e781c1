"""Traffic signs, and networks that must find a sign for a classifier that knows signs from their boxes only.

Mapillary's photographs need the publisher's files. German signs pasted on clutter stand in for them: the same
experiment, small enough to be run anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from pstn import STN, Affine, Point, Similarity, StudentT, nets, warp
from pstn.data import Boxed, Data, Normalise, gtsrb, mtsd, on_clutter
from pstn.data.files import roots
from pstn.data.gtsrb import FILE, find_gtsrb, most_common, of_classes
from pstn.data.gtsrb import ORIGIN as SIGNS
from pstn.data.mtsd import ORIGIN as PHOTOGRAPHS
from pstn.data.mtsd import find_mtsd
from pstn.experiment import Split
from pstn.experiment.row import Slice
from pstn.posterior import Posterior
from pstn.train import Train

#: ImageNet's, whose weights the networks for photographs start from. The fill, 0, is the mean colour.
NORMALISE = Normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CLASSES, MARGIN = 10, 150.0
#: Photographs as the localizer, the classifier, and the warp's source see them.
SEEN, SOURCE = 224, 448
#: The same of the pasted signs; the localizer sees the source.
CROP, CANVAS = 32, 64
WEIGHTS = Path("ImageNet") / "resnet18-f37072fd.pth"
#: For German signs, a spread to look around with.
LOOK = 0.1
#: softplus(-20) is where the paper's code lets β start.
SPREAD = 4.54e-5
TRAIN = Train(
    epochs=60, batch_size=10, drop_last=True, lr=1e-4, localizer_lr=1.0, schedule="step", step_size=20, samples=10,
    kl_weight=1e-7, seed=42,
)  # fmt: skip
#: Without ImageNet's weights to start from, classifiers learn faster; the localizer's rate is the paper's.
SMALL = replace(TRAIN, lr=1e-3, localizer_lr=0.1)

#: Loose boxes: how many times as wide as the sign, and how much wider a crop to draw them in is.
LOOSE, ROOM = (0.8, 2.5), 4

View = Literal["whole", "box", "loose"]


@cache
def _photographs(view: View, size: int) -> tuple[Data, Data]:
    train, test = (
        mtsd(split, view="margin" if view == "whole" else "box", size=size, margin=MARGIN, classes=CLASSES)[0]
        for split in ("train", "val")
    )
    return train.normalised(NORMALISE), test.normalised(NORMALISE)


@dataclass(frozen=True)
class Photographs:
    """Mapillary's lone signs of the ten most common classes, with margin or without; its validation split tests."""

    view: View = "whole"
    size: int = SEEN

    def __call__(self, fold: int) -> Split:
        train, test = _photographs(self.view, self.size)
        return Split(train, None, test)


@cache
def _pasted(fold: int) -> tuple[Boxed, Boxed, Boxed]:
    """Canvases to train on, of every tenth track, and of the test images."""
    whole, test = gtsrb("train"), gtsrb("test")
    classes = most_common(whole.data, CLASSES)
    whole, test = of_classes(whole, classes), of_classes(test, classes)
    held = whole.tracks % 10 == 9
    parts = (whole.subset(_shuffled(~held)), whole.subset(_shuffled(held)), test.subset(_shuffled(test.tracks >= 0)))
    seeds = (1000 + fold, 1, 2)
    made = [on_clutter(part, size=CANVAS, seed=seed) for part, seed in zip(parts, seeds, strict=True)]
    return made[0], made[1], made[2]


def _shuffled(mask: Tensor) -> Tensor:
    """Where a mask is true, in an order that does not follow the classes as the file does: a slice has some of each."""
    found = mask.nonzero().squeeze(1)
    return found[torch.randperm(len(found), generator=torch.Generator().manual_seed(0))]


@dataclass(frozen=True)
class Pasted:
    """German signs of the ten most common classes on clutter, whole canvases or what is in the boxes.

    Of loose boxes, training has crops with room around to draw them in. The training canvases of folds differ in places
    and clutter; the validation's tracks are none of the training's.
    """

    view: View = "whole"

    def __call__(self, fold: int) -> Split:
        whole = _pasted(fold)
        parts = [part.data if self.view == "whole" else part.crops(CROP) for part in whole]
        if self.view == "loose":
            parts[0] = whole[0].crops(ROOM * CROP, room=ROOM)
        train, validation, test = (part.normalised(NORMALISE) for part in parts)
        return Split(train, validation, test)


class Loosen(nn.Module):
    """Boxes that are not quite right, drawn anew at every step: of any width in LOOSE, with half of the sign or more.

    A classifier that has seen signs only as their boxes show them knows few of them a little aside, and none in boxes
    twice as wide: there is then nothing for a transformer to follow.
    """

    def __init__(self) -> None:
        super().__init__()
        self.family = Affine(scale="linear")

    def forward(self, x: Tensor) -> Tensor:
        """Views of CROP × CROP pixels of crops with room."""
        numbers = torch.rand(len(x), 3, device=x.device)
        low, high = LOOSE
        width = low * (high / low) ** numbers[:, :1]
        aside = (2 * numbers[:, 1:] - 1) * (1 - 0.5 / width).clamp(min=0.5) * width / ROOM
        zoom, none = width / ROOM - 1, torch.zeros_like(width)
        return warp(x, self.family, torch.cat([zoom, none, none, zoom, aside], 1), size=(CROP, CROP))


def no_photographs() -> str | None:
    """What Mapillary's rows lack."""
    if find_mtsd() is None:
        return f"MTSD/annotations, MTSD/images and MTSD/splits: {PHOTOGRAPHS}"
    return None if _weights() else f"{WEIGHTS} from https://download.pytorch.org/models/{WEIGHTS.name}"


def no_signs() -> str | None:
    """What the German rows lack."""
    return None if find_gtsrb() else f"{FILE}, {SIGNS}"


def large_cnn() -> STN:
    """ResNet-18, 11,181,642 parameters, from ImageNet's weights where they are at hand."""
    return STN(nets.resnet18(CLASSES, weights=_weights()))


def large_stn(pretrained: STN, posterior: Posterior = Point()) -> STN:  # noqa: B008 - frozen
    """A second ResNet-18 that finds the sign; it sees every other pixel's mean of the source."""
    features = nets.resnet18(weights=_weights())
    localizer = nets.Localizer(nn.AvgPool2d(SOURCE // SEEN), features, out_features=features.out_features)
    return STN(pretrained.body, localizer, Similarity(), posterior, size=(SEEN, SEEN), frozen=True)


def large_pstn(pretrained: STN) -> STN:
    """The same with a Student-t of two degrees of freedom."""
    return large_stn(pretrained, StudentT(spread=SPREAD))


def small_cnn() -> STN:
    """ResNet-18 of a quarter of the width, 701,466 parameters."""
    return STN(nets.resnet18(CLASSES, width=16, small=True))


def small_stn(pretrained: STN, posterior: Posterior = Point()) -> STN:  # noqa: B008 - frozen
    """Another such network that finds the sign; it sees the whole canvas."""
    localizer = nets.resnet18(width=16, small=True)
    return STN(pretrained.body, localizer, Similarity(), posterior, size=(CROP, CROP), frozen=True)


def small_pstn(pretrained: STN, spread: float = SPREAD) -> STN:
    """The same with a Student-t of two degrees of freedom."""
    return small_stn(pretrained, StudentT(spread=spread))


def quick(data: Pasted) -> dict:
    """A quick look at the German signs."""
    return {"train": replace(SMALL, steps=20, samples=2), "folds": 1, "data": Slice(data, 100, 100)}


def _weights() -> Path | None:
    return next((place / WEIGHTS for place in roots() if (place / WEIGHTS).is_file()), None)
