"""Pictures moved by a known amount, and networks that are to undo it; the tables with true poses share this."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from experiments.mnist import NORMALISE
from pstn import STN, Similarity, nets
from pstn.data import Data, fashion_mnist, mnist
from pstn.data.moved import Move, Moved, Place, Turn
from pstn.distributions import Delta, GammaNormal, draw
from pstn.experiment import Experiment, Split, classified, listed
from pstn.experiment.row import BATCH
from pstn.families import Crop, Translation
from pstn.grid import identity_grid
from pstn.inference import predict
from pstn.metrics import accuracy, angle_distance, overlap, rank_correlation
from pstn.train import Train
from pstn.warp import warp

SHAPE, NAN = (1, 28, 28), math.nan


class Lit(Place):
    """Pictures pasted on a canvas that is then normalised by MNIST's mean and deviation, as the authors' code does."""

    def move(self, x: Tensor, pose: Tensor) -> Tensor:
        """The canvases, normalised."""
        return NORMALISE(super().move(x, pose))


#: The moves by name: any angle; corners of a canvas as the authors' code draws them; any place on one twice the size.
MOVES: dict[str, Callable[[], Move]] = {
    "turned": Turn,
    "on 96x96": lambda: Place(28, 96, reach=63),
    "on 96x96, normalised": lambda: Lit(28, 96, reach=63),
    "on 56x56": lambda: Place(28, 56),
}
#: The seed of the one draw that validation and test data are moved by.
SEED = 42
#: The paper's frozen-classifier experiments train alike, but for length, schedule and the localizer's learning rate.
TRAIN = Train(epochs=100, batch_size=64, drop_last=True, weight_decay=1e-5, schedule="step", step_size=10, seed=42)
#: What a quick look trains for, and on how many pictures.
QUICK_STEPS, QUICK_PICTURES = 30, 200
#: A landscape: positions along the axis, draws at each, pictures to count minima in, pictures to keep for a figure.
POSITIONS, DRAWS, COUNTED, SHOWN = 65, 32, 8, 3
#: Pictures whose poses are kept for a figure.
POINTS = 300


def whole(name: str, split: Literal["train", "test"]) -> Data:
    """A data set as it is published."""
    return {"MNIST": mnist, "FashionMNIST": fashion_mnist}[name](split)


def centred(data: Data) -> Data:
    """Pictures shifted, by parts of a pixel, until their centre of mass is the point that they are turned about.

    MNIST's is at the corner of four pixels next to it, so that a turned digit shows its angle by where its mass lies.
    """
    shifted = []
    for x in data.x.split(BATCH):
        mass = x.sum(1)[..., None]
        offset = (mass * identity_grid(x.shape[2:]).to(x)).sum((1, 2)) / mass.sum((1, 2))
        shifted.append(warp(x, Translation(), offset))
    return replace(data, x=torch.cat(shifted), name=f"{data.name}, centred")


@dataclass(frozen=True)
class Upright:
    """Pictures as they are: all to train on, or five in six, the rest for validation."""

    name: str
    everything: bool = False
    limit: int | None = None

    def __call__(self, fold: int) -> Split:
        return _upright(self)


@dataclass(frozen=True)
class Moving:
    """Five in six of the pictures as they are, for training to move anew each time; the others moved once."""

    name: str
    move: str
    limit: int | None = None
    centred: bool = False

    def __call__(self, fold: int) -> Split:
        return _moving(self)


@cache
def _upright(source: Upright) -> Split:
    train, test = whole(source.name, "train"), whole(source.name, "test")
    parts = (train, None) if source.everything else train.split((5 / 6, 1 / 6), seed=SEED)
    return Split(*(part and _first(part, source.limit) for part in (*parts, test)))


@cache
def _moving(source: Moving) -> Split:
    move, split = MOVES[source.move](), _upright(Upright(source.name, limit=source.limit))
    assert split.validation is not None
    parts = (split.train, split.validation, split.test)
    train, validation, test = map(centred, parts) if source.centred else parts
    return Split(train, move.data(validation, SEED), move.data(test, SEED + 1))


def _first(data: Data, limit: int | None) -> Data:
    return data if limit is None else data.subset(range(min(limit, len(data))))


def row(name: str, label: str, data: Any, model: Callable[..., nn.Module], train: Train, **options: Any) -> Experiment:
    """A row on upright or moved pictures; moved ones are moved anew at every step."""
    augment = {"augment": MOVES[data.move]} if isinstance(data, Moving) else {}
    quick = {"data": replace(data, limit=QUICK_PICTURES), "train": replace(train, steps=QUICK_STEPS, batch_size=16)}
    return Experiment(name, data, model, train, **{"label": label, **augment, "quick": quick, **options})


def short(full: Experiment) -> Experiment:
    """The same row with a tenth of the epochs, falls of the learning rate brought forward in proportion."""
    train = replace(full.train, epochs=full.train.epochs // 10, step_size=full.train.step_size / 10)
    label, line = (f"{words}, a tenth of the epochs" for words in (full.label, full.line))
    return replace(full, name=f"{full.name}-short", label=label, line=line, train=train)


def mlp(layers: int) -> nn.Sequential:
    """A classifier of 1 to 5 linear layers: 7,850, 101,770, 235,146, 300,938 or 317,450 parameters."""
    widths = [(), (128,), (256, 128), (256, 256, 128), (256, 256, 128, 128)][layers - 1]
    made, before = [nn.Flatten()], 784
    for width in widths:
        made += [nn.Linear(before, width), nn.ReLU(), nn.Dropout(0.5)]
        before = width
    return nn.Sequential(*made, nn.Linear(before, 10))


def body(pretrained: nn.Module | None) -> nn.Module:
    """The classifier of a trained network."""
    assert isinstance(pretrained, STN)
    return pretrained.body


def localizer(canvas: int, channels: tuple[int, int]) -> nets.Localizer:
    """The papers' localizers of placed pictures."""
    return nets.localizer((1, canvas, canvas), channels=channels, kernel=7)


def unturned(model: nn.Module, data: Data) -> dict[str, Any]:
    """How well upright pictures are classified, and the same pictures turned."""
    turned = Turn().data(data, SEED + 1)
    moved = accuracy(predict(model, turned.x, batch_size=BATCH).probs, turned.y)
    return {**classified(model, data), "moved_accuracy": moved}


def lit(model: nn.Module, data: Data) -> dict[str, Any]:
    """How well pictures are classified that are normalised, whatever the network was trained on."""
    return classified(model, data.normalised(NORMALISE))


def turned(model: STN, data: Moved) -> dict[str, Any]:
    """Classification, and how far the angle is from the one that turns the picture back.

    ``pose_error`` is the distance on the circle, from 0 to π; ``pose_error_mod`` is the paper's equation 18 as it
    stands, the absolute difference modulo π; ``half_turn_error`` forgives half turns, from 0 to π/2.
    """
    found, scale = look(model, data)
    mu, true = found[:, 0], data.pose[:, 0]
    error = angle_distance(mu, true)
    scores = {
        **classified(model, data),
        "pose_error": error.mean(),
        "pose_error_mod": (true - mu).abs().remainder(math.pi).mean(),
        "half_turn_error": torch.minimum(error, math.pi - error).mean(),
        "variance": mu.var(),
    }
    columns = [true, mu, error] if scale is None else [true, mu, error, scale[:, 0]]
    scores["angles"] = listed(torch.stack(columns, dim=1)[:POINTS])
    return {**scores, **spreads(scale, error), **landscape(model, data, data.pose, 0, math.pi, circular=True)}


def placed(model: STN, data: Moved) -> dict[str, Any]:
    """Classification, how far the window's centre is from the picture's in pixels, and how much both overlap."""
    found, scale = look(model, data)
    assert isinstance(model.family, Similarity)
    true = model.family.from_matrix(Crop().matrix(data.pose))
    error = (found - true)[:, -2:].square().sum(1).sqrt() * data.x.shape[-1] / 2
    iou = torch.cat([overlap(model.family, a, b) for a, b in zip(found.split(BATCH), true.split(BATCH), strict=True)])
    scores = {**classified(model, data), "shift_error": error.mean(), "iou": iou.mean()}
    return {**scores, **spreads(scale, error), **landscape(model, data, true, -2, 1.0)}


@torch.no_grad()
def look(model: STN, data: Data) -> tuple[Tensor, Tensor | None]:
    """The centres of the posteriors (N, d), and their scales; None for a point."""
    mode, found, scales = model.training, [], []
    model.eval()
    for x in data.x.split(BATCH):
        out = model(x, samples=0)
        q = out.posterior
        found.append(out.theta[0])
        if not isinstance(q, Delta):
            scales.append(q.scale if isinstance(q, GammaNormal) else q.stddev)
    model.train(mode)
    return torch.cat(found), torch.cat(scales) if scales else None


def spreads(scale: Tensor | None, error: Tensor) -> dict[str, float]:
    """The median spread, whether it rises with the error, and the paper's mean β of hard inputs over that of easy."""
    if scale is None:
        return {}
    hard, each = error > error.median(), scale.square().mean(1)
    ratio = each[hard].mean() / each[~hard].mean() if hard.any() else torch.tensor(NAN)
    return {
        "spread": float(scale.median()),
        "spread_correlation": rank_correlation(each, error),
        "spread_ratio": float(ratio),
    }


@torch.no_grad()
def landscape(
    model: STN, data: Data, true: Tensor, axis: int, reach: float, circular: bool = False
) -> dict[str, float | list]:
    """The loss of single pictures as a function of where the posterior's centre is, the spread as it is.

    One parameter goes from the truth minus ``reach`` to the truth plus ``reach``; the others are true. For a point it
    is the classifier's loss along that line, for a distribution the mean over draws, the same ones at each position.
    """
    mode = model.training
    model.eval()
    offsets = torch.linspace(-reach, reach, POSITIONS, device=data.x.device)
    lines = []
    for x, y, theta in zip(data.x[:COUNTED, None], data.y[:COUNTED], true[:COUNTED], strict=True):
        q = model(x, samples=0).posterior
        around = torch.zeros(1, theta.shape[-1], device=x.device)
        if not isinstance(q, Delta):
            around = draw(q, DRAWS, "sobol")[:, 0] - q.mode[0]
        centre = theta.repeat(POSITIONS, 1)
        centre[:, axis] += offsets
        poses = (centre[:, None] + around).flatten(0, 1)[:, None]
        seen = warp(x, model.family, poses, size=model.size, **model.options)
        loss = -model.body(seen.flatten(0, 1)).log_softmax(-1)[:, y]
        lines.append(loss.unflatten(0, (POSITIONS, -1)).mean(1))
    model.train(mode)
    counts = [minima(line.tolist(), circular=circular) for line in lines]
    shown = listed(torch.stack([offsets, *lines[:SHOWN]]))
    return {"minima": sum(counts) / len(counts), "landscape": shown}


def minima(values: list[float], depth: float = 0.1, circular: bool = False) -> int:
    """How many valleys a curve has that are at least ``depth`` deep on both sides."""
    if circular:  # start on the highest point: no valley is cut in two
        top = values.index(max(values))
        values = [*values[top:], *values[:top], values[top]]
    count, falling, extreme = 0, False, values[0]
    for value in values:
        if falling:
            extreme = min(extreme, value)
            if value > extreme + depth:
                count, falling, extreme = count + 1, False, value
        else:
            extreme = max(extreme, value)
            if value < extreme - depth:
                falling, extreme = True, value
    return count
