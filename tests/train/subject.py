"""The model, the data and the settings that the tests of training share, with their own processes too."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from pstn import STN, Similarity, StudentT
from pstn.data import Data
from pstn.train import Train, seeded

# On the CPU, where runs are promised to be equal to the last bit.
CONFIG = Train(
    epochs=3, batch_size=5, lr=1e-2, kl_weight=1e-2, samples_validation=2, weight_decay=1e-3, accelerator="cpu"
)
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
