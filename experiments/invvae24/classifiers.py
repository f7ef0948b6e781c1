"""InvVAE 2024, Table 1 once more: the paper's accuracies, with a classifier for each of the two test sets."""

from dataclasses import replace

from experiments.invvae24.study.measure import apart
from experiments.invvae24.table1 import PAPER
from experiments.invvae24.table1 import TABLE as STUDY
from pstn.experiment import Experiment, Table


def row(name: str) -> Experiment:
    """An arm of the study that the paper has, measured with two classifiers."""
    found = STUDY.row(name)
    paper = {metric: found.paper[metric] for metric in ("accuracy", "moved_accuracy")}
    return replace(found, measure=apart, folds=1, line=found.label, column="published", paper=paper)


TABLE = Table(
    "invvae24/classifiers",
    "InvVAE 2024, Table 1, with two classifiers",
    [row(name) for name in PAPER],
    metrics=("accuracy", "moved_accuracy", "gap"),
    quick=("vae10-base-none", "vae10-augmented-none"),
    note="The paper does not say which training pictures its classifier learns from. In invvae24/table1 they are those "
    "that the autoencoder was trained on, for both test sets; here, each test set has a classifier of its own, learned "
    "from training pictures as they are for pictures as they are, and from augmented ones for augmented ones, which "
    "comes nearer to the paper's figures. One network each, as in the paper: no test of a difference.",
)
