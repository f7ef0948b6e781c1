"""Placement'20, Table V: plankton of 121 classes, by where the transformer stands."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from pstn import nets
from pstn.data import Data, Drift, plankton
from pstn.data.files import roots
from pstn.data.plankton import ARCHIVE, FOLDER, ORIGIN, find_plankton
from pstn.experiment import Claim, Experiment, Split, Table, against
from pstn.experiment.row import BATCH
from pstn.nets import LOCALIZER_LR
from pstn.train import Train

#: Of the 30,336 images, the shares to train on, to validate on and to test on; the split's seed.
SHARES, SEED = (0.8, 0.06, 0.14), 42
#: Errors in per cent on the competition's test images.
ERRORS = {
    "C0": 22.1, "C2": 22.3, "C4": 22.5, "C7": 22.9, "C10": 22.7,
    "DL2": 21.6, "DL4": 21.7, "DL7": 22.7, "DL10": 22.7,
    "SL2": 21.5, "SL4": 21.5, "SL7": 21.6, "SL10": 21.9,
}  # fmt: skip
#: The same with two looks.
TWICE = {"C0": 21.8, "SL2": 21.4, "SL7": 21.5, "DL2": 21.5, "DL4": 21.8, "SL4": 21.6}
#: The paper's: the learning rate falls at 180,000 and 205,000 of 215,000 steps.
EPOCH = -(-24_269 // 64)
TRAIN = Train(
    steps=215_000, batch_size=64, optimizer="sgd", momentum=0.8, nesterov=True, lr=0.003, weight_decay=2e-4,
    schedule="step", step_size=(180_000 / EPOCH, 205_000 / EPOCH), seed=42,
)  # fmt: skip
#: A shorter one: Adam and a cosine, 21 epochs instead of 567, and a localizer a tenth as fast.
SHORT = Train(steps=8_000, batch_size=64, lr=5e-4, localizer_lr=0.1, schedule="cosine", warmup=1.0, weight_decay=1e-4,
              clip=1.0, seed=42)  # fmt: skip
#: The networks that it is run for.
FEW = ("CNN", "C0", "C2", "DL2", "SL2", "SL7")


def _shrunk(data: Data) -> Data:
    """Pictures as a network sees them."""
    return replace(data, x=torch.cat([Drift().still(x) for x in data.x.split(BATCH)]))


@dataclass(frozen=True)
class Plankton:
    """A fixed split of all published images, the classes in proportion; what is not trained on is shrunk, not moved."""

    per_class: int | None = None

    def __call__(self, fold: int) -> Split:
        return _split(self)


@cache
def _split(source: Plankton) -> Split:
    train, validation, test = plankton(per_class=source.per_class).split(SHARES, seed=SEED)
    return Split(train, _shrunk(validation), _shrunk(test))


def missing() -> str | None:
    """Which file is not there."""
    if find_plankton() is not None:
        return None
    looked = " or ".join(str(place / FOLDER / ARCHIVE) for place in roots())
    return f"PlanktonSet, looked for as {looked}: {ORIGIN}"


def row(network: str, iterations: int = 1, **options: Any) -> Experiment:
    """A network with one look, or with two."""
    again = f"-x{iterations}" if iterations > 1 else ""
    figures = ERRORS if iterations == 1 else TWICE
    rate = LOCALIZER_LR["plankton", iterations].get(network, 1.0)
    paper = {"accuracy": (1 - figures[network] / 100, float("nan"))} if network in figures else {}
    train = replace(TRAIN, localizer_lr=rate)
    depth = "".join(c for c in network if c.isdigit())
    tags = {"depth": int(depth or 0), "network": f"STN-{network.removesuffix(depth)}X{again}"}
    name = network if network == "CNN" else f"STN-{network}"
    model = partial(nets.placed_plankton, network, iterations=iterations)
    return Experiment(
        f"{network.lower()}{again}", Plankton(), model, train,
        label=name + (", two looks" if again else ""), folds=2, augment=Drift,
        paper=paper, missing=missing, tags=tags,
        quick={"data": Plankton(per_class=8), "train": replace(train, steps=3, batch_size=8), "folds": 1}, **options,
    )  # fmt: skip


def short(full: Experiment) -> Experiment:
    """The same row by the shorter recipe, from weights that let signals through."""
    model = partial(full.model, scaled=True)
    tags = {**full.tags, "network": f"{full.tags['network']}, short"}
    quick = {**full.quick, "train": replace(SHORT, steps=3, batch_size=8)}
    name, label = f"{full.name}-short", f"{full.label}, 8,000 steps"
    return replace(full, name=name, label=label, model=model, train=SHORT, tags=tags, column="best", quick=quick)


ONCE = {name: row(name, column="extra" if name == "CNN" else "published") for name in ("CNN", *ERRORS)}
TABLE = Table(
    "placement20/table5",
    "Placement 2020, Table V: plankton",
    [
        *ONCE.values(),
        *(row(network, 2) for network in TWICE),
        *(short(ONCE[name]) for name in FEW),
    ],
    claims=[
        *(Claim(f"STN-{a} beats STN-C0", a.lower(), "c0") for a in ("SL2", "SL4", "SL7", "DL2", "DL4")),
        *(Claim(f"STN-{a} beats STN-{b}", a.lower(), b.lower())
          for a, b in (("SL2", "C2"), ("DL2", "C2"), ("SL4", "C4"), ("SL7", "C7"), ("SL7", "DL7"), ("SL10", "DL10"))),
        Claim("A second look helps STN-C0", "c0-x2", "c0"),
        *(Claim(f"STN-{a} beats {b}, 8,000 steps", f"{a.lower()}-short", f"{b.lower().removeprefix('stn-')}-short")
          for a, b in (("SL2", "STN-C0"), ("SL7", "STN-C0"), ("DL2", "STN-C0"), ("SL2", "STN-C2"), ("DL2", "STN-C2"),
                       ("C0", "CNN"))),
    ],
    figures={"depth": against("depth", "network", logarithmic=False)},
    quick=("cnn", "c2", "dl2", "sl2"),
    note="The competition's test labels were never published: figures are on a fixed seventh of the training images, "
    "and the networks learn from four fifths of them, so that only their order compares with the paper's. "
    "Localizers' learning rates are those the paper found for each network. A shorter recipe, for some networks: "
    "8,000 steps of Adam along a cosine instead of 215,000 of SGD, localizers a tenth "
    "as fast, and weights that start larger than torch's own, at which ten layers let hardly any of the image through.",
)  # fmt: skip
