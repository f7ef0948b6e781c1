"""InvVAE 2024, Table 1: codes of Fashion-MNIST and of nudged Fashion-MNIST, with and without a transformer in front."""

import copy
import math
from functools import partial
from typing import Any

from torch import nn

from experiments.invvae24.study import figures
from experiments.invvae24.study.data import FILL, SHAPE, Clothes, nudge
from experiments.invvae24.study.measure import (
    CATEGORICAL,
    GAUSSIAN,
    categorical,
    categorical_shown,
    gaussian,
    gaussian_shown,
    paired,
)
from pstn import STN, Affine, C, Gaussian, Point, Similarity, nets
from pstn.experiment import Claim, Experiment, Table
from pstn.train import Train
from pstn.vae import VAE, CategoricalVAE, Paired, front, paired_error

#: The paper's, but for the size of a batch, of which it says nothing.
TRAIN = Train(
    epochs=20, batch_size=256, drop_last=True, lr=1e-3, localizer_lr=1.0, optimizer="adamw", weight_decay=0.01, seed=24
)
#: Numbers in a code: latent and, for categories, how many each.
WIDTHS: dict[str, dict[int, dict[str, int]]] = {
    "vae": {10: {"latent": 10}, 100: {"latent": 100}},
    "cat": {10: {"latent": 2, "categories": 5}, 100: {"latent": 10, "categories": 10}},
}
KINDS = {"vae": "VAE", "cat": "categorical VAE"}
FRONTS = {"none": "no transformer", "pre": "STN trained before", "stn": "joint STN", "pstn": "joint P-STN"}
SETS = {"base": "base", "augmented": "augmented", "fresh": "augmented anew each step"}
#: (base, augmented) accuracy and loss; the paper's categorical losses are 30 squared errors plus the divergence.
PAPER = {
    "vae10-base-none": (0.779, 0.6463, 0.2389, 0.4427),
    "vae10-base-pre": (0.7478, 0.6093, 0.1826, 0.2244),
    "vae10-augmented-none": (0.7713, 0.7133, 0.2574, 0.2808),
    "vae10-augmented-pre": (0.757, 0.6384, 0.1889, 0.2045),
    "cat100-base-none": (0.8564, 0.7452, 7.107 / 30, 13.0395 / 30),
    "cat100-base-pre": (0.8515, 0.7492, 5.2893 / 30, 6.5253 / 30),
    "cat100-augmented-none": (0.851, 0.7635, 7.6776 / 30, 8.6028 / 30),
    "cat100-augmented-pre": (0.851, 0.7504, 5.4501 / 30, 5.9202 / 30),
}
#: Rows whose records keep pictures for the figures.
SHOWN = ("vae10-augmented-none", "vae10-augmented-pre", "vae10-augmented-stn", "cat100-augmented-stn")
QUICK = ("vae10-augmented-none", "vae10-augmented-pre", "vae10-augmented-stn", "cat100-augmented-pstn")
#: What a quick look trains on, and for how long.
QUICK_PICTURES, QUICK_STEPS = 1500, 100


def tutorial() -> Paired:
    """The transformer of the tutorial that the paper follows: raw affine matrices, 5,520 parameters."""
    localizer = nets.localizer(SHAPE, channels=(8, 10), kernel=(7, 5), hidden=32)
    return Paired(front(SHAPE, Affine(scale="linear"), Point(), localizer=localizer, fill=FILL))


def network(kind: str, width: int, before: str, pretrained: nn.Module | None = None) -> VAE:
    """An autoencoder with one of the four fronts."""
    made: STN | None = None
    if before == "pre":
        assert isinstance(pretrained, Paired)
        made = copy.deepcopy(pretrained.front).requires_grad_(False)
    elif before != "none":
        # the prior is as wide as the nudges: ±10° and ±20 % are 0.2 at most, ±4 pixels are 0.29
        posterior = Point() if before == "stn" else Gaussian(prior_scale=0.2, spread=0.03)
        made = front(SHAPE, Similarity(), posterior, fill=FILL, placement=C(0, iterations=2))
    # one that is not trained any more defines the target; one that is compares where the picture was seen
    compare = "canonical" if before == "pre" else "observed"
    if kind == "vae":
        return VAE(SHAPE, **WIDTHS[kind][width], front=made, compare=compare)
    return CategoricalVAE(SHAPE, **WIDTHS[kind][width], temperature=0.5, front=made, compare=compare)


def row(kind: str, width: int, trained: str, before: str) -> Experiment:
    """One arm of the study."""
    name = f"{kind}{width}-{trained}-{before}"
    shown, label = name in SHOWN, f"{KINDS[kind]}, {width} numbers, {SETS[trained]}"
    scores = dict(zip(("accuracy", "moved_accuracy", "loss", "moved_loss"), PAPER.get(name, ()), strict=False))
    measures = {"vae": (gaussian, gaussian_shown), "cat": (categorical, categorical_shown)}
    data = Clothes(trained)
    # the paper's transformer and ours stand on one line
    line = f"{label}, {'transformer' if before in ('pre', 'stn') else FRONTS[before]}"
    column = (
        "published"
        if name in PAPER
        else "best"
        if f"{kind}{width}-{trained}-pre" in PAPER and before == "stn"
        else "extra"
    )
    options: dict[str, Any] = {
        "label": f"{label}, {FRONTS[before]}",
        "line": line,
        "column": column,
        "loss": GAUSSIAN if kind == "vae" else CATEGORICAL,
        "measure": measures[kind][shown],
        "needs": PRETRAINED if before == "pre" else None,
        "paper": {metric: (value, math.nan) for metric, value in scores.items()},
        "tags": {"kind": kind, "width": width, "train": trained, "front": before},
        "quick": quick(data),
    }
    if trained == "fresh":
        options["augment"] = nudge
    return Experiment(name, data, partial(network, kind, width, before), TRAIN, **options)


def quick(data: Clothes) -> dict[str, Any]:
    """A quick look: few pictures, few steps."""
    return {
        "data": Clothes(data.train, QUICK_PICTURES),
        "train": Train(**{**vars(TRAIN), "steps": QUICK_STEPS, "batch_size": 64}),
    }


PRETRAINED = Experiment(
    "transformer", Clothes("pairs"), tutorial, TRAIN, label="STN, augmented to base", column="extra",
    loss=paired_error, measure=paired, quick=quick(Clothes("pairs")),
)  # fmt: skip
ARMS = [
    (kind, width, trained, before)
    for kind in KINDS
    for width in (10, 100)
    for trained in ("base", "augmented")
    for before in FRONTS
] + [(kind, width, "fresh", before) for kind in KINDS for width in (10, 100) for before in ("none", "stn")]

CLAIMS = [
    # section 5: the best accuracy on the augmented set is the categorical VAE's, trained on it, without transformer
    Claim("Categorical codes classify augmented pictures better than Gaussian ones", "cat100-augmented-none",
          "vae10-augmented-none", "moved_accuracy", control=("cat100-augmented-none", "vae100-augmented-none")),
    Claim("Categorical codes classify base pictures better than Gaussian ones", "cat100-base-none", "vae10-base-none",
          control=("cat100-base-none", "vae100-base-none")),
    Claim("Of categorical VAEs, augmented training is best on augmented pictures", "cat100-augmented-none",
          "cat100-base-none", "moved_accuracy"),
    Claim("The best categorical VAE needs no transformer: it is ahead of the STN trained before",
          "cat100-augmented-none", "cat100-augmented-pre", "moved_accuracy"),
    Claim("... and of a joint one", "cat100-augmented-none", "cat100-augmented-stn", "moved_accuracy"),
    # section 4
    Claim("An STN trained before makes a VAE worse on augmented pictures", "vae10-augmented-none",
          "vae10-augmented-pre", "moved_accuracy"),
    Claim("Test losses of categorical VAEs are higher (in one unit)", "vae10-base-none", "cat100-base-none", "loss",
          False),
    Claim("A larger code makes the VAE better", "vae100-base-none", "vae10-base-none"),
    Claim("Augmented training helps a VAE on base pictures", "vae10-augmented-none", "vae10-base-none"),
    Claim("Augmented training hurts a VAE on augmented pictures", "vae10-base-none", "vae10-augmented-none",
          "moved_accuracy"),
    Claim("No model changes the gap: augmented training does not (VAE)", "vae10-base-none", "vae10-augmented-none",
          "gap", False),
    Claim("... nor does a joint transformer (VAE)", "vae10-augmented-none", "vae10-augmented-stn", "gap", False),
    # what the paper leaves to future work
    *(
        claim
        for code, name in (("vae10", "VAE, 10"), ("vae100", "VAE, 100"), ("cat10", "categorical, 10"),
                           ("cat100", "categorical, 100"))
        for claim in (
            Claim(f"Trained jointly, the STN narrows the gap ({name})", f"{code}-augmented-stn",
                  f"{code}-augmented-none", "gap", False),
            Claim(f"... and is more accurate on augmented pictures than plain augmentation ({name})",
                  f"{code}-fresh-stn", f"{code}-fresh-none", "moved_accuracy"),
            Claim(f"... and on base pictures than the same VAE without it ({name})", f"{code}-augmented-stn",
                  f"{code}-augmented-none"),
            Claim(f"... and on base pictures than a VAE of base pictures ({name})", f"{code}-augmented-stn",
                  f"{code}-base-none"),
            Claim(f"The joint P-STN's codes move less than the joint STN's ({name})", f"{code}-augmented-pstn",
                  f"{code}-augmented-stn", "invariance", False),
        )
    ),
]  # fmt: skip

TABLE = Table(
    "invvae24/table1",
    "InvVAE 2024, Table 1: transformation-invariant autoencoders of Fashion-MNIST",
    [PRETRAINED, *(row(*arm) for arm in ARMS)],
    metrics=("accuracy", "moved_accuracy", "gap", "loss", "moved_loss", "error", "moved_error", "invariance"),
    claims=CLAIMS,
    figures={
        "sets": figures.sets,
        "transformer": figures.lines(
            "What the encoder sees", ("augmented", figures.MOVED), ("seen", figures.MOVED_SEEN),
            ("of base", figures.BASE_SEEN),
        ),
        "reconstructions": figures.lines(
            "Reconstruction", ("augmented", figures.MOVED), ("drawn", figures.MOVED_DRAWN),
            ("put back", figures.MOVED_BACK),
        ),
        "codes": figures.projections,
        "confusion": figures.confusions,
        "wrong": figures.wrong,
        "traversal": figures.traversals,
        "samples": figures.samples,
    },
    quick=QUICK,
    note="Accuracy is that of logistic regression on the codes (means; log-probabilities of categories), learned from "
    "the training set of the row's own kind. A loss is the squared error a pixel of normalised pictures plus the "
    "weighted divergence in nats, 0.001 for the VAE and 0.001/30 for categories: the paper's categorical losses are "
    "30 squared errors plus 0.001 of the divergence (they agree with its VAE's when divided by 30), and are shown so "
    "divided. An STN trained before changes what a loss is compared with, a blurred picture; the error is in the "
    "observed pose for all rows. Codes of 10 numbers are 10 Gaussians or 2 variables of 5 categories, of 100 numbers "
    "100 Gaussians or 10 variables of 10. The paper reports one run; here are five seeds of everything but the data. "
    "A joint transformer looks twice and is trained by nothing but the bound: the decoder draws in canonical pose and "
    "the drawing is warped back to where the picture was seen. How was chosen on held-out training pictures. "
    "Rows augmented anew each step are the baseline of plain augmentation, with and without such a transformer.",
)  # fmt: skip
