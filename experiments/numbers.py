"""House numbers, and the networks of both papers for them: Placement'20's Tables III and IV share these rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from pstn import STN, nets
from pstn.data import Data, read_right, svhn, svhn_normalised
from pstn.data.files import roots
from pstn.data.svhn import FOLDER, ORIGIN, STRUCT, find_svhn
from pstn.experiment import Experiment, Split, classified
from pstn.experiment.row import BATCH
from pstn.inference import predict
from pstn.nets import LOCALIZER_LR
from pstn.train import Train

#: Training images that both papers choose settings on.
VALIDATION = 5_000
#: 33,401 and 202,353 images, less those for validation, in batches of 128.
EPOCH = -(-(33_401 + 202_353 - VALIDATION) // 128)
#: 120,000 steps, as many at a tenth of the learning rate, and 60,000 at a hundredth.
TRAIN = Train(
    steps=300_000, batch_size=128, optimizer="sgd", momentum=0.0, lr=0.03, weight_decay=2e-4, schedule="step",
    step_size=120_000 / EPOCH, seed=42,
)  # fmt: skip


@dataclass(frozen=True)
class HouseNumbers:
    """The training and extra images, 5,000 of them for validation, and the test images; colours normalised."""

    count: int | None = None

    def __call__(self, fold: int) -> Split:
        return _numbers(self)


@cache
def _numbers(source: HouseNumbers) -> Split:
    splits = [svhn(split, count=source.count) for split in ("train", "extra", "test")]  # type: ignore[arg-type]
    whole = replace(splits[0], x=torch.cat([s.x for s in splits[:2]]), y=torch.cat([s.y for s in splits[:2]]))
    held = min(VALIDATION, len(whole) // 4)
    parts = whole.split((len(whole) - held, held), seed=42)
    train, validation, test = svhn_normalised(*parts, splits[2])  # type: ignore[arg-type]
    return Split(train, validation, test)


def missing() -> str | None:
    """Which file is not there."""
    for split in ("train", "extra", "test"):
        if find_svhn(split) is None:  # type: ignore[arg-type]
            looked = " or ".join(str(place / FOLDER / split / STRUCT) for place in roots())
            return f"SVHN, looked for as {looked}: {ORIGIN}"
    return None


def numbers_read(model: STN, data: Data) -> dict[str, Any]:
    """How many numbers are read right in all their digits, and how well digits are classified."""
    probs = predict(model, data.x, batch_size=BATCH).probs
    return {**classified(model, data), "numbers": read_right(probs, data.y)}


def row(
    network: str, error: float | None, *, iterations: int = 1, test_iterations: int | None = None, **options: Any
) -> Experiment:
    """A network, with the paper's error in per cent."""
    looks = "" if iterations == 1 else f"-x{iterations}" + (f"{test_iterations}" if test_iterations else "")
    rate = LOCALIZER_LR["SVHN", iterations].get(network, 1.0)
    label = network if network == "CNN" else f"STN-{network}"
    words = {"": "", "-x2": ", two looks", "-x23": ", two looks, three at test"}[looks]
    model = partial(nets.placed_numbers, network, iterations=iterations, test_iterations=test_iterations)
    train = replace(TRAIN, localizer_lr=rate)
    small = replace(train, steps=2, batch_size=4)
    usual = {
        "label": label + words, "folds": 3,
        "measure": numbers_read, "select": ("numbers", "max"), "missing": missing,
        "paper": {} if error is None else {"numbers": (1 - error / 100, float("nan"))},
        "quick": {"data": HouseNumbers(count=16), "train": small},
    }  # fmt: skip
    return Experiment(f"{network.lower()}{looks}", HouseNumbers(), model, train, **{**usual, **options})
