"""A model as a folder: ``model.safetensors``, ``model.json``, ``card.md`` and ``log.jsonl``. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.apply.blueprint import BlueprintError, build, describe
from pstn.apply.card import card
from pstn.data import Normalise
from pstn.export import Fixed
from pstn.inference import Predictive, at_a_time, predict
from pstn.stn import STN
from pstn.train.checkpoint import CheckpointError, load_model, save_model, write
from pstn.train.log import environment
from pstn.train.loop import CHECKPOINT, LOG, MODEL

ABOUT, CARD = "model.json", "card.md"
#: What ``model.json`` is: a reader of another number says so instead of guessing.
FORMAT = 1
_NEEDED = ("format", "network", "normalise", "classes", "shape", "data", "finished")


class ModelError(ValueError):
    """A folder that holds no model, a damaged one, or one of another version."""


@dataclass
class Trained:
    """A network with all it takes to use it: classes, normalisation, and what was measured.

    Arguments:
        network: The network, in evaluation mode.
        classes: The names of the classes.
        shape: One input's shape, (C, L) or (C, H, W).
        normalise: What an input goes through first.
        data: What the training data was, and how to read more like it.
        measured: What was measured on data that was not trained on.
        config: The settings of the training.
        folder: Where it was read from.
        finished: Whether its training came to an end.
        versions: What it was trained with.
    """

    network: STN
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    normalise: Normalise
    data: Mapping[str, Any] = field(default_factory=lambda: {"kind": "images", "colour": False})
    measured: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    finished: bool = True
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """``"images"`` or ``"series"``."""
        return str(self.data["kind"])

    @cached_property
    def fixed(self) -> Fixed:
        """The network at 16 fixed draws."""
        return Fixed(self.network.eval())

    def prepare(self, x: Float[Tensor, "n c *space"]) -> Float[Tensor, "n c *space"]:
        """Inputs as they come, normalised, as the network wants them."""
        return self.normalise(x).to(next(self.network.parameters(), torch.empty(0)).dtype)

    def predict(self, x: Float[Tensor, "n c *space"], samples: int = 16, batch_size: int = 64) -> Predictive:
        """What the model says of inputs as they come, not normalised; the same for an input whatever its neighbours.

        Arguments:
            x: The inputs, (N, C, *space), of the model's shape.
            samples: How many fixed Sobol points are averaged over.
            batch_size: How many inputs go through at a time, fewer if they are large.
        """
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"inputs have shape {tuple(x.shape[1:])}; the model takes {self.shape}")
        path = self.fixed if samples == self.fixed.samples else Fixed(self.network.eval(), samples)
        device = next(self.network.parameters(), x).device
        few = min(batch_size, at_a_time(x, samples))
        return predict(path.to(device), self.prepare(x), batch_size=few)

    def describe(self) -> dict[str, Any]:
        """What ``model.json`` holds."""
        return {
            "format": FORMAT,
            "finished": self.finished,
            "classes": list(self.classes),
            "shape": list(self.shape),
            "normalise": asdict(self.normalise),
            "data": dict(self.data),
            "measured": dict(self.measured),
            "network": describe(self.network),
            "config": dict(self.config),
            "versions": dict(self.versions) or environment(torch.device("cpu")),
        }

    def save(self, folder: str | Path, *, weights: bool = True) -> Path:
        """Write the folder; each file whole or not at all, ``model.json`` last.

        Arguments:
            folder: The folder, made when missing.
            weights: Whether to write the weights, too.
        """
        folder, about = Path(folder), self.describe()
        if weights:
            save_model(self.network, folder / MODEL, {"kind": "model"})
        write(folder / CARD, card(about).encode())
        write(folder / ABOUT, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
        return folder


def load(folder: str | Path, *, device: str | torch.device = "cpu", weights: bool = True) -> Trained:
    """The model in a folder that ``pstn fit`` or :meth:`Trained.save` wrote.

    Arguments:
        folder: The folder.
        device: Where the network shall be.
        weights: Whether to read the weights; without them the network is a fresh one.

    Raises:
        ModelError: There is no model, it is damaged, or its training was not finished.

    Example:
        >>> import tempfile
        >>> from pstn.recipe import network
        >>> made = Trained(network((1, 28, 28), 2), ("cat", "dog"), (1, 28, 28), Normalise(0.5, 0.25))
        >>> folder = made.save(tempfile.mkdtemp())
        >>> load(folder).classes
        ('cat', 'dog')
    """
    folder = Path(folder)
    about = _about(folder)
    try:
        network = build(about["network"])
        given = about["normalise"]
        numbers: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        normalise = Normalise(**numbers)
        classes, shape = tuple(map(str, about["classes"])), tuple(map(int, about["shape"]))
        _check_fits(network, classes, shape, about)
    except (BlueprintError, TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
        raise ModelError(f"{folder / ABOUT} does not describe a model: {error}") from error
    trained = Trained(
        *(network.eval(), classes, shape, normalise, about["data"]),
        *(about.get("measured", {}), about.get("config", {}), folder, about["finished"], about.get("versions", {})),
    )
    if weights:
        _fill(trained, folder)
        network.to(device)
    return trained


@torch.no_grad()
def _check_fits(network: STN, classes: Sequence[str], shape: Sequence[int], about: Mapping[str, Any]) -> None:
    """Raise unless what stands beside a network is of its kind, and an input goes through it."""
    wrong = [key for key in ("data", "measured", "config", "versions") if not isinstance(about.get(key, {}), Mapping)]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} should be a mapping")
    kind = about["data"].get("kind")
    if {"images": 3, "series": 2}.get(kind) != len(shape):
        raise ValueError(f"its inputs are {kind} of shape {tuple(shape)}; expected images or series, channels first")
    logits = network.eval()(torch.zeros(1, *shape), samples=0).logits
    if logits.shape[-1] != len(classes):
        raise ValueError(f"it has {len(classes)} classes, and its network tells {logits.shape[-1]} apart")


def _fill(trained: Trained, folder: Path) -> None:
    file = folder / MODEL
    if not trained.finished or not file.exists():
        going = (folder / CHECKPOINT).exists()
        what = "run pstn fit again with the same arguments to finish it" if going else f"{MODEL} is missing"
        raise ModelError(f"the model in {folder} is not finished: {what}")
    try:
        load_model(trained.network, file)
    except CheckpointError as error:
        raise ModelError(str(error)) from error


def read_log(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the records of a run's log; empty where there is none."""
    file = folder / LOG
    if not file.exists():
        return {}, []
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} is damaged: {error}") from error
    if not all(isinstance(line, dict) for line in lines):
        raise ModelError(f"{file} is no log of pstn's: expected a JSON object a line")
    return (lines[0], lines[1:]) if lines else ({}, [])


def _about(folder: Path) -> dict[str, Any]:
    file = folder / ABOUT
    if not folder.is_dir() or not file.exists():
        what = "does not exist" if not folder.exists() else f"has no {ABOUT}"
        raise ModelError(f"{folder} is not a model folder: it {what}; expected one that pstn fit wrote")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} is damaged: {error}") from error
    missing: Sequence[str] = [] if isinstance(about, dict) else _NEEDED
    missing = missing or [name for name in _NEEDED if name not in about]
    if missing:
        raise ModelError(f"{file} is not pstn's: it has no {', '.join(missing)}")
    if about["format"] != FORMAT:
        raise ModelError(f"{file} has format {about['format']}; this version of pstn reads {FORMAT}")
    return about
