"""``pstn report``: one HTML page about a model on labelled data."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from pstn.apply import measure, pictures
from pstn.apply.doctor import examine
from pstn.apply.files import Trained, load, read_log
from pstn.apply.fit import device_of, unseen
from pstn.apply.read import read_again
from pstn.apply.settings import Report
from pstn.apply.wrong import given
from pstn.data import Data
from pstn.inference import Predictive, predict
from pstn.metrics import reliability
from pstn.report import figures
from pstn.report.page import Page
from pstn.report.table import Column, Table
from pstn.report.units import rounded
from pstn.uncertainty import risk_coverage

#: Inputs shown in each picture.
SHOWN = 6


def report(settings: Report, console: Console) -> Path:
    """Do what the settings ask for; the page's file."""
    pictures.check_drawing()
    with given(settings.data):
        trained = load(settings.model, device=device_of(settings.device))
        read_log(settings.model)  # what is wrong with it is better said now than after the work
        whole = read_again(settings.data, trained.data, trained.shape, trained.classes)
        data = unseen(trained, whole)
    if data is not whole:
        console.print(
            f"The model was trained on {whole.name}: measured on the {len(data)} of its {len(whole)} examples that "
            "were set apart.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    path = settings.out or settings.model / "report.html"
    page(trained, data, settings.samples).write(path)
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    return path


def page(trained: Trained, data: Data, samples: int = 16) -> Page:
    """The page: scores, calibration, confusion, the least sure, the warps and their strength in plain units.

    Arguments:
        trained: The model.
        data: Labelled data of its shape, not normalised.
        samples: How many transformations to average over.
    """
    p = trained.predict(data.x, samples)
    measured = {**measure.scores(p, data.y), "ece_by_chance": measure.chance_ece(p.probs)}
    measured |= measure.poses(trained, data.x)
    name = trained.data.get("name", "a model")
    made = Page(
        f"{name}: a model of {len(trained.classes)} classes",
        f"Measured on {len(data):,} labelled {trained.kind} of {data.name}: {measured['accuracy']:.1%} right; without "
        f"the 10 % that it is least sure of, {measured['selective']:.1%}.",
    )
    made.facts(measure.facts(measured))
    _findings(made, trained, measured)
    _calibration(made, trained, p, data)
    _confusion(made, p, data)
    _least_sure(made, trained, p, data)
    _warps(made, trained, measured)
    _training(made, trained)
    made.section("About").facts(
        {
            "trained on": f"{trained.data.get('examples', '?')} examples of {name}",
            "classes": ", ".join(trained.classes),
            "input": " × ".join(map(str, trained.shape)),
            "parameters": f"{sum(q.numel() for q in trained.network.parameters()):,}",
            "draws averaged": samples,
            **trained.versions.get("versions", {}),
        }
    )
    return made


def _findings(made: Page, trained: Trained, measured: dict) -> None:
    history = read_log(trained.folder)[1] if trained.folder else []
    examples = trained.data.get("examples", 0)
    found = examine({**trained.measured, **measured}, history, trained.config, trained.shape, examples)
    made.section("What the doctor says")
    for finding in found:
        made.text(f"{finding.what} {finding.advice}")
    if not found:
        made.text("Nothing to complain about.")


def _calibration(made: Page, trained: Trained, p: Predictive, data: Data) -> None:
    made.section("Is 80 % right eight times in ten?")
    tables = {"averaged over draws": reliability(p.probs, data.y)}
    if len(trained.network.transformers):
        once = predict(trained.network, trained.prepare(data.x), samples=0, batch_size=64)
        tables["one look"] = reliability(once.probs, data.y)
    made.figure(
        lambda: figures.reliability_diagram(tables),
        "Reliability diagram: accuracy against confidence",
        "Bars below the diagonal are overconfident, above it underconfident.",
    )
    curve = risk_coverage(p.probs, data.y, p.entropy.cpu())
    rows = [[f"{handed:.0%}", f"{curve.accuracy(handed):.1%}"] for handed in (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)]
    made.table(Table([Column("handed to a person"), Column("accuracy on the rest")], rows))


def _confusion(made: Page, p: Predictive, data: Data) -> None:
    made.section("What is taken for what")
    k = len(data.classes)
    counts = torch.bincount(data.y * k + p.labels.cpu(), minlength=k * k).view(k, k).float()
    made.figure(lambda: pictures.confusion(counts, data.classes), "Confusion matrix", "Rows: right; columns: named.")


def _least_sure(made: Page, trained: Trained, p: Predictive, data: Data) -> None:
    made.section("Least sure")
    order = p.entropy.cpu().argsort(descending=True)
    made.text(
        "Above each: the right class, the class named, its probability, and the entropy in nats. In red, the "
        "frames that draws of the posterior look at; beside, what the classifier saw of them, as in training."
        if trained.kind == "images"
        else "The right class, the class named, its probability, and the entropy in nats; beside, warps as in training."
    )
    for which, words in ((order[:SHOWN], "least sure of"), (order[-SHOWN:].flip(0), "surest of")):
        titles = [_title(p, data, i) for i in which.tolist()]
        made.figure(
            lambda which=which, titles=titles: pictures.looked(trained, data.x[which], titles),  # type: ignore[misc]
            f"The {len(which)} inputs it is {words}, with warps drawn from the posterior",
            f"Those it is {words}.",
        )


def _warps(made: Page, trained: Trained, measured: dict) -> None:
    made.section("What it expects to vary")
    rows = [[row["name"], f"± {rounded(row['value'], 3)} {row['unit']}"] for row in measured.get("strength", ())]
    if not rows:
        made.text("This network has no transformer.")
        return
    made.text("How strongly inputs are warped in training: one standard deviation of each parameter, in plain units.")
    made.table(Table([Column("parameter", "left"), Column("strength", "left")], rows))
    if trained.network.family is not None and measured.get("looks"):
        made.text(f"Centres of different inputs are {50 * measured['varies']:.1f} % of the input's size apart.")


def _training(made: Page, trained: Trained) -> None:
    history = read_log(trained.folder)[1] if trained.folder else []
    seen = [record for record in history if "validation_nll" in record]
    if len(seen) < 2:
        return
    steps = [record["step"] for record in seen]
    curves = {
        "NLL": {
            "training": (steps, [[r["nll"] for r in seen]]),
            "validation": (steps, [[r["validation_nll"] for r in seen]]),
        },
        "validation accuracy, %": {"": (steps, [[100 * r["validation_accuracy"] for r in seen]])},
    }
    made.section("Training")
    made.figure(lambda: figures.training_curves(curves, log=["NLL"]), "NLL and accuracy over the steps", "Training.")


def _title(p: Predictive, data: Data, i: int) -> str:
    named, right = data.classes[int(p.labels[i])], data.classes[int(data.y[i])]
    return f"{right}: {named} {float(p.probs[i].max()):.2f}, {float(p.entropy[i]):.2f} nats"
