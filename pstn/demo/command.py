"""The demonstration from beginning to end."""

from __future__ import annotations

import importlib.util
import json
import time
from typing import Any

from rich.console import Console

from pstn.demo.crew import Crew
from pstn.demo.job import Job
from pstn.demo.models import KINDS
from pstn.demo.page import QUICK, write_page, write_picture
from pstn.demo.results import details, gather, pick, table, verdict
from pstn.demo.settings import Demo
from pstn.train.checkpoint import write

NEEDED = ("mlxtend", "matplotlib")


def run(demo: Demo, console: Console, command: str = "pstn demo") -> dict[str, Any]:
    """Train, pick, test and report.

    Arguments:
        demo: The settings.
        console: Where to show progress and the table.
        command: The command that was given, for the report.

    Returns:
        What ``results.json`` holds.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"the demonstration needs {' and '.join(missing)}: pip install 'pstn[demo]'")
    for option, folder in (("--output", demo.output), ("--runs", demo.runs)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"cannot write to the folder {folder}: {error.strerror}; give another {option}") from error
    start = time.perf_counter()
    demo = demo.resolved()
    grids: dict[str, tuple[float, ...]] = {"augment": demo.spreads, "pstn": demo.kl_weights}
    # The seeds that picking looks at are trained at every value, the others at the one picked.
    planned = {
        kind: len(grids[kind]) * demo.tuning_seeds + demo.seeds - demo.tuning_seeds if kind in grids else demo.seeds
        for kind in KINDS
    }
    picking = {
        kind: [Job(demo, kind, seed, value) for value in grid for seed in range(demo.tuning_seeds)]
        for kind, grid in grids.items()
    }
    plain = [Job(demo, kind, seed) for kind in KINDS if kind not in grids for seed in range(demo.seeds)]
    assert demo.workers is not None
    console.print(
        f"{sum(planned.values())} networks of {demo.steps:,} steps, many at once in each of {demo.workers} processes; "
        f"kept in {demo.runs}",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    with Crew(demo.workers, planned, demo.steps, console) as crew:
        crew.train([*plain, *picking["augment"], *picking["pstn"]])
        picked = {kind: pick(jobs) for kind, jobs in picking.items()}
        for kind, value in picked.items():
            crew.name(kind, f"{KINDS[kind].label}, {KINDS[kind].tuned} = {value:g}")
        final = [Job(demo, kind, seed, picked.get(kind)) for kind in KINDS for seed in range(demo.seeds)]
        crew.train([job for job in final if job.kind in grids and job.seed >= demo.tuning_seeds])
        crew.test(final)

    tried = list(dict.fromkeys([*plain, *picking["augment"], *picking["pstn"], *final]))
    results = gather(demo, tried, final, command, time.perf_counter() - start)
    write(demo.output / "results.json", json.dumps(results, indent=1, ensure_ascii=False).encode())
    page = write_page(demo.output / "index.html", demo, final, results)
    console.print(table(results).rich(), details(results).rich())
    lines = [*verdict(results), *[QUICK] * demo.quick]
    if demo.picture is not None:
        lines.append(f"picture: {write_picture(demo.picture, demo, final)}")
    seconds = results["seconds"]
    lines.append(f"report: {page} ({seconds['wall']:.0f} s, {seconds['computing']:.0f} s of computing)")
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    return results
