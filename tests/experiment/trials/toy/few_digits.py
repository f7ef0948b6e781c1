"""A table that takes seconds, with some of everything that a row can have."""

from trials.shared import TRAIN, Few, cnn, frozen, jitter, pstn

from pstn.experiment import Claim, Experiment, Table, against

USUAL = {"data": Few(40), "train": TRAIN, "folds": 2, "samples": 2}
PAPER = {"accuracy": (0.5, 0.1)}
CNN = Experiment("cnn", model=cnn, label="CNN", paper=PAPER, tags={"n": 40, "model": "CNN"}, **USUAL)
PSTN = {**USUAL, "folds": 3, "tuning_folds": 2, "grid": {"kl_weight": (1e-4, 1e-2), "spread": (0.05, 0.2)}}
TABLE = Table(
    "toy/few_digits",
    "A few digits",
    [
        CNN,
        Experiment("fast", model=cnn, line="CNN", column="best", grid={"lr": (3e-2,)}, paper=PAPER, **USUAL),
        Experiment("pstn", model=pstn, label="P-STN", tags={"n": 40, "model": "P-STN"}, **PSTN),
        Experiment("jitter", model=cnn, column="extra", augment=jitter, grid={"sigma": (0.05, 0.1)}, **USUAL),
        Experiment("frozen", model=frozen, label="STN on the CNN", column="extra", needs=CNN, **{**USUAL, "folds": 3}),
    ],
    claims=[Claim("P-STN beats CNN", "pstn", "cnn")],
    figures={"scores": against("n", "model")},
    quick=["cnn", "jitter"],
    fleet=4,
)
