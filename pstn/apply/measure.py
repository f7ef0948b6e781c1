"""What a trained model does to data it has not seen: scores, and where its warps go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pstn.apply.files import Trained
from pstn.data import Data
from pstn.distributions import Delta, draw
from pstn.families import CPAB, Compose, Family
from pstn.grid import identity_grid
from pstn.inference import Predictive
from pstn.metrics import brier, reliability
from pstn.report.units import plain_units
from pstn.stn import STN, Output
from pstn.uncertainty import Temperature, selective_accuracy

#: How many inputs the warps are looked at for, and how many draws of each.
INPUTS, DRAWS = 64, 16


def measure(trained: Trained, data: Data, samples: int = 16) -> dict[str, Any]:
    """Scores and warps of a model on labelled data, as plain numbers for ``model.json``.

    Arguments:
        trained: The model.
        data: Data of its shape, not normalised.
        samples: How many transformations predictions are averaged over.
    """
    p = trained.predict(data.x, samples)
    return {**scores(p, data.y), "ece_by_chance": chance_ece(p.probs), **poses(trained, data.x)}


def scores(p: Predictive, y: Tensor) -> dict[str, Any]:
    """Accuracy, NLL, Brier score, ECE, mean confidence, the accuracy without the least sure, and a temperature."""
    return {
        "examples": len(p),
        "accuracy": float((p.labels.cpu() == y.cpu()).float().mean()),
        "nll": _finite(p.nll(y)),
        "brier": brier(p.probs, y),
        "ece": reliability(p.probs, y).ece,
        "confidence": float(p.probs.amax(-1).mean()),
        "selective": selective_accuracy(p.probs, y, 0.1),
        "temperature": Temperature.fit(p.log_probs, y).value,
    }


def chance_ece(probs: Float[Tensor, "n k"], draws: int = 100) -> float:
    """The ECE that a perfectly calibrated model stays below 19 times in 20, with labels drawn from its own answers."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(probs.double().cpu(), draws, replacement=True, generator=generator)
    confidence, named = probs.cpu().max(-1)
    where = (confidence * 15).long().clamp(max=14)
    right = (labels == named[:, None]).double()
    gap = torch.zeros(15, draws, dtype=torch.float64).index_add(0, where, right - confidence[:, None].double())
    return float((gap.abs().sum(0) / len(probs)).quantile(0.95))


@torch.no_grad()
def poses(trained: Trained, x: Float[Tensor, "n c *space"]) -> dict[str, Any]:
    """Where the warps of some inputs go, as the network is trained: strength by parameter, and how far points move.

    Returns:
        ``strength``: a name, a value and a unit for each parameter; ``centre`` and ``spread``: how far the posterior's
        centre moves points, and how far draws are from it, as shares of half the input; ``varies``: how far centres of
        different inputs are apart; ``lost``: the share of an input's content that draws do not show; empty without
        transformer.
    """
    network = trained.network
    if not len(network.transformers) or network.family is None or network.placement.parallel > 1:
        return {}
    some = trained.prepare(x[:: max(1, len(x) // INPUTS)][:INPUTS])
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    some = some.to(device)
    out = as_trained(network, some)
    q, family = out.posterior, network.family
    assert q is not None
    centre = q.mode
    theta = draw(q, DRAWS, "sobol", torch.Generator().manual_seed(0)).cpu()
    centre, some = centre.cpu(), some.cpu()
    points = identity_grid([9] * family.ndim).flatten(0, -2)
    to, around = family(centre, points), family(theta, points)
    found = {
        "strength": strength(family, theta - centre, trained.shape[1:]),
        "centre": float(_distance(to - points)),
        "varies": float(_distance(to - to.mean(0))),
        "spread": 0.0 if isinstance(q, Delta) else float(_distance(around - to)),
        "lost": lost(some, family, theta if not isinstance(q, Delta) else centre[None], network.options["fill"]),  # type: ignore[arg-type]
        "looks": any(p.numel() for p in network.transformers[0].localizer.parameters()),  # type: ignore[union-attr]
        "background": network.options["padding"] == "fill",
    }
    return {key: _finite(value) if isinstance(value, float) else value for key, value in found.items()}


def strength(family: Family, deviations: Float[Tensor, "s n d"], size: Sequence[int]) -> list[dict[str, Any]]:
    """The typical size of each parameter, in degrees, per cent and pixels; smooth distortions as one displacement.

    Half the width of the middle 68 % of the draws: one deviation of a Gaussian, and finite for heavier tails.
    """
    wide = deviations.flatten(0, -2)
    low, high = wide.quantile(torch.tensor([0.16, 0.84]), dim=0)
    half = (high - low) / 2
    rows: list[dict[str, Any]] = []
    start = 0
    for part in family.families if isinstance(family, Compose) else (family,):
        assert isinstance(part, Family)
        values = half[start : start + part.dim]
        if isinstance(part, CPAB) or part.dim > 9:
            points = identity_grid([17] * part.ndim).flatten(0, -2)
            moved = part(wide[:, start : start + part.dim], points) - points
            pixels = float(moved.square().mean((0, 1)).mul(torch.tensor(list(size)[::-1]).square() / 4).sum().sqrt())
            rows.append({"name": "smooth distortion", "value": pixels, "unit": _pixels(part.ndim)})
        else:
            plain, units = plain_units(part, values, size)
            for name, value, unit in zip(part.names, plain.tolist(), units, strict=True):
                rows.append(_row(name, value, unit, part.ndim))
        start += part.dim
    return rows


def as_trained(network: STN, x: Tensor) -> Output:
    """The answers with the posterior as wide as in training, everything else in evaluation mode."""
    heads = [transformer.head for transformer in network.transformers]
    network.eval()
    try:
        for head in heads:
            head.train()  # type: ignore[union-attr]
        return network(x, samples=0)
    finally:
        network.eval()


def lost(x: Tensor, family: Family, theta: Float[Tensor, "s n d"], fill: float) -> float:
    """The share of the inputs' content, what differs from the fill, that no point of the output looks at.

    Every output point marks the input pixel it reads; pixels next to a marked one count as seen.
    """
    size = x.shape[2:]
    content = (x - fill).abs().mean(1)  # (N, *space)
    points = family(theta, identity_grid(size).flatten(0, -2))
    index = torch.zeros(points.shape[:-1], dtype=torch.long)
    inside = torch.ones(points.shape[:-1], dtype=torch.bool)
    for axis, n in enumerate(size):  # the last coordinate is the first axis
        place = ((points[..., family.ndim - 1 - axis] + 1) * n / 2).floor().long()
        inside &= (place >= 0) & (place < n)
        index = index * n + place.clamp(0, n - 1)
    seen = torch.zeros(*theta.shape[:2], math.prod(size)).scatter_reduce(2, index, inside.float(), "amax")
    seen = seen.unflatten(2, tuple(size)).flatten(0, 1)[:, None]
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(size)]
    seen = pool(seen, 3, 1, 1)[:, 0].unflatten(0, theta.shape[:2])
    whole = content.flatten(1).sum(1)
    kept = (content * seen).flatten(2).sum(2) / whole.clamp_min(1e-12)
    return float((1 - kept)[:, whole > 0].mean()) if (whole > 0).any() else 0.0


def _row(name: str, value: float, unit: str, ndim: int) -> dict[str, Any]:
    words = name.removeprefix("log-")
    if ndim == 1:
        words = {"x": "shift", "scale x": "stretch", "scale": "stretch"}.get(words, words)
        unit = "points" if unit == "px" else unit
    else:
        words = {"x": "shift x", "y": "shift y", "z": "shift z"}.get(words, words)
        unit = {"°": "degrees", "px": "pixels"}.get(unit, unit)
    if words.startswith("shear"):
        value, unit = 100 * value, "%"
    return {"name": words, "value": _finite(value), "unit": unit}


def _pixels(ndim: int) -> str:
    return "points" if ndim == 1 else "pixels"


def _distance(moved: Tensor) -> Tensor:
    """The median over inputs and draws of how far points move, root mean square over the points."""
    return moved.square().sum(-1).mean(-1).sqrt().median()


def _finite(value: float) -> float:
    """JSON has no infinity."""
    return value if math.isfinite(value) else math.copysign(1e30, value)


def facts(measured: Mapping[str, Any]) -> dict[str, str]:
    """What was measured, in words for a page or a terminal."""
    return {
        "accuracy": f"{measured['accuracy']:.1%}",
        "accuracy without the 10 % least sure": f"{measured['selective']:.1%}",
        "NLL": f"{measured['nll']:.3f} nats",
        "Brier score": f"{measured['brier']:.3f}",
        "ECE": f"{measured['ece']:.3f} (chance alone: up to {measured['ece_by_chance']:.3f})",
    }
