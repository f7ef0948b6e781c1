"""What the rows with batch normalisation of pstn22/table2 were chosen by, and the width for series: validation only.

    PSTN_DATA=... python -m benchmarks.normed_search --device cuda

Digits: the papers' classifier and one with batch normalisation, each with dropout of a half and of a quarter; a learned
spread at three weights of its divergence, or a given one at four strengths; two weight decays. 60 epochs for 10,000
digits, the papers' 600 for fewer. Networks are trained on the papers' folds and measured on their validation digits.
Series: the recipe's network with one, two and four times the filters, on the quarter of three train files that the
tables choose settings by.

The results hold what was finished before the choice, a line a setting, means over the folds, trained by a driver of the
same rows before this file was there. Without a GPU, the networks with batch normalisation for 30 and 100 digits were
trained on two folds and measured on 4,000 of the validation digits. The weight of 9, dropout of a half and a decay of
0.1 over the root of n were read off these; width 2 has the least mean of the logarithms of NLL.

A second round, for calibration, with that decay and dropout (``weights``): eight weights of the divergence for 10 to
10,000 digits (a third of the epochs for 3,000, a tenth for 10,000, which was not finished). Few digits want a smaller
one, many a larger one; the weight of twice the fourth root of n was read off it. With that weight, learning rates for
10, 30 and 100 digits (``rates``): networks one by one on a CPU, two folds for 100. Below 100 digits, 0.002 is better
than the table's 0.001; the table's rows have not been trained with it yet.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from experiments import mnist, series
from pstn import STN, nets
from pstn.experiment import Experiment, Split, Table, run
from pstn.recipe import settings

PAPERS = partial(nets.classifier, mnist.SHAPE, 10, channels=(12, 24), hidden=52)
NORMED = partial(nets.normed_classifier, mnist.SHAPE, 10)
BODIES = {
    "papers-50": PAPERS,
    "papers-25": partial(PAPERS, dropout=0.25),
    "normed-50": NORMED,
    "normed-25": partial(NORMED, dropout=0.25),
}
DECAYS = (0.01, 0.001)


@dataclass(frozen=True)
class Held:
    """Data whose validation part takes the place of its test part, which nothing looks at."""

    source: mnist.Subset | series.Series

    def __call__(self, fold: int) -> Split:
        split = self.source(fold)
        return Split(split.train, split.validation, split.validation)


def digits(body: str, sigma: float | None = None) -> STN:
    """A classifier behind affine maps of a learned or a given spread."""
    return mnist.spread(BODIES[body](), sigma)


def weights():
    """A second round, for calibration: how much the divergence should count for how many digits."""
    for n in (10, 30, 100, 1000, 3000, 10_000):
        epochs = 60 if n == 10_000 else 200 if n == 3000 else 600
        train = replace(mnist.normed_train(n, mnist.NORMED_WEIGHT), epochs=epochs, lr=mnist.LEARNED.lr)
        usual = {"data": Held(mnist.Subset(n)), "folds": 2 if n >= 1000 else 5}
        values = {"kl_weight": (2.0, 3.0, 4.5, 6.0, 9.0, 13.5, 18.0, 27.0)}
        yield Experiment(f"weights-{n}", model=mnist.normed, train=train, grid=values, **usual)


def rates():
    """A third round: learning rates where steps are few."""
    for n, more in ((10, 3.2e-3), (30, 4e-3), (100, 4e-3)):
        train = mnist.normed_train(n, mnist.FOURTH_WEIGHT * n**0.25)
        yield Experiment(
            f"rates-{n}", Held(mnist.Subset(n)), mnist.normed, train, folds=5, grid={"lr": (1e-3, 2e-3, more)}
        )


def grid():
    """All of the search."""
    for body in BODIES:
        for n in (30, 100, 1000, 10_000):
            usual = {"data": Held(mnist.Subset(n)), "model": partial(digits, body), "folds": 2 if n >= 1000 else 5}
            epochs = {"epochs": 60 if n == 10_000 else 600}
            values = {"kl_weight": (9.0, 18.0, 36.0), "weight_decay": DECAYS}
            yield Experiment(f"learned-{body}-{n}", train=replace(mnist.LEARNED, **epochs), grid=values, **usual)
            values = {"sigma": (0.07, 0.1, 0.15, 0.2), "weight_decay": DECAYS}
            yield Experiment(f"given-{body}-{n}", train=replace(mnist.COPIES, **epochs), grid=values, **usual)
    for name in ("UWaveGestureLibraryX", "PhalangesOutlinesCorrect", "FaceAll"):
        data, train = Held(series.Series(name)), settings(3 * series.SETS[name][2] // 4, 1)
        for width in (1, 2, 4):
            yield Experiment(f"wide-{width}-{name.lower()}", data, partial(series.wide, name, width), train)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="where to train")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the folder for networks and records")
    parser.add_argument("--rows", nargs="*", default=(), help="names of rows, or patterns such as 'weights-*'")
    given = parser.parse_args()
    table = Table("search/normed", "The search behind the batch normed rows", [*grid(), *weights(), *rates()])
    where = {"device": given.device, "runs": given.runs, "results": given.runs}
    run(table, rows=given.rows, console=Console(), **where)
