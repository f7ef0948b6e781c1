"""Running tables of tests, and what is to be the same however they were run."""

from pathlib import Path

import pstn.experiment.work as work
from pstn.experiment import Results, find, run

TRIALS = Path(__file__).parent / "trials"
#: What may differ between two runs of the same recipe.
CIRCUMSTANCES = ("seconds", "started", "command", "commit", "device", "versions")


def go(table, folder, **options):
    """A table, or that of a name, run on the CPU."""
    table = find(table, TRIALS) if isinstance(table, str) else table
    return run(table, device="cpu", runs=folder / "runs", results=folder / "results", **options)


def essence(folder, name="toy/few_digits"):
    """The records by their keys, without their circumstances."""
    records = Results(folder / "results" / f"{name}.jsonl").records
    return {key: {k: v for k, v in one.items() if k not in CIRCUMSTANCES} for key, one in records.items()}


def forbid(*args, **kwargs):
    raise AssertionError("nothing is to be trained")


def counting(monkeypatch):
    """A list that grows by the number of networks of every fleet."""
    sizes, real = [], work.fit_fleet

    def fit(members, **options):
        sizes.append(len(members))
        return real(members, **options)

    monkeypatch.setattr(work, "fit_fleet", fit)
    return sizes
