"""``pstn predict``: a class, a probability and an uncertainty for each file; where it looked, as a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from pstn.apply.files import Trained, load
from pstn.apply.fit import device_of
from pstn.apply.pictures import check_drawing, looked, write_png
from pstn.apply.read import read_inputs
from pstn.apply.settings import Predict
from pstn.apply.wrong import BadInput, given
from pstn.report.table import Column, Table

#: Inputs that go through the network at a time, and those that a picture shows.
BATCH, SHOWN = 64, 12


def predict(settings: Predict, console: Console) -> None:
    """Do what the settings ask for."""
    if settings.picture is not None:
        check_drawing()
    device = device_of(settings.device)
    with given():
        trained = load(settings.model, device=device)
    pictured: list[tuple[str, Tensor, dict[str, Any]]] = []
    rows: list[list[str]] = []
    count = 0
    for count, (name, x, found) in enumerate(answers(trained, settings), start=1):  # noqa: B007 - how many, at the end
        if settings.picture is not None and len(pictured) < SHOWN:
            pictured.append((name, x, found))
        if settings.jsonl:
            print(json.dumps(found, ensure_ascii=False))
        elif settings.csv:
            print(_line(_flat(found)) if rows else f"{_line(list(_keys(found)))}\n{_line(_flat(found))}")
            rows.append([""])
        else:
            numbers = (found["probability"], found["entropy"], found["mutual_information"])
            rows.append([name, found["class"], *(f"{value:.3f}" for value in numbers)])
    if not settings.jsonl and not settings.csv:
        columns = [Column("file", "left"), Column("class", "left"), Column("probability")]
        columns += [Column("entropy"), Column("mutual information")]
        console.print(Table(columns, rows).rich())
    if settings.picture is not None:
        x = torch.stack([one for _, one, _ in pictured])
        titles = [f"{found['class']} {found['probability']:.2f}" for _, _, found in pictured]
        part = f", the first {SHOWN} of {count}" if count > SHOWN else ""
        write_png(settings.picture, lambda: looked(trained, x, titles))
        words = f"wrote {settings.picture}{part}"
        Console(stderr=True).print(words, markup=False, highlight=False, soft_wrap=True)


def answers(trained: Trained, settings: Predict) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """The name of each input, the input, and what the model says of it."""
    waiting: list[tuple[str, Tensor]] = []
    for file in settings.files:
        with given(file):
            # all of a file is read before any of it is answered: a damaged one gives no half answer
            waiting += read_inputs(file, trained.data, trained.shape, trained.classes)
        while len(waiting) >= BATCH:
            yield from _batch(trained, waiting[:BATCH], settings.samples)
            waiting = waiting[BATCH:]
    if waiting:
        yield from _batch(trained, waiting, settings.samples)


def _batch(
    trained: Trained, inputs: list[tuple[str, Tensor]], samples: int
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    x = torch.stack([one for _, one in inputs])
    bad = ~x.flatten(1).isfinite().all(1)
    if bad.any():
        raise BadInput(f"{inputs[int(bad.nonzero()[0])][0]} has values that are NaN or infinite")
    p = trained.predict(x, samples)
    probs = p.probs.cpu()
    for i, (name, one) in enumerate(inputs):
        best = int(probs[i].argmax())
        yield (
            name,
            one,
            {
                "file": name,
                "class": trained.classes[best],
                "probability": round(float(probs[i, best]), 6),
                "entropy": round(float(p.entropy[i]), 6),
                "mutual_information": round(float(p.mutual_information[i]), 6),
                "probabilities": {k: round(float(v), 6) for k, v in zip(trained.classes, probs[i], strict=True)},
            },
        )


def _keys(found: dict[str, Any]) -> Iterator[str]:
    yield from (key for key in found if key != "probabilities")
    yield from (f"p({name})" for name in found["probabilities"])


def _flat(found: dict[str, Any]) -> list[Any]:
    return [*(value for key, value in found.items() if key != "probabilities"), *found["probabilities"].values()]


def _line(cells: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
