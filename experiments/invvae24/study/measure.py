"""What is asked of a trained autoencoder: classification by its codes, invariance, and the two losses in one unit."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from experiments.invvae24.study.data import NORMALISE, Exam
from pstn.data import Data
from pstn.experiment import listed
from pstn.vae import VAE, Bound, Paired, fit_probe, invariance, paired_error

#: Pictures a forward pass, and how many are kept for figures: of a kind, and as points.
BATCH, SHOWN, POINTS = 1000, 10, 250
#: The paper's objective; its categorical losses are thirty times the squared error plus the same divergence. The gauge
#: is for transformers that learn, and no part of what is reported.
GAUSSIAN, CATEGORICAL = Bound(1e-3, gauge=1.0), Bound(1e-3 / 30, gauge=1.0)


def gaussian(model: nn.Module, data: Exam) -> dict[str, Any]:
    """The scores of a Gaussian autoencoder."""
    return examined(model, data, GAUSSIAN)


def categorical(model: nn.Module, data: Exam) -> dict[str, Any]:
    """The scores of a categorical autoencoder."""
    return examined(model, data, CATEGORICAL)


def gaussian_shown(model: nn.Module, data: Exam) -> dict[str, Any]:
    """The scores of a Gaussian autoencoder, and what figures need."""
    return examined(model, data, GAUSSIAN, shown=True)


def categorical_shown(model: nn.Module, data: Exam) -> dict[str, Any]:
    """The scores of a categorical autoencoder, and what figures need."""
    return examined(model, data, CATEGORICAL, shown=True)


@torch.no_grad()
def paired(model: nn.Module, data: Data) -> dict[str, Any]:
    """The squared error a pixel of a transformer that was trained on pairs, and of leaving pictures as they are."""
    assert isinstance(model, Paired)
    model.eval()
    parts = data.x.split(BATCH)
    error = sum(len(x) * float(paired_error(model(x, samples=0))) for x in parts) / len(data)
    still = sum(len(x) * float((x[:, :1] - x[:, 1:]).square().mean()) for x in parts) / len(data)
    return {"error": error, "still_error": still}


@torch.no_grad()
def examined(model: nn.Module, data: Exam, bound: Bound, shown: bool = False) -> dict[str, Any]:
    """Accuracies, losses and invariance on both test sets.

    The classifier learns from the codes of the training set that the arm was trained on. Losses are squared errors a
    pixel of normalised pictures plus the weighted divergence in nats, where the arm compares; errors are without it, in
    the pose in which the picture was seen, for all arms alike.
    """
    assert isinstance(model, VAE)
    model.eval()
    base, moved = (_features(model, x) for x in (data.x, data.moved))
    probe = fit_probe(_features(model, data.study.x), data.study.y, data.num_classes)
    said, said_moved = probe(base), probe(moved)
    right, right_moved = (said == data.y).double(), (said_moved == data.y).double()
    loss, error = losses(model, data.x, bound)
    moved_loss, moved_error = losses(model, data.moved, bound)
    scores: dict[str, Any] = {
        "accuracy": right.mean(),
        "moved_accuracy": right_moved.mean(),
        "gap": right.mean() - right_moved.mean(),
        "loss": loss,
        "moved_loss": moved_loss,
        "error": error,
        "moved_error": moved_error,
        "invariance": invariance(base, moved),
    }
    if shown:
        scores |= pictures(model, data) | codes(base, moved, data.y)
        table = torch.zeros(data.num_classes, data.num_classes, dtype=torch.float64, device=data.y.device)
        table.index_put_((data.y, said_moved), torch.ones_like(right), accumulate=True)
        scores["confusion"] = listed(table, 0)
        wrong = (right_moved == 0).nonzero().flatten()[:SHOWN]
        scores["wrong"] = [pack(data.moved[wrong]), listed(torch.stack([data.y[wrong], said_moved[wrong]]), 0)]
    return scores


@torch.no_grad()
def apart(model: nn.Module, data: Exam) -> dict[str, Any]:
    """Accuracies by two classifiers, each learned from training pictures that are as its test pictures are."""
    assert isinstance(model, VAE)
    model.eval()
    probes = [fit_probe(_features(model, each.x), each.y, data.num_classes) for each in data.studies]
    found = [probe(_features(model, x)) for probe, x in zip(probes, (data.x, data.moved), strict=True)]
    accuracy, moved = ((said == data.y).double().mean() for said in found)
    return {"accuracy": accuracy, "moved_accuracy": moved, "gap": accuracy - moved}


def losses(model: VAE, x: Tensor, bound: Bound) -> tuple[float, float]:
    """The mean loss, with draws as in training, and the mean squared error in the observed pose, without."""
    loss = error = 0.0
    compare = model.compare
    for part in x.split(BATCH):
        loss += float(bound.each(model(part, samples=1)).sum())
        model.compare = "observed"
        error += float(model(part, samples=0).error.sum())
        model.compare = compare
    return loss / len(x), error / len(x)


def pictures(model: VAE, data: Exam) -> dict[str, Any]:
    """Pictures for figures: both sets, what the transformer and the decoder make of them, and a traversal."""
    first = torch.stack([(data.y == label).nonzero().flatten()[0] for label in data.y.unique()])[:SHOWN]
    compare, model.compare = model.compare, "observed"
    lines = [data.x[first], data.moved[first]]
    for x in (data.x[first], data.moved[first]):
        out = model(x, samples=0)
        lines += [x if out.pose is None else out.pose.warped[0], out.canonical[0], out.drawn[0]]
    model.compare = compare
    traversal = model.traverse(data.x[first[-1:]])[:SHOWN]
    return {
        "pictures": [pack(line) for line in lines],
        "traversal": [pack(line) for line in traversal],
        "samples": [pack(model.sample(2 * SHOWN))],
    }


def codes(base: Tensor, moved: Tensor, y: Tensor) -> dict[str, Any]:
    """Codes of both test sets on the first two principal axes of the base set's, with labels."""
    mean = base.mean(0)
    _, _, axes = torch.linalg.svd((base - mean).double(), full_matrices=False)
    flat = [(z[:POINTS] - mean).double() @ axes[:2].T for z in (base, moved)]
    return {"codes": [listed(torch.cat([z, y[:POINTS, None].double()], dim=1), 2) for z in flat]}


def pack(x: Tensor) -> list[Any]:
    """Normalised pictures (N, 1, H, W) as [N, H, W, text]: sixteen greys, compressed."""
    grey = (NORMALISE.inverse(x).clamp(0, 1) * 15).round().to(torch.uint8).cpu().flatten()
    pairs = grey if len(grey) % 2 == 0 else torch.cat([grey, grey.new_zeros(1)])
    text = base64.b64encode(zlib.compress(bytes((pairs[::2] * 16 + pairs[1::2]).tolist()), 9)).decode()
    return [len(x), *x.shape[2:], text]


def unpack(packed: list[Any]) -> Tensor:
    """The pictures of :func:`pack`, (N, H, W), from 0 to 1."""
    n, height, width, text = packed
    pairs = torch.tensor(list(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)
    grey = torch.stack([pairs // 16, pairs % 16], dim=1).flatten()[: n * height * width]
    return grey.view(n, height, width).float() / 15


def _features(model: VAE, x: Tensor) -> Tensor:
    return torch.cat([model.features(part) for part in x.split(BATCH)])
