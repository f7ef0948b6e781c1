"""Reproduce a table: rows as data, settings chosen on validation data, paper against ours.

    python docs/tutorials/reproduce_a_table.py [figure.png]

The papers' tables are one command away: ``pstn reproduce --list`` shows them, ``pstn reproduce pstn22/table2 --quick``
runs a slice of one. Each is a short file of data. Here is one from scratch, small enough for a quarter of a minute on
one core: what 30 digits teach a CNN and a P-STN, next to what the paper reports. The digits need the extra ``demo``,
drawing the extra ``plot``.
"""

import sys
import tempfile
from functools import cache
from pathlib import Path

from pstn import STN, Similarity, StudentT, nets
from pstn.data import Normalise, digits
from pstn.experiment import Claim, Experiment, Split, Table, compare, run
from pstn.report.figures import choices
from pstn.train import Train

# %% The data, by fold: what to train on, what to choose settings by, and what to test with, which nobody looks at
# before the settings are chosen.

NORMALISE = Normalise(mean=0.1307, std=0.3081)
FOLDS = 3


@cache
def parts():
    whole = digits().normalised(NORMALISE).balanced_subset(49, seed=0)
    return whole.split((200, 200, *[30] * FOLDS), seed=0)


def few(fold):
    test, validation, *train = parts()
    return Split(train[fold].renamed(f"train {fold}"), validation.renamed("validation"), test.renamed("test"))


# %% The networks. What is tuned is an argument, or a field of `Train`.

SHAPE = (1, 28, 28)


def cnn():
    return STN(nets.classifier(SHAPE, 10, channels=(12, 24), hidden=52))


def pstn():
    return STN(nets.classifier(SHAPE, 10), nets.localizer(SHAPE), Similarity(), StudentT(), fill=float(NORMALISE.fill))


# %% The table. A row says all that it takes to run it; `paper` is what the paper reports, mean and deviation.

TRAIN = Train(steps=400, batch_size=8, lr=2e-3, weight_decay=0.01, schedule="cosine", accelerator="cpu", drop_last=True)
WEIGHTS = (1e-4, 1e-3)
ROWS = {"data": few, "train": TRAIN, "folds": FOLDS}
TABLE = Table(
    "mine/few_digits",
    "What 30 digits teach",
    [
        Experiment("cnn", model=cnn, label="CNN", paper={"accuracy": (0.7012, 0.0246)}, **ROWS),
        Experiment(
            "pstn", model=pstn, label="P-STN", grid={"kl_weight": WEIGHTS}, paper={"accuracy": (0.8100, 0.0392)}, **ROWS
        ),
    ],
    claims=[Claim("P-STN beats CNN", "pstn", "cnn")],
    note="The paper: P-STN 2022, table 2, n = 30; 10,000 test digits and longer training.",
)

# %% Running it. All networks of a kind train as one fleet; every network becomes a line of a file, so that a run that
# was stopped goes on where it was, and a number in a table can be traced to the command and the commit it came from.

folder = Path(tempfile.mkdtemp())
run(TABLE, device="cpu", runs=folder / "runs", results=folder / "results")

# %% Paper against ours, with a test for every claim.

comparison = compare(TABLE, results=folder / "results")
for table in comparison.tables():
    print(f"{table.title}\n{table.markdown()}\n")
print("\n".join(comparison.sentences()))

# %% What was tried: the choice is made on validation data, by each setting's mean over the folds.

records = comparison.by_name["pstn"].every
tried = {w: [r["validation"]["nll"] for r in records if r["setting"]["kl_weight"] == w] for w in WEIGHTS}
path = Path(sys.argv[1]) if len(sys.argv) > 1 else folder / "choice.png"
choices({"KL weight": tried}, "validation NLL").savefig(path, dpi=110)
print(f"figure: {path}")
