"""Fleets of the papers' tables side by side on one GPU, against one after the other.

    python -m benchmarks.company --out benchmarks/results/company.jsonl

The fleets are those that take longest of the P-STN papers' tables of MNIST subsets and of placed pictures, each in a
process of its own, as `pstn reproduce --jobs` has them, compiled beforehand. Groups of so many of them train for some
seconds, everything included that a step needs. A round is a step of each: its time is the sum of all steps' times over
how many go at once, and the ratio is that of one after the other to it. Needs MNIST and Fashion-MNIST.
"""

from __future__ import annotations

import multiprocessing
import re
import time
import warnings
from dataclasses import replace

import torch

from benchmarks.rerun import TABLES, part
from pstn.bench import script, source, tabulated
from pstn.experiment import find
from pstn.experiment.network import plain, recipe
from pstn.experiment.share import shared_gpu
from pstn.train import Fleet, Member, seeded
from pstn.train.signals import Signals

DEVICES = ("cuda",)
FLEETS = {
    "CNN": "pstn22/table2:cnn-10000",
    "STN": "pstn22/table2:stn-10000",
    "P-STN": "pstn22/table2:pstn-10000",
    "P-STN, Gaussian": "pstn22/table2:gaussian-10000",
    "CNN + augmentation": "pstn22/table2:cnn-augment-10000",
    "STN + augmentation": "pstn22/table2:stn-augment-10000",
    "learned spread": "pstn22/table2:learned-10000",
    "learned spread, batch norm": "pstn22/table2:fourth-10000",
    "diffeomorphic STN": "pstn20/table1:diffeo-stn-10000",
    "diffeomorphic P-STN": "pstn20/table1:diffeo-pstn-10000",
    "P-STN, 56 × 56": "pstn22/placement:pstn-56",
    "P-STN, 96 × 96": "pstn22/placement:pstn-96",
}
#: How many at once: divisors of how many there are.
AT_ONCE = (1, 2, 4, 6, 12)
SECONDS = 1.5
#: The fleets that rows of the tables whose length is told are as slow as, by the beginning of their names.
ALIKE = {
    r"pstn22/table2:pstn-\d": "P-STN", "pstn22/calibration:pstn": "P-STN",
    "diffeo-pstn": "diffeomorphic P-STN", "diffeo-stn": "diffeomorphic STN", "cnn-augment-copies": "learned spread",
    "cnn-augment": "CNN + augmentation", "stn-augment": "STN + augmentation", "pstn-augment": "P-STN, Gaussian",
    "normed-augment": "learned spread, batch norm", "fourth": "learned spread, batch norm", "learned": "learned spread",
    "gaussian": "P-STN, Gaussian", "cnn": "CNN", "stn-96": "P-STN, 96 × 96", "pstn-96": "P-STN, 96 × 96",
    "starts": "P-STN, 96 × 96", "stn-56": "P-STN, 56 × 56", "pstn-56": "P-STN, 56 × 56", "centred": "CNN",
    "upright": "CNN", "pstn": "P-STN, Gaussian", "stn": "STN",
}  # fmt: skip


def fleet(name):
    """A fleet with one chunk of steps behind it; a frozen classifier is a blank one."""
    id, row = name.split(":")
    row = find(id).row(row)
    setting = row.settings()[0]
    with seeded(0):
        before = None if row.needs is None else row.needs.build({}, None).eval()
    members = []
    for fold in range(row.folds):
        config = replace(row.config(setting, fold), accelerator="cuda", validate_every=0)
        with seeded(config.seed):
            model = row.build(setting, before)
        members.append(Member(model, row.data(fold).train, None, config, row.augmentation(setting), row.loss))
    with Signals() as signals:
        made = Fleet(members, signals)
    made.clock = time.perf_counter()
    made.advance()
    made.look()
    return made


def work(name, orders, answers):
    """Train a fleet for as many seconds as one is told, again and again."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = fleet(name)
    answers.put((name, any(lane.kernel is not None for lane in made.lanes.values())))
    while seconds := orders.get():
        start, before = time.perf_counter(), made.step
        while time.perf_counter() - start < seconds:
            made.advance()
        made.look()
        answers.put((name, (time.perf_counter() - start) / (made.step - before)))


def rows(device, quick):
    names = dict(list(FLEETS.items())[: 2 if quick else None])
    context = multiprocessing.get_context("spawn")
    with shared_gpu():
        answers, orders = context.Queue(), {name: context.Queue() for name in names.values()}
        processes = [context.Process(target=work, args=(n, q, answers), daemon=True) for n, q in orders.items()]
        for process in processes:
            process.start()
        whole = dict(answers.get(timeout=600) for _ in processes)
        kernels = [label for label, name in names.items() if whole[name]]
        alone = None
        for count in (n for n in AT_ONCE if len(names) % n == 0):
            labels, times = list(names), {}
            for first in range(0, len(labels), count):
                some = labels[first : first + count]
                for label in some:
                    orders[names[label]].put(SECONDS)
                times |= dict(answers.get(timeout=60) for _ in some)
            spent = {label: times[name] for label, name in names.items()}
            around = sum(spent.values()) / count
            alone = alone or around
            yield {"processes": count, "kernels": kernels,
                   "microseconds": {k: round(1e6 * v, 1) for k, v in spent.items()}, "round": around,
                   "ratio": alone / around, "want": None}  # fmt: skip
        for queue in orders.values():
            queue.put(0)
        for process in processes:
            process.join(30)


COLUMNS = {
    "at once": lambda r: str(r["processes"]),
    **{label: (lambda r, label=label: f"{r['microseconds'].get(label, 0):,.0f}") for label in FLEETS},
    "a round, µs": lambda r: f"{1e6 * r['round']:,.0f}",
    "ratio": lambda r: f"**{r['ratio']:.1f}×**",
}


def steps():
    """The steps that the fleets of `benchmarks.rerun` take, by what they are as slow as; equal recipes count once."""
    found, seen = dict.fromkeys(FLEETS, 0), set()
    for id in TABLES:
        for row in part(id, 1).rows:
            full = f"{id}:{row.name}"
            kind = next(k for start, k in ALIKE.items() if re.match(start, full if ":" in start else row.name))
            recipes = {recipe(row, plain(setting)) for setting in row.settings()}
            if recipes <= seen:
                continue
            seen |= recipes
            examples = row.tags.get("n", 60_000 if row.name == "upright" else 50_000)
            length = row.train.length(examples)
            trial = (
                0 if row.trial_epochs is None or len(recipes) == 1 else length * row.trial_epochs // row.train.epochs
            )
            found[kind] += length + trial
    return found


def report(rows):
    """The last run, and how long the tables take by it."""
    rows = [r for r in rows if r["started"] == rows[-1]["started"]]
    kernels = "; ".join(rows[0]["kernels"])
    table, best = tabulated(COLUMNS, rows), min(rows, key=lambda r: r["round"])
    if best["processes"] == 1:
        return f"{table}\n\n{source(rows[0])}"
    minutes = sum(n * best["microseconds"][kind] for kind, n in steps().items()) / best["processes"] / 6e7
    return (
        f"Microseconds a step of all networks of a fleet (their step is one kernel: {kernels}).\n\n{table}\n\n"
        f"{source(rows[0])}\n\n"
        f"The fleets of `benchmarks.rerun` take {sum(steps().values()) / 1e6:.1f} million steps, rows that share "
        f"their networks counted once. At the rates of {best['processes']} at once, that is {minutes:.0f} minutes; "
        "compilation and tests are not counted, grids of settings count as one network a fold, and rows that are none "
        "of the fleets above as the one that they are nearest to."
    )


if __name__ == "__main__":
    script(__file__)
