"""P-STN 2020 (preprint), Table 4: CelebA's forty attributes, a network each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from torch import Tensor

from pstn import STN, Affine, Gaussian, Point, nets
from pstn.data import celeba, celeba_images
from pstn.data.celeba import ATTRIBUTES, FOLDER, IMAGES, ORIGIN, PARTITION, celeba_attributes, find_celeba
from pstn.experiment import Claim, Experiment, Split, Table
from pstn.posterior import Posterior
from pstn.train import Train

SHAPE, CHANNELS, COUNT = (3, 64, 64), (10, 20, 40), 40
TRAIN = Train(
    epochs=10, batch_size=256, drop_last=True, optimizer="sgd", lr=0.1, localizer_lr=0.1, momentum=0.9,
    weight_decay=1e-5, schedule="step", step_size=3, samples=2, kl_per="input", seed=0,
)  # fmt: skip


@cache
def _images(split: str, count: int | None) -> Tensor:
    return celeba_images(split, size=SHAPE[1:], count=count)


@cache
def _attribute(fold: int, count: int | None) -> Split:
    name = celeba_attributes("train", count=1)[0][fold]
    parts = [celeba(name, split, images=_images(split, count)) for split in ("train", "valid", "test")]
    return Split(parts[0], parts[1], parts[2])


@dataclass(frozen=True)
class Faces:
    """A fold is an attribute: all faces with it as their label. The images are the same and loaded once."""

    count: int | None = None

    def __call__(self, fold: int) -> Split:
        return _attribute(fold, self.count)


def missing() -> str | None:
    """What the table lacks."""
    return None if find_celeba() else f"{FOLDER}/{IMAGES}, {ATTRIBUTES} and {PARTITION}: {ORIGIN}"


def cnn() -> STN:
    """154,422 parameters."""
    return STN(nets.classifier(SHAPE, 2, channels=CHANNELS, hidden=200, channel_dropout=0.5))


def stn(posterior: Posterior = Point(hidden=(100,))) -> STN:  # noqa: B008 - frozen
    """223,560 parameters; with four of θ instead of six, the 223,358 of the authors' later code."""
    localizer = nets.features(SHAPE, channels=(8, 16, 32), kernel=(7, 5, 5))
    return STN(cnn().body, localizer, Affine(scale="linear"), posterior)


def pstn(prior_scale: float) -> STN:
    """275,466 parameters."""
    return stn(Gaussian(prior_scale, hidden=(100,), image_noise=1e-5))


def row(name: str, label: str, model: object, accuracy: float, nll: float, **options: object) -> Experiment:
    """A row with the paper's means over the attributes; it gives no deviations."""
    paper: Mapping[str, tuple[float, float]] = {"accuracy": (accuracy, math.nan), "nll": (nll, math.nan)}
    quick = {"data": Faces(200), "train": replace(TRAIN, steps=10, batch_size=32), "folds": 2}
    return Experiment(name, Faces(), model, TRAIN, label, folds=COUNT, tuning_folds=1, paper=paper, missing=missing,
                      quick=quick, **options)  # fmt: skip


TABLE = Table(
    "pstn20/table4",
    "P-STN 2020, Table 4: CelebA's attributes",
    [
        row("cnn", "CNN", cnn, 0.878267, 0.277425),
        row("stn", "STN", stn, 0.893260, 0.240676),
        row("pstn", "P-STN", pstn, 0.894331, 0.240999, grid={"prior_scale": (0.1,)}),
    ],
    claims=[Claim(f"P-STN beats {name}", "pstn", name.lower()) for name in ("CNN", "STN")],
    fleet=COUNT,
    note="Mean and deviation over the forty attributes, a network each. Faces are resized to 64×64; the authors' later "
    "code warps them at their own size.",
)
