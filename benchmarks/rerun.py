"""The P-STN papers' tables of digits, calibration, turned and placed pictures, from nothing: how long they take.

    python -m benchmarks.rerun --out benchmarks/results/rerun.jsonl

One command, ``pstn reproduce``, into an empty folder, build/rerun: networks are trained, settings chosen, choices
tested, all as anybody would. The rows are the papers', tuned augmentation beside them, and ours that are to be better,
of as many networks as the papers have: five folds of digits, one run where the paper gives no deviation. What these
files have beyond that (repeats of such runs, further folds for tests of claims, other comparisons of ours) is left out.
``PSTN_BENCH_SECONDS`` stops it after so many seconds, as Ctrl-C does, and the next call goes on; what was
spent is summed. ``PSTN_BENCH_PARTS=4`` trains for a quarter of all epochs: the whole then takes four times as long at
most, since processes start and networks are tested as often. The ratio is that of half an hour to the whole. Needs
MNIST and Fashion-MNIST.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pstn.bench import BenchError, script
from pstn.experiment import compare, find
from pstn.train.checkpoint import write

DEVICES = ("cuda",)
TABLES = ("pstn22/table2", "pstn20/table1", "pstn22/calibration", "pstn20/calibration", "pstn22/rotated",
          "pstn22/placement")  # fmt: skip
#: Rows of these files that are neither the papers' nor ours that are to be better than these.
BEYOND = ("learned-*", "normed-augment-*", "cnn-augment-copies-*", "cnn-augment-cosine-*", "pstn-accurate-*",
          "*-centred", "*-lit", "*-lit-short", "stn-*-short", "pstn-*-short")  # fmt: skip
JOBS, HALF_AN_HOUR = 16, 1800
FOLDER = Path("build/rerun")
#: A file of a table, as ``pstn reproduce --experiments`` reads it.
FILE = """from benchmarks.rerun import part

TABLE = part({id!r}, {parts})
"""


@cache
def part(id, parts):
    """The rows of a table that are measured here, trained for one of so many parts of their epochs."""
    table, made = find(id), {}

    def cut(row):
        if row is not None and row not in made:
            train = replace(
                row.train, epochs=math.ceil(row.train.epochs / parts), step_size=row.train.step_size / parts
            )
            trial = row.trial_epochs and math.ceil(row.trial_epochs / parts)
            once = any(math.isnan(deviation) for _, deviation in row.paper.values())  # the paper has one run
            folds = 1 if once else row.folds
            made[row] = replace(row, train=train, trial_epochs=trial, needs=cut(row.needs), folds=folds, further=0)
        return made.get(row)

    rows = [cut(row) for row in table.rows if not any(fnmatchcase(row.name, words) for words in BEYOND)]
    return replace(table, rows=rows, claims=(), figures={}, quick=())


def written(folder, parts):
    """A folder of these tables."""
    for id in TABLES:
        path = folder / f"{id}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILE.format(id=id, parts=parts))
    return folder


def timed(command, folder, limit):
    """Run a command until it ends or has been running for so long; the seconds of all calls, and whether it ended."""
    spent = folder / "spent.json"
    before = json.loads(spent.read_text()) if spent.exists() else []
    start, ended = time.perf_counter(), True
    process = subprocess.Popen(command)
    try:
        if process.wait(limit):
            raise BenchError(f"{' '.join(command)} ended with status {process.returncode}")
    except subprocess.TimeoutExpired:
        ended = False
        process.send_signal(signal.SIGINT)
        process.wait()
    finally:
        write(spent, json.dumps([*before, time.perf_counter() - start]).encode())
    return json.loads(spent.read_text()), ended


def rows(device, quick):
    parts = int(os.environ.get("PSTN_BENCH_PARTS", "1"))
    folder = FOLDER.with_name("rerun-quick") if quick else FOLDER.with_name(f"{FOLDER.name}-{parts}")
    if quick:
        shutil.rmtree(folder, ignore_errors=True)
    tables, ids = written(folder / "tables", parts), TABLES[:1] if quick else TABLES
    command = [sys.executable, "-m", "pstn", "reproduce", *ids, "--jobs", str(JOBS), "--experiments", str(tables)]
    command += ["--device", device, "--runs", str(folder / "runs"), "--results", str(folder / "results")]
    command += ["--quick"] if quick else []
    limit = os.environ.get("PSTN_BENCH_SECONDS")
    spent, ended = timed(command, folder, None if limit is None else float(limit))
    if not ended:
        raise BenchError(f"stopped after {sum(spent):.0f} s in all; the same command goes on from there")
    found = [compare(part(id, parts).sliced() if quick else part(id, parts), results=folder / "results") for id in ids]
    measured = {one.table.id: f"{len(one.results)} of {len(one.table.rows)}" for one in found}
    networks = Counter(id for id in ids for _ in (folder / "results" / f"{id}{'-quick' * quick}.jsonl").open())
    yield {"seconds": sum(spent), "calls": len(spent), "parts": parts, "tables": measured, "networks": networks,
           "jobs": JOBS, "ratio": HALF_AN_HOUR / (parts * sum(spent)), "want": 1}  # fmt: skip


COLUMNS = {
    "rows of each table": lambda r: "; ".join(f"{id}: {rows}" for id, rows in r["tables"].items()),
    "networks": lambda r: f"{sum(r['networks'].values()):,}",
    "jobs": lambda r: str(r["jobs"]),
    "epochs": lambda r: "all" if r["parts"] == 1 else f"1 in {r['parts']}",
    "minutes": lambda r: f"{r['seconds'] / 60:.1f}",
    "minutes with all epochs": lambda r: f"{'at most ' * (r['parts'] > 1)}{r['parts'] * r['seconds'] / 60:.1f}",
    "half an hour over that": lambda r: f"**{r['ratio']:.2f}×**",
    "bar": lambda r: f"{r['want']}×",
}

if __name__ == "__main__":
    script(__file__)
