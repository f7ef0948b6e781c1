"""Placement'20, Table III: house numbers, with STN'15's own networks and with transformers that warp the input."""

from experiments.numbers import row
from pstn.experiment import Claim, Table

#: Errors in per cent of the paper's own runs.
ERRORS = {"CNN": 3.88, "C0-large": 3.69, "C0123": 3.61, "SL0123": 3.49}

TABLE = Table(
    "placement20/table3",
    "Placement 2020, Table III: house numbers",
    [row(network, error) for network, error in ERRORS.items()],
    metrics=("numbers", "accuracy", "nll"),
    claims=[
        Claim(f"STN-SL0123 beats {words}", "sl0123", other, "numbers")
        for other, words in (("cnn", "the CNN"), ("c0-large", "STN-C0-large"), ("c0123", "STN-C0123"))
    ],
    note="A number counts when all of its digits are right. STN'15 reports errors of 4.0, 3.7 and 3.6 % for CNN, "
    "C0-large (its ST-CNN Single) and C0123 (Multi). Trained on are the train and extra images "
    "together, less 5,000; the placement paper does not say which it takes.",
)
