"""STN'15, main paper, Table 3: birds, looked at by two or four transformers side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.signs import NORMALISE, WEIGHTS
from pstn import STN, nets
from pstn.data import Cut, Data, cub, ten_crops
from pstn.data.cub import FOLDER, ORIGIN, find_cub
from pstn.data.files import roots
from pstn.experiment import Claim, Experiment, Split, Table
from pstn.inference import predict
from pstn.metrics import summary
from pstn.train import Train

#: Of the training images, the share that settings are chosen on.
VALIDATION = 0.1
#: Shorter sides of the photographs and what is cut from them; the localizer sees 224 pixels of either.
CUTS = {224: 256, 448: 512}
#: The paper's accuracies: without transformers, and by how many of them look at how many pixels.
PAPER = {(0, 224): 0.823, (2, 224): 0.831, (2, 448): 0.839, (4, 448): 0.841}
#: The paper's localizers learn at 1e-4 of the rest. Its other settings are not known.
TRAIN = Train(
    epochs=60, batch_size=32, optimizer="sgd", momentum=0.9, lr=1e-2, localizer_lr=1e-4, weight_decay=1e-4,
    schedule="cosine", warmup=1.0, seed=42,
)  # fmt: skip
#: A forward pass of so many photographs, ten crops of each, when networks are measured.
SOME = 16


@dataclass(frozen=True)
class Birds:
    """Photographs with their shorter side resized: nine in ten training images, the others, and the test images."""

    side: int
    per: int = 0

    def __call__(self, fold: int) -> Split:
        return _birds(self)


@cache
def _birds(source: Birds) -> Split:
    parts = [cub(split, size=source.side, per=source.per) for split in ("train", "test")]  # type: ignore[arg-type]
    train, test = (part.normalised(NORMALISE) for part in parts)
    return Split(*train.split((1 - VALIDATION, VALIDATION), seed=42), test)


def missing() -> str | None:
    """Which file is not there."""
    if find_cub() is None:
        looked = " or ".join(str(place / FOLDER) for place in roots())
        return f"CUB-200-2011, looked for as {looked}: {ORIGIN}"
    return None if find_weights() else f"{WEIGHTS} from https://download.pytorch.org/models/{WEIGHTS.name}"


def find_weights() -> Path | None:
    """ImageNet's weights, if they are at hand."""
    return next((place / WEIGHTS for place in roots() if (place / WEIGHTS).is_file()), None)


class Trunk(nn.Module):
    """A residual network without its last pooling, 7×7 of 224 pixels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        network.mean, network.fc = nn.Identity(), nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """The features, (B, 8 · width, side, side)."""
        return self.network(x)


def network(looks: int, size: int, width: int = 64, classes: int = 200) -> STN:
    """ResNet-18, or so many crops of 224 pixels, each through one of its own; all from ImageNet's weights.

    Arguments:
        looks: How many transformers; 0 for none.
        size: The side of the input.
        width: Filters of the first layers. With fewer than 64 there are no weights to start from.
        classes: How many species.
    """
    backbone = partial(nets.resnet18, width=width, weights=find_weights() if width == 64 else None)
    features, crop = 8 * width, min(size, 224)
    if not looks:
        stream = backbone()
        return STN(nn.Sequential(stream, nn.Linear(features, classes)))
    shrink = size // crop
    return nets.attended(
        backbone(), Trunk(backbone()), features, features, classes=classes, parallel=looks, size=crop, shrink=shrink,
        side=-(-crop // 32),
    )  # fmt: skip


def ten_times(model: STN, data: Data, size: int) -> dict[str, Any]:
    """How well ten crops of each photograph classify it, their probabilities averaged."""
    probs = []
    for x in data.x.split(SOME):
        crops = ten_crops(x, size)
        each = predict(model, crops.flatten(0, 1), 1, batch_size=SOME).probs
        probs.append(each.unflatten(0, crops.shape[:2]).mean(0))
    return summary(torch.cat(probs), data.y)


def measured_224(model: STN, data: Data) -> dict[str, Any]:
    """Ten crops of 224 pixels."""
    return ten_times(model, data, 224)


def measured_448(model: STN, data: Data) -> dict[str, Any]:
    """Ten crops of 448 pixels."""
    return ten_times(model, data, 448)


def row(looks: int, size: int) -> Experiment:
    """A number of transformers on inputs of a size."""
    label = f"{looks}×ST-CNN {size} px" if looks else "CNN 224 px"
    side, train = CUTS[size], TRAIN
    model, measure = partial(network, looks, size), measured_448 if size == 448 else measured_224
    return Experiment(
        f"{looks}xst-{size}" if looks else "cnn", Birds(side), model, train, label=label, folds=1,
        augment=partial(Cut, side, size), measure=measure, missing=missing,
        paper={"accuracy": (PAPER[looks, size], float("nan"))}, tags={"looks": looks, "size": size},
        quick={"data": Birds(side, per=2), "train": replace(train, steps=2, batch_size=2)},
    )  # fmt: skip


TABLE = Table(
    "stn15/cub",
    "STN 2015, Table 3: birds",
    [row(looks, size) for looks, size in PAPER],
    metrics=("accuracy", "nll"),
    claims=[
        Claim("two transformers beat the CNN", "2xst-224", "cnn"),
        Claim("twice the resolution helps two transformers", "2xst-448", "2xst-224"),
        Claim("four transformers beat two", "4xst-448", "2xst-448"),
    ],
    note="The paper's networks are its own Inception with batch normalisation; these are ResNet-18 with ImageNet's "
    "weights, so that only the order of the rows compares. Predictions are averaged over ten crops. The "
    "longer side of a photograph is cut to the shorter one before.",
)  # fmt: skip
