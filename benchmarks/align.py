"""Joint alignment against DTW barycentre averaging: nearest-centroid accuracy on five UCR sets, side by side.

    PSTN_DATA=... python benchmarks/align.py --out benchmarks/results/align.jsonl

The peer is tslearn (``pip install tslearn``); without it the run says so and goes on with what it has. The rows of a
data set are

- mean: the Euclidean mean of each class, Euclidean distance;
- dba: DTW barycentre averaging with DTW distance, as it comes, and with the window (a Sakoe-Chiba band) and the
  distance (DTW or Euclidean) chosen on the training series;
- align: pstn.align as it comes, and with weight, length scale and rule chosen on the training series.

Both choices are made by the same cross-validation: the same folds of the training series, the same cross-entropy of
held-out labels. The test series are looked at after everything is chosen.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from pstn import __version__
from pstn.align import align, choose
from pstn.align.choose import accuracy, log_loss
from pstn.data import ucr
from pstn.data.base import shuffled_by_class
from pstn.train.log import environment

DEVICES = ("cpu",)
SETS = ("CBF", "GunPoint", "Trace", "ECG200", "ItalyPowerDemand")
WINDOWS = (0.05, 0.1, 0.2, None)  # parts of the series' length, the stiffest first
FOLDS = 3


def load(name):
    train, test = (ucr(name, split) for split in ("train", "test"))
    return train.x, train.y, test.x, test.y


def euclidean(x, means):
    return torch.cdist(x.flatten(1).double(), means.flatten(1).double())


def by_mean(x, y, x_test, y_test, seed):
    start = time.perf_counter()
    means = torch.stack([x[y == k].mean(0) for k in y.unique()])
    distances = euclidean(x_test, means)
    yield {"method": "mean", "test": accuracy(distances, y_test), "seconds": time.perf_counter() - start}


def by_dba(x, y, x_test, y_test, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tslearn.barycenters import dtw_barycenter_averaging
        from tslearn.metrics import cdist_dtw

    def numpy(a):
        return a.transpose(1, 2).double().numpy()

    def fit(x, y, window):
        band = {} if window is None else {"global_constraint": "sakoe_chiba", "sakoe_chiba_radius": window}
        means = np.stack(
            [dtw_barycenter_averaging(numpy(x[y == k]), max_iter=30, metric_params=band) for k in y.unique()]
        )
        return torch.from_numpy(means).transpose(1, 2), band

    def distances(x, means, band):
        return {"euclidean": euclidean(x, means), "dtw": torch.from_numpy(cdist_dtw(numpy(x), numpy(means), **band))}

    fit(x[:2], y[:2] * 0, None)  # the first call compiles
    start = time.perf_counter()
    means, band = fit(x, y, None)
    plain = accuracy(distances(x_test, means, band)["dtw"], y_test)
    yield {"method": "dba", "chosen": {"window": None, "distance": "dtw"}, "test": plain,
           "seconds": time.perf_counter() - start}  # fmt: skip

    start = time.perf_counter()
    fold = folds(y, seed)
    windows = [None if w is None else max(1, round(w * x.shape[-1])) for w in WINDOWS]
    table = []
    for window in windows:
        held_out = {kind: torch.empty(len(x), len(y.unique()), dtype=torch.float64) for kind in ("euclidean", "dtw")}
        for k in range(FOLDS):
            for kind, d in distances(x[fold == k], *fit(x[fold != k], y[fold != k], window)).items():
                held_out[kind][fold == k] = d
        for kind, d in held_out.items():
            scores = {"loss": log_loss(d.square(), y), "accuracy": accuracy(d, y)}
            table.append({"window": window, "distance": kind, **scores})
    table.sort(key=lambda row: row["loss"])
    means, band = fit(x, y, table[0]["window"])
    test = accuracy(distances(x_test, means, band)[table[0]["distance"]], y_test)
    yield {"method": "dba, tuned", "chosen": table[0], "test": test, "tried": table,
           "seconds": time.perf_counter() - start}  # fmt: skip


def by_align(x, y, x_test, y_test, seed):
    def fit(**settings):
        found = align(x, y=y, progress=False, **settings)
        return accuracy(found.match(x_test).distances[found.rule], y_test), found

    start = time.perf_counter()
    test, found = fit()
    before, after = found.variance
    yield {"method": "align", "test": test, "variance": [before, after], "seconds": time.perf_counter() - start}

    start = time.perf_counter()
    choice = choose(x, y, folds=FOLDS, seed=seed)
    test, found = fit(**choice.best)
    yield {"method": "align, tuned", "chosen": choice.table[0], "test": test, "variance": list(found.variance),
           "tried": choice.table, "seconds": time.perf_counter() - start}  # fmt: skip


def folds(y, seed):
    order, rank = shuffled_by_class(y, torch.Generator().manual_seed(seed))
    fold = torch.empty_like(rank)
    fold[order] = rank % FOLDS
    return fold


def versions():
    found = {"pstn": __version__, "torch": str(torch.__version__), "numpy": np.__version__,
             "python": platform.python_version()}  # fmt: skip
    if importlib.util.find_spec("tslearn"):
        from importlib.metadata import version

        found["tslearn"] = version("tslearn")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", nargs="+", default=SETS, help="UCR sets, looked for in $PSTN_DATA")
    parser.add_argument("--out", type=Path, help="append a JSON line a row to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    methods = [by_mean, by_dba, by_align]
    if importlib.util.find_spec("tslearn") is None:
        print("tslearn is not installed, so there is no DTW barycentre averaging: pip install tslearn")
        methods.remove(by_dba)
    facts = {
        "command": " ".join(["python", *sys.argv]),
        "seed": args.seed,
        **environment(torch.device("cpu")),
        "versions": versions(),
        "threads": args.threads,
        "cores": os.cpu_count(),
    }
    print(f"{'set':18}{'method':15}{'accuracy':>9}{'seconds':>9}  chosen on the training series")
    for name in args.sets:
        data = load(name)
        for method in methods:
            for row in method(*data, args.seed):
                print(f"{name:18}{row['method']:15}{row['test']:9.3f}{row['seconds']:9.1f}  "
                      f"{row.get('chosen', '')}", flush=True)  # fmt: skip
                if args.out is not None:
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    with args.out.open("a") as file:
                        file.write(json.dumps({"set": name, **row, **facts}) + "\n")


if __name__ == "__main__":
    main()
