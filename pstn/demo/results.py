"""What came out: the figures of every network, what was picked, and who beats whom."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from pstn.demo.job import Job
from pstn.demo.models import KINDS
from pstn.demo.settings import Demo
from pstn.report.table import Column, Measured, Table, figure
from pstn.train.log import environment

#: The scores in the table: name, words, factor, digits, and whether more or less is better.
SCORES = (("accuracy", "accuracy, %", 100, 1, "max"), ("nll", "NLL", 1, 3, "min"), ("ece", "ECE", 1, 3, "min"))


def gather(demo: Demo, tried: Sequence[Job], final: Sequence[Job], command: str, seconds: float) -> dict[str, Any]:
    """All results as plain data, for ``results.json`` and for everything that is shown.

    Arguments:
        demo: The settings.
        tried: All networks that were trained.
        final: Those of them that were tested, by kind and seed.
        command: The command that was given.
        seconds: How long it took.
    """
    models = {}
    for name, kind in KINDS.items():
        mine = [job for job in final if job.kind == name]
        rows = []
        for job in mine:
            result, (_, _, scores) = job.result(), job.predictions()
            rows.append({"seed": job.seed, **scores, "seconds": result["seconds"], "validation": result["validation"]})
        grid: dict[float, list[dict[str, float]]] = {}
        for job in tried:
            if job.kind == name and job.strength is not None and job.seed < demo.tuning_seeds:
                grid.setdefault(job.strength, []).append(job.result()["validation"])
        models[name] = {
            "label": kind.label,
            "parameters": mine[0].result()["parameters"],
            "picked": mine[0].strength,
            "tried": [{"value": value, "validation": scores} for value, scores in sorted(grid.items())],
            "seeds": rows,
            "mean": {score: statistics.fmean(row[score] for row in rows) for score, *_ in SCORES},
            "deviation": {score: _deviation([row[score] for row in rows]) for score, *_ in SCORES},
            "paper": {score: {"mean": mean, "deviation": spread} for score, (mean, spread) in kind.paper.items()},
        }
    settings = {key: str(value) if hasattr(value, "__fspath__") else value for key, value in asdict(demo).items()}
    return {
        "command": command,
        "settings": settings,
        "environment": surroundings(),
        "models": models,
        "differences": {name: _differences(models["pstn"], models[name]) for name in models if name != "pstn"},
        "seconds": {"wall": seconds, "computing": sum(job.result()["seconds"] for job in tried)},
    }


def surroundings() -> dict[str, Any]:
    """Versions, machine, time and commit."""
    found = environment(torch.device("cpu"))
    for package in ("numpy", "lightning-fabric", "matplotlib", "mlxtend"):
        try:
            found["versions"][package] = version(package)
        except PackageNotFoundError:
            continue
    # a worker has one thread, however many this process has
    return {**found, "device": f"cpu ({platform.processor() or platform.machine()}), one thread a process"}


def pick(jobs: Sequence[Job]) -> float | None:
    """The value with the least validation NLL, averaged over the seeds; None where nothing was tuned."""
    scores: dict[float, list[float]] = {}
    for job in jobs:
        if job.strength is None:
            return None
        scores.setdefault(job.strength, []).append(job.result()["validation"]["nll"])
    return min(scores, key=lambda value: statistics.fmean(scores[value]))


def table(results: Mapping[str, Any]) -> Table:
    """Accuracy, NLL and ECE of each kind, the paper's figures beside ours."""
    columns, rows = [Column("", "left")], [[model["label"]] for model in results["models"].values()]
    for score, words, factor, digits, best in SCORES:
        columns.append(Column(words, best=best))  # type: ignore[arg-type]
        published = any(score in model["paper"] for model in results["models"].values())
        columns += [Column("paper")] if published else []
        for row, model in zip(rows, results["models"].values(), strict=True):
            row.append(Measured(tuple(factor * seed[score] for seed in model["seeds"]), digits))
            if published:
                paper = model["paper"].get(score)
                row.append(figure(paper["mean"], paper["deviation"], digits) if paper else None)
    settings = results["settings"]
    title = f"{settings['train']} training digits, {settings['test']:,} test digits, mean ± deviation of "
    title += f"{settings['seeds']} seeds" if settings["seeds"] > 1 else "one seed"
    return Table(columns, rows, title)


def details(results: Mapping[str, Any]) -> Table:
    """What each kind of network is and costs."""
    rows = []
    for name, model in results["models"].items():
        tuned = KINDS[name].tuned
        values = ", ".join(f"{row['value']:g}" for row in model["tried"])
        seconds = statistics.fmean(row["seconds"] for row in model["seeds"])
        picked = f"{tuned} = {model['picked']:g}" if tuned else None
        rows.append([model["label"], f"{model['parameters']:,}", picked, values or None, f"{seconds:.1f}"])
    names = (
        ("", "left"),
        ("parameters", "right"),
        ("picked", "left"),
        ("out of", "left"),
        ("seconds a network", "right"),
    )
    return Table([Column(name, align) for name, align in names], rows)  # type: ignore[arg-type]


def difference_table(results: Mapping[str, Any]) -> Table:
    """How far the P-STN is from each other kind, seed by seed."""
    columns = [Column("P-STN minus", "left"), *(Column(words.replace("%", "points")) for _, words, *_ in SCORES)]
    rows = []
    for name, found in results["differences"].items():
        shown = [
            f"{factor * found[score]['mean']:+.{digits}f} ± {factor * found[score]['error']:.{digits}f}"
            for score, _, factor, digits, _ in SCORES
        ]
        rows.append([results["models"][name]["label"], *shown])
    note = "Mean of the differences between networks of the same seed ± its standard error."
    return Table(columns, rows, note=note)


def verdict(results: Mapping[str, Any]) -> list[str]:
    """How the P-STNs stand against their opponents, a sentence each; by the means alone.

    Example:
        >>> scores = {"cnn": (0.8, 0.3, 0.2), "stn": (0.7, 0.4, 0.2), "augment": (1, 0.2, 0.2), "pstn": (0.9, 0.3, 0.1)}
        >>> scores["learned"] = scores["augment"]
        >>> models = {k: {"label": k, "mean": dict(zip(["accuracy", "nll", "ece"], v))} for k, v in scores.items()}
        >>> for sentence in verdict({"models": models}):
        ...     print(sentence)
        Against cnn, pstn is better in accuracy and ECE, equal in NLL.
        Against stn, pstn is better in accuracy, NLL and ECE.
        Against augment, pstn is better in ECE, worse in accuracy and NLL.
        Against augment, learned is equal in accuracy, NLL and ECE.
    """
    models = results["models"]
    sentences = []
    for own, opponent in (("pstn", "cnn"), ("pstn", "stn"), ("pstn", "augment"), ("learned", "augment")):
        groups: dict[str, list[str]] = {"better": [], "worse": [], "equal": []}
        for score, title, _, _, best in SCORES:
            gap = models[own]["mean"][score] - models[opponent]["mean"][score]
            gap = gap if best == "max" else -gap
            groups["better" if gap > 0 else "worse" if gap < 0 else "equal"].append(title.partition(",")[0])
        words = [f"{group} in {_and(scores)}" for group, scores in groups.items() if scores]
        sentences.append(f"Against {models[opponent]['label']}, {models[own]['label']} is {', '.join(words)}.")
    return sentences


def _differences(own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found = {}
    for score, *_ in SCORES:
        gaps = [a[score] - b[score] for a, b in zip(own["seeds"], other["seeds"], strict=True)]
        found[score] = {"mean": statistics.fmean(gaps), "error": _deviation(gaps) / math.sqrt(len(gaps))}
    return found


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
