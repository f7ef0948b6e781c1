"""The P-STN papers' tables of digits, calibration, turned and placed pictures, from nothing: how long they take.

    python -m benchmarks.rerun --out benchmarks/results/rerun.jsonl

One command, ``pstn reproduce``, into an empty folder, build/rerun: networks are trained, settings chosen, choices
tested, all as anybody would. ``PSTN_BENCH_SECONDS`` stops it after so many seconds, as Ctrl-C does, and the next call
goes on; what was spent is summed. The ratio is that of half an hour to it. Needs MNIST and Fashion-MNIST.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from pstn.bench import BenchError, script
from pstn.experiment import compare, find
from pstn.train.checkpoint import write

DEVICES = ("cuda",)
TABLES = ("pstn22/table2", "pstn20/table1", "pstn22/calibration", "pstn20/calibration", "pstn22/rotated",
          "pstn22/placement")  # fmt: skip
JOBS, HALF_AN_HOUR = 14, 1800
FOLDER = Path("build/rerun")


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
    folder, ids = (FOLDER.with_name("rerun-quick"), TABLES[:1]) if quick else (FOLDER, TABLES)
    command = [sys.executable, "-m", "pstn", "reproduce", *ids, "--jobs", str(JOBS)]
    command += ["--device", device, "--runs", str(folder / "runs"), "--results", str(folder / "results")]
    if quick:
        shutil.rmtree(folder, ignore_errors=True)
        command.append("--quick")
    limit = os.environ.get("PSTN_BENCH_SECONDS")
    spent, ended = timed(command, folder, None if limit is None else float(limit))
    if not ended:
        raise BenchError(f"stopped after {sum(spent):.0f} s in all; the same command goes on from there")
    tables = [find(id).sliced() if quick else find(id) for id in ids]
    found = {table.id: compare(table, results=folder / "results") for table in tables}
    measured = {id: f"{len(one.results)} of {len(one.table.rows)}" for id, one in found.items()}
    yield {"seconds": sum(spent), "calls": len(spent), "tables": measured, "jobs": JOBS,
           "ratio": HALF_AN_HOUR / sum(spent), "want": 1}  # fmt: skip


COLUMNS = {
    "rows of each table": lambda r: "; ".join(f"{id}: {rows}" for id, rows in r["tables"].items()),
    "jobs": lambda r: str(r["jobs"]),
    "minutes": lambda r: f"{r['seconds'] / 60:.1f}",
    "half an hour over that": lambda r: f"**{r['ratio']:.1f}×**",
    "bar": lambda r: f"{r['want']}×",
}

if __name__ == "__main__":
    script(__file__)
