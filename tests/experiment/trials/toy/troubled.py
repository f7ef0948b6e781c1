"""A table of which some rows come to grief where TOY_TROUBLE is set, but not in the process that gives out the work."""

import multiprocessing
import os

import torch
from trials.shared import TRAIN, Few, cnn

from pstn.experiment import Experiment, Table


class Odd(Exception):
    """One that cannot travel to another process."""

    def __init__(self, a, b):
        super().__init__(a)


def broken(error):
    def model():
        if os.environ.get("TOY_TROUBLE") and multiprocessing.parent_process() is not None:
            raise error
        return cnn()

    return model


GPU = torch.AcceleratorError("CUDA error: device-side assert triggered")
USUAL = {"data": Few(40), "train": TRAIN, "folds": 2, "samples": 2, "column": "extra"}
TABLE = Table(
    "toy/troubled",
    "Trouble",
    [
        Experiment("gpu", model=broken(GPU), grid={"lr": (1e-2,)}, **USUAL),
        Experiment("odd", model=broken(Odd("strange", "thing")), grid={"lr": (2e-2,)}, **USUAL),
        Experiment("good", model=cnn, grid={"lr": (3e-2,)}, **USUAL),
    ],
    fleet=2,
)
