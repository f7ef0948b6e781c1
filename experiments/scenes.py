"""Distorted pictures with the truth kept, and what is measured on them, for the tables of STN'15 and Placement'20."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pstn import STN
from pstn.data import Data, addition, fashion_mnist, kmnist, mnist, scene
from pstn.data.moved import Moved
from pstn.experiment import Experiment, Split, classified, listed
from pstn.experiment.row import BATCH, Column
from pstn.families.affine import MatrixFamily
from pstn.pose import Measure, final_pose, orthogonal_line, pixel_unit, pose_spread, similarity_angle
from pstn.train import Train
from pstn.warp import warp

NAN = math.nan
#: The seed of the one draw that test pictures are moved by.
SEED = 42
#: What a quick look trains for, and on how many pictures.
QUICK_STEPS, QUICK_PICTURES = 20, 120
#: Degrees that a field of the heat map of angles is wide; pictures that are kept for a figure, and their side.
FIELD, EXAMPLES, SMALL = 7.5, 6, 28
SETS: dict[str, Callable[[Literal["train", "test"]], Data]] = {
    "MNIST": mnist,
    "FashionMNIST": fashion_mnist,
    "KMNIST": kmnist,
}


@dataclass(frozen=True)
class Shown:
    """All training pictures as they are, for a scene to show anew each time; test pictures shown by several draws."""

    scene: str
    name: str = "MNIST"
    repeats: int = 1
    limit: int | None = None

    def __call__(self, fold: int) -> Split:
        return _shown(self)


@dataclass(frozen=True)
class Summed:
    """Pairs of digits in two channels: as many as asked for to train on, as many as there are test digits to test."""

    pairs: int = 240_000
    limit: int | None = None

    def __call__(self, fold: int) -> Split:
        return _summed(self)


def whole(name: str, split: Literal["train", "test"]) -> Data:
    """A data set as it is published."""
    return SETS[name](split)


@cache
def _shown(source: Shown) -> Split:
    train, test = (_first(whole(source.name, split), source.limit) for split in ("train", "test"))
    # Clutter of test pictures is cut from training pictures, as in the papers.
    return Split(train, None, scene(source.scene, source=train.x).data(test, SEED, source.repeats))


@cache
def _summed(source: Summed) -> Split:
    train, test = (_first(whole("MNIST", split), source.limit) for split in ("train", "test"))
    count = source.pairs if source.limit is None else source.limit
    return Split(addition(train, count, SEED), None, scene("stn15/addition").data(addition(test, seed=SEED), SEED))


def _first(data: Data, limit: int | None) -> Data:
    return data if limit is None else data.subset(range(min(limit, len(data))))


def row(
    name: str, label: str, data: Shown | Summed, model: Callable[..., nn.Module], train: Train, **options: Any
) -> Experiment:
    """A row on pictures that are shown anew at every step."""
    shows = data.scene if isinstance(data, Shown) else "stn15/addition"
    small = {"repeats": 1} if isinstance(data, Shown) else {}
    quick = {
        "data": replace(data, limit=QUICK_PICTURES, **small),
        "train": replace(train, steps=QUICK_STEPS, batch_size=16),
    }
    usual = {"label": label, "augment": partial(scene, shows), "quick": quick, "samples": 10}
    return Experiment(name, data, model, train, **{**usual, **options})


def again(
    full: Experiment, name: str, words: str, train: Train, column: Column = "extra", **options: Any
) -> Experiment:
    """The same row by another recipe, its network with other options."""
    model, tags = partial(full.model, **options), {**full.tags, "recipe": name}
    label = f"{full.label}, {words}"
    return replace(full, name=f"{full.name}-{name}", label=label, model=model, train=train, column=column, tags=tags)


def error(mean: float, deviation: float = NAN) -> dict[str, tuple[float, float]]:
    """A paper's error in per cent, as an accuracy."""
    return {"accuracy": (1 - mean / 100, deviation / 100)}


def turned_digits(model: STN, data: Moved) -> dict[str, Any]:
    """Classification, the spread of angles after alignment in degrees, and found against true angles."""
    scores, maps = _aligned(model, data, "angle")
    if maps is None:
        return scores
    found, true = (torch.rad2deg(similarity_angle(each)) for each in maps)
    line = orthogonal_line(true, found)
    edges = [torch.arange(-reach, reach + FIELD, FIELD, dtype=torch.float64) for reach in (90, 180)]
    both = torch.stack([true.clamp(-90, 90), found], dim=1).double().cpu()
    heat = torch.histogramdd(both, edges).hist
    return {**scores, "slope": line.slope, "intercept": line.intercept, "heat": heat.int().tolist()}


def shifted_digits(model: STN, data: Moved) -> dict[str, Any]:
    """Classification, and the standard distance of places after alignment, in pixels."""
    return _aligned(model, data, "shift")[0]


def scaled_digits(model: STN, data: Moved) -> dict[str, Any]:
    """Classification, and the spread of the logarithm of areas after alignment."""
    return _aligned(model, data, "scale")[0]


def _aligned(model: STN, data: Moved, measure: Measure) -> tuple[dict[str, Any], tuple[Tensor, Tensor] | None]:
    scores = classified(model, data)
    if model.family is None:
        return scores, None
    family = {"angle": "placement20/R", "shift": "placement20/T", "scale": "placement20/S"}[measure]
    poses = scene(family).family.to(data.x.device)
    assert isinstance(model.family, MatrixFamily)
    assert isinstance(poses, MatrixFamily)
    theta = look(model, data.x)
    found, true = model.family.matrix(theta), poses.matrix(data.pose)
    side = data.x.shape[-1]
    # STN-C1 warps features: behind a convolution of 9 and pooling by two, a step is two pixels.
    features = model.placement.warps == "features" and model.placement.depths == (1,)
    unit = pixel_unit((side - 8) // 2, 2) if features else pixel_unit(side)
    rest = final_pose(found, true, measure, unit=unit, true_unit=pixel_unit(side))
    spread = pose_spread(rest, data.y, circular=measure == "angle")
    first = data.x[:EXAMPLES]
    whole = warp(first, model.family, theta[:EXAMPLES], size=(SMALL, SMALL), padding="border", antialias=True)
    scores["examples"] = [pictured(first, SMALL), pictured(whole, SMALL)]
    return {**scores, "pose_spread": spread.mean, "spreads": listed(spread.per_class)}, (found, true)


def pictured(x: Tensor, side: int) -> list[str]:
    """Grey pictures (N, 1, H, W) for the file of results: a digit for each of side × side pixels, 9 the brightest."""
    small = nn.functional.interpolate(x.float(), (side, side), mode="bilinear", antialias=True)
    low, high = small.amin((1, 2, 3), keepdim=True), small.amax((1, 2, 3), keepdim=True)
    shades = (9 * (small - low) / (high - low).clamp_min(1e-6)).round().int()
    return ["".join(map(str, shade.flatten().tolist())) for shade in shades]


def pixels(text: str) -> list[list[float]]:
    """What :func:`pictured` wrote, row by row, from 0 to 1.

    >>> pixels("0990")
    [[0.0, 1.0], [1.0, 0.0]]
    """
    side = math.isqrt(len(text))
    return [[int(shade) / 9 for shade in text[side * n : side * (n + 1)]] for n in range(side)]


@torch.no_grad()
def look(model: STN, x: Tensor) -> Tensor:
    """The centres of the posteriors, (N, d), all looks composed."""
    mode, found = model.training, []
    model.eval()
    for some in x.split(BATCH):
        theta = model(some, samples=0).theta
        assert theta is not None
        found.append(theta[0])
    model.train(mode)
    return torch.cat(found)
