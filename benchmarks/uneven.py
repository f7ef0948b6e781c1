"""A rare class among few labels of images: the recipe as it is, its spread weighed as for even classes, and no warps.

    PSTN_DATA=... python -m benchmarks.uneven --out benchmarks/results/uneven.jsonl

Pairs of classes, 120 examples of the one and 6 of the other; measured on 500 others of each, all from train files. The
ratio is the share of wrong answers, both classes alike, with the weight for even classes over that of the recipe.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.small_data import places
from pstn.bench import script
from pstn.data import fashion_mnist, mnist
from pstn.inference import predict
from pstn.metrics import summary
from pstn.recipe import recipe
from pstn.train import fit, seeded

DEVICES = ("cpu", "cuda")
SEED, COMMON, RARE, TEST, SAMPLES = 0, 120, 6, 500, 16
#: The common class and the rare one.
PAIRS = {"MNIST": ((1, 0), (3, 5), (4, 9)), "Fashion-MNIST": ((5, 7), (6, 0), (8, 1))}
LOADERS = {"MNIST": mnist, "Fashion-MNIST": fashion_mnist}


def rows(device, quick):
    """Measure."""
    for name, pairs in list(PAIRS.items())[: 1 if quick else None]:
        whole = LOADERS[name]("train")
        for common, rare in pairs[: 1 if quick else None]:
            train, test = parts(whole, common, rare)
            kinds = {"recipe": {}, "even": {"counts": (1, 1)}, "plain": {"warp": False}}
            found = {kind: measured(train, test, device, 20 if quick else None, how) for kind, how in kinds.items()}
            wrong = {kind: max(1 - scores["accuracy"], 1e-3) for kind, scores in found.items()}
            yield {"set": name, "common": whole.classes[common], "rare": whole.classes[rare], **found,
                   "ratio": wrong["even"] / wrong["recipe"], "want": None}  # fmt: skip


def parts(whole, common, rare):
    """A training set of the two classes, and as many others of each to measure on."""
    place, both = places(whole.y), (whole.y == common) | (whole.y == rare)
    fits = both & (place < torch.where(whole.y == common, COMMON, RARE))
    tests = both & (place >= COMMON) & (place < COMMON + TEST)
    return tuple(replace(whole.subset(k), y=(whole.y[k] == rare).long(), classes=("0", "1")) for k in (fits, tests))


def measured(train, test, device, steps, how):
    """Scores on as many of each class."""
    found = recipe(train, seed=SEED, steps=steps, **how)
    config = replace(found.config, accelerator="cuda" if device == "cuda" else "cpu")
    fit(found.model, replace(train, x=found.prepare(train.x)), None, config, progress=False)
    with seeded(SEED, device):
        p = predict(found.model, found.prepare(test.x).to(device), SAMPLES)
    scores = summary(p.probs.cpu(), test.y)
    return {"accuracy": scores["accuracy"], "nll": scores["nll"]}


COLUMNS = {
    "set": lambda r: r["set"],
    "120 of": lambda r: r["common"],
    "6 of": lambda r: r["rare"],
    **{
        f"{words}, {metric}": lambda r, kind=kind, metric=metric: f"{r[kind][metric]:.3f}"
        for kind, words in (("recipe", "recipe"), ("even", "weight for even classes"), ("plain", "no warps"))
        for metric in ("accuracy", "nll")
    },
    "ratio": lambda r: f"**{r['ratio']:.2f}×**",
}

if __name__ == "__main__":
    script(__file__)
