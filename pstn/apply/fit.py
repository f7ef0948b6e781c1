"""``pstn fit``: read data, say what was understood, train, and write a model's folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pstn.apply import measure
from pstn.apply.files import ABOUT, Trained, load, read_log
from pstn.apply.read import Source, is_nested, read
from pstn.apply.settings import Fit, seconds
from pstn.apply.wrong import BadInput, given
from pstn.data import Data
from pstn.recipe import Recipe, affordable, recipe, share_of_steps, within
from pstn.report.units import rounded
from pstn.train import Train
from pstn.train import fit as train
from pstn.train.log import fingerprint
from pstn.train.loop import CHECKPOINT

#: How often training looks at validation data.
GLANCES = 20
#: Training for no more than this share of the usual steps is cut short.
SHORT = 0.5


def fit(settings: Fit, console: Console) -> Trained:
    """Do what the settings ask for.

    Arguments:
        settings: The settings.
        console: Where to say what was understood, and how it went.

    Returns:
        The model, measured on the validation part, as it lies in its folder.
    """
    device = device_of(settings.device)
    with given(settings.data):
        source = read(
            settings.data,
            size=settings.size,
            label=settings.label,
            classes=settings.classes,
            layout=settings.layout,
        )
        part, held = split(source, settings.validation, settings.seed)
        folder = settings.out or Path("models") / _slug(source.data.name)
        unfinished = _look(folder, settings)
    budget = None if settings.time is None or unfinished else seconds(settings.time)
    found = recipe(part.to(device), seed=settings.seed)
    if budget is not None:  # by the inputs at the size that they are trained on, which may be larger than the recipe's
        found = within(found, _ready(part.to(device), found), budget)
    config = Train(**unfinished.config) if unfinished else _settled(found.config, len(part), device)
    words = [*found.understood[:1], *source.remarks, *found.understood[1:], *_short(config, part, settings)]
    if unfinished:  # as it was begun: the time it was given is not asked for again
        words = list(unfinished.data.get("understood", words))
    about = {
        **source.how,
        "name": source.data.name,
        "examples": len(part),
        "counts": list(part.counts),
        "understood": words,
    }
    if source.validation is None:  # enough to know the data again, and which part of it was set apart
        about["split"] = {"whole": _print(source.data), "validation": settings.validation, "seed": settings.seed}
    if unfinished:
        _check_same(folder, unfinished.data, about)
    trained = Trained(
        found.model,
        part.classes,
        tuple(part.x.shape[1:]),
        found.normalise,
        about,
        config=asdict(config),
        finished=False,
    )
    done = _done(folder) if unfinished else 0
    _say(console, words, part, held, _minutes(found, part.to(device), config, done), folder, bool(unfinished))
    trained.save(folder, weights=False)
    run = train(
        found.model,
        _ready(part, found),
        _ready(held, found),
        config,
        directory=folder,
        resume=not settings.again,
        seconds=None if settings.time is None else seconds(settings.time),
    )
    measured = measure.measure(trained, held)
    seen = trained.predict(part.x[:: max(1, len(part) // 1000)])
    measured["train_accuracy"] = float((seen.labels == part.y[:: max(1, len(part) // 1000)]).float().mean())
    about |= {"seconds": run.seconds}
    taken = {**trained.config, "steps": run.steps}
    trained = replace(trained, measured=measured, finished=True, folder=folder, data=about, config=taken)
    found.model.cpu().eval()
    trained.save(folder)
    (folder / CHECKPOINT).unlink(missing_ok=True)  # it is finished: there is nothing to go on from
    _tell(console, trained, folder, config.steps or 0)
    return trained


def split(source: Source, share: float, seed: int) -> tuple[Data, Data]:
    """The part to train on and the part to measure on, the classes in both in the same proportions."""
    data = source.data
    if source.validation is not None:
        return data, source.validation
    few = [name for name, count in zip(data.classes, data.counts, strict=True) if count == 1]
    if few:
        raise BadInput(
            f"{data.name} has one example of {', '.join(few[:5])}; expected two or more of each class, one to train on "
            "and one to measure on (--classes leaves classes out)"
        )
    held = max(1, round(share * len(data)))
    part, other = data.split((len(data) - held, held), seed=seed)
    lost = [name for name, all, left in zip(data.classes, data.counts, part.counts, strict=True) if all and not left]
    if lost:
        raise BadInput(f"nothing is left to train on of {', '.join(lost[:5])}: ask for a smaller --validation")
    return part.renamed(data.name), other.renamed(f"{data.name}, validation")


def unseen(trained: Trained, data: Data) -> Data:
    """What of some labelled data a model was not trained on.

    Data that the model was itself trained on is known by its checksum: then this is the part that was set apart.
    """
    known = trained.data.get("split")
    if not known or known.get("whole") != _print(data):
        return data
    return split(Source(data), float(known["validation"]), int(known["seed"]))[1]


def device_of(name: str) -> torch.device:
    """The device that a setting means."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device is cuda, and torch finds no GPU here; expected cpu or auto")
    return torch.device(name)


def _look(folder: Path, settings: Fit) -> Trained | None:
    """The model in a folder whose training can go on; None for a new one."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; expected a folder to write the model to (--out)")
    if settings.data.is_dir() and not is_nested(settings.data) and _lies_in(folder, settings.data):
        raise BadInput(f"{folder} lies in {settings.data}, where it would be taken for a class; --out goes elsewhere")
    if not (folder / ABOUT).exists() or settings.again:
        return None
    there = load(folder, weights=False)
    if there.finished:
        raise BadInput(f"{folder} holds a finished model; --again trains it anew, --out names another folder")
    asked, before = settings.seed, there.config.get("seed")
    if asked != before:
        raise BadInput(
            f"{folder} holds a run with seed {before}, not {asked}; --again starts over, --out goes elsewhere"
        )
    return there


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if any(before.get(key) != now.get(key) for key in ("counts", "split")):
        raise BadInput(
            f"{folder} holds a run on other data, or on another part of it; --again starts over, --out goes elsewhere"
        )


def _lies_in(folder: Path, other: Path) -> bool:
    return folder.resolve().is_relative_to(other.resolve())


def _settled(config: Train, examples: int, device: torch.device) -> Train:
    """The recipe's settings, with a look at the validation data now and then."""
    per_epoch = max(1, examples // config.batch_size)
    epochs = -(-(config.steps or config.epochs * per_epoch) // per_epoch)
    kind: Any = device.type
    return replace(config, validate_every=max(1, epochs // GLANCES), accelerator=kind, checkpoint_every=10.0)


def _ready(data: Data, found: Recipe) -> Data:
    """Data as it goes into the network, at its own size, which may be larger than the recipe's."""
    return replace(data, x=found.normalise(data.x).float())


def _short(config: Train, part: Data, asked: Fit) -> list[str]:
    """What must be said of a training that is cut short."""
    share = share_of_steps(config.steps, len(part), part.x.ndim - 2)
    if asked.time is None or share > SHORT:
        return []
    return [f"That is {share:.0%} of the steps that so many examples ask for: more --time will give a better model."]


def _minutes(found: Recipe, part: Data, config: Train, done: int) -> str:
    """How long the rest of the training takes, in words: a few steps are timed."""
    rate = affordable(found.model, _ready(part, found), replace(config, steps=10**9), 100.0) / 100
    took = max((config.steps or 0) - done, 0) / rate
    if took < 90:
        return f"{took:.0f} second{'' if round(took) == 1 else 's'}"
    return f"{took / 60:.0f} minutes" if took < 5400 else f"{took / 3600:.1f} hours"


def _done(folder: Path) -> int:
    """The steps that an earlier sitting took, as far as they can be gone on from."""
    history = read_log(folder)[1] if (folder / CHECKPOINT).exists() else []
    return int(history[-1].get("step", 0)) if history else 0


def _say(console: Console, words: list[str], part: Data, held: Data, took: str, folder: Path, unfinished: bool) -> None:
    counts = ", ".join(
        f"{name} {a}+{b}" for name, a, b in zip(part.classes[:12], part.counts, held.counts, strict=False)
    )
    more = f" and {part.num_classes - 12} more classes" if part.num_classes > 12 else ""
    lines = [
        *words,
        f"{len(part)} to train on, {len(held)} to measure on: {counts}{more}.",
        f"{'Goes on for' if unfinished else 'Takes'} about {took} on this machine; Ctrl-C stops, the same command goes "
        "on.",
        f"Model: {folder}",
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _tell(console: Console, trained: Trained, folder: Path, planned: int) -> None:
    measured, taken = trained.measured, trained.config["steps"]
    lines = [f"There was time for {taken} of the {planned} steps."] if taken < planned else []
    lines += [f"{name}: {value}" for name, value in measure.facts(measured).items()]
    lines += [f"learned {row['name']}: ± {rounded(row['value'])} {row['unit']}" for row in measured.get("strength", ())]
    lines += [f"next: pstn predict {folder} FILES...   pstn report {folder} DATA   pstn doctor {folder}"]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _print(data: Data) -> dict[str, Any]:
    """A checksum of labels and inputs, whatever the data is called."""
    found = fingerprint(replace(data, x=data.x.float())) or {}
    return {key: found[key] for key in ("shape", "crc32")}


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
