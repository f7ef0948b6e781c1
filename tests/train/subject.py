"""The model, the data and the settings that the tests of training share, with their own processes too."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from pstn import CPAB, STN, Affine, Gaussian, Point, Similarity, StudentT
from pstn.data import Data
from pstn.train import Train, seeded

# On the CPU, where runs are promised to be equal to the last bit.
CONFIG = Train(
    epochs=3, batch_size=5, lr=1e-2, kl_weight=1e-2, samples_validation=2, weight_decay=1e-3, accelerator="cpu"
)
# 5 batches an epoch, the last of two: fifty steps
FIFTY = replace(CONFIG, epochs=10)
LONG = replace(CONFIG, epochs=60, checkpoint_every=0.0, schedule="cosine", clip=1.0)


def make_model(seed: int = 0) -> STN:
    """A P-STN with everything that has state or draws: batch statistics, dropout, sampled warps."""
    with seeded(seed):
        body = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(4 * 36, 3),
        )
        localizer = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        return STN(body, localizer, Similarity(), StudentT(), features=8)


def make_data(count: int = 22, seed: int = 0, name: str = "dots") -> Data:
    """Noisy images with a dot whose row is the class; 22 make five batches of five, the last of two."""
    with seeded(seed):
        y = torch.arange(count) % 3
        x = torch.randn(count, 1, 8, 8) * 0.3
        x[torch.arange(count), 0, 2 + y, 3] += 2.0
        return Data(x, y, ("a", "b", "c"), name)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of everything a model remembers."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Equal to the last bit."""
    assert a.keys() == b.keys()
    wrong = [name for name in a if not torch.equal(a[name], b[name])]
    assert not wrong, f"{wrong} differ"


def differ(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether any weight differs."""
    return any(not torch.equal(a[name], b[name]) for name in a)


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], atol: float = 1e-4) -> None:
    """Equal to rounding, which fifty steps of Adam amplify."""
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def body(dropout: float = 0.3) -> nn.Sequential:
    """A small classifier."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(4 * 36, 3))


def localizer() -> nn.Sequential:
    """A smaller localizer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())


def made(seed: int, kind: str) -> STN:
    """A network of a kind."""
    with seeded(seed):
        if kind == "student":
            return make_model(seed)
        if kind == "cnn":
            return STN(body())
        if kind == "gaussian":
            spec = Gaussian(prior_scale=0.1 * (seed + 1), image_noise=0.1)
            return STN(body(), localizer(), Affine(), spec, features=8, fill=0.5)
        if kind == "diffeomorphic":
            return STN(body(), localizer(), CPAB((2, 2)), Gaussian(), features=8)
        return STN(body(), localizer(), Similarity(), Point(), features=8, frozen=kind == "frozen")
