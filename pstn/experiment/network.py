"""One network of a table: a row at a setting and a fold, its key, and the file that says that it is trained."""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pstn.experiment.results import Record
from pstn.experiment.row import Experiment, Setting, Split
from pstn.train import Member, Run, Train, load, load_model, save_model, seeded
from pstn.train.config import Accelerator
from pstn.train.log import fingerprint

#: Settings that change where or how safely a network is trained, but not what it learns.
FREE = ("accelerator", "checkpoint_every")


class DataError(RuntimeError):
    """A row's data that cannot be had."""


@dataclass(frozen=True, eq=False)
class Network:
    """A row at a setting and a fold.

    Arguments:
        row: The row.
        setting: The hyperparameters.
        fold: The fold.
        runs: The folder of trained networks.
        pretrained: The trained network of the row that this one needs.
    """

    row: Experiment
    setting: Setting
    fold: int
    runs: Path
    pretrained: Network | None = None

    @property
    def name(self) -> tuple[str, str, int]:
        """What tells it from the table's other networks."""
        return self.row.name, plain(self.setting), self.fold

    @cached_property
    def recipe(self) -> str:
        """A checksum of all that makes the network but for the fold and what is in the data."""
        return recipe(self.row, plain(self.setting))

    @cached_property
    def key(self) -> str:
        """A checksum of all that matters: recipe, data, fold."""
        return checksum([self.recipe, _fingerprints(self.row.data, self.fold), self.fold])

    @property
    def path(self) -> Path:
        """Where the trained network is, with its record. By its key alone: rows and tables may have some in common."""
        return self.runs / "networks" / f"{self.key}.safetensors"

    @property
    def config(self) -> Train:
        """How it is trained."""
        return self.row.config(self.setting, self.fold)

    @cached_property
    def steps(self) -> int:
        """How many steps it takes to train."""
        return self.config.length(len(_split(self.row.data, self.fold).train))

    @cached_property
    def products(self) -> int:
        """A rough measure of what a step multiplies: the numbers that go in by the parameters."""
        config, train = self.config, _split(self.row.data, self.fold).train
        numbers = min(config.batch_size, len(train)) * config.samples * math.prod(train.x.shape[1:])
        return numbers * sum(map(math.prod, _outline(self.row, plain(self.setting))[1]))

    @cached_property
    def architecture(self) -> str:
        """A checksum of what networks have in common that may be trained together; a fleet looks closer."""
        config, split = self.config, _split(self.row.data, self.fold)
        shape = (len(split.train), *split.train.x.shape[1:])
        kinds = [type(each).__name__ for each in _parts(self.row.augmentation(self.setting))]
        lengths = [config.batch_size, config.steps, config.epochs, config.samples]
        return checksum([_outline(self.row, plain(self.setting)), shape, kinds, *lengths])

    def member(self, device: Accelerator) -> Member:
        """The network, untrained, with all that training needs."""
        split, config = _split(self.row.data, self.fold), replace(self.config, accelerator=device)
        with seeded(config.seed):
            model = self.row.build(self.setting, None if self.pretrained is None else self.pretrained.load())
        # Validation in training is for those that keep its best weights; all are measured on it once they are trained.
        validation = split.validation if config.keep == "best" else None
        if validation is None:
            config = replace(config, validate_every=0)
        return Member(model, split.train, validation, config, self.row.augmentation(self.setting), self.row.loss)

    def finish(self, run: Run, facts: Record) -> Record:
        """Measure a trained network on the validation data and keep it; its record."""
        split = _split(self.row.data, self.fold)
        validation = {}
        # of further folds nothing is chosen by
        if run.failure is None and split.validation is not None and self.fold < self.row.folds:
            found = self.measure(run.model, split.validation)
            validation = {name: value for name, value in found.items() if not isinstance(value, list)}
        record = {
            "key": self.key,
            "recipe": self.recipe,
            "row": self.row.name,
            "setting": json.loads(plain(self.setting)),
            "fold": self.fold,
            "seed": self.config.seed,
            "validation": validation,
            "test": None,
            "failure": run.failure,
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "steps": run.steps,
            "seconds": round(run.seconds, 3),
            "data": _fingerprints(self.row.data, self.fold),
            **({"stand_in": self.row.stand_in} if self.row.stand_in else {}),
            **facts,
        }
        save_model(run.model, self.path, {"record": record})
        return record

    def measure(self, model: nn.Module, data: Any) -> dict[str, Any]:
        """The row's scores of a network; the same draws whenever it is asked."""
        device = next((p.device for p in model.parameters()), "cpu")
        with seeded(self.config.seed, device):
            return self.row.scores(model, data)

    def record(self) -> Record | None:
        """What training left; None where it is not trained."""
        return {**load(self.path)[1]["record"], "row": self.row.name} if self.path.exists() else None

    def load(self) -> nn.Module:
        """The trained network, in evaluation mode."""
        model = self._blank()
        load_model(model, self.path)
        return model.eval()

    def test(self, device: str) -> dict[str, Any]:
        """The scores on the test data."""
        return self.measure(self.load().to(device), _split(self.row.data, self.fold).test)

    def _blank(self) -> nn.Module:
        """A network of the right shape with any weights."""
        return _blank(self.row, self.setting)


def plain(setting: Setting) -> str:
    """A setting as JSON: the same text for the same setting."""
    return json.dumps(setting, sort_keys=True)


def checksum(what: Any) -> str:
    """Sixteen letters that stand for a JSON-able value."""
    text = json.dumps(what, sort_keys=True).encode()
    return f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}"


@cache
def recipe(row: Experiment, setting: str) -> str:
    """A checksum of a row at a setting, given as JSON."""
    chosen = original(row, setting)
    config = {name: value for name, value in asdict(row.config(chosen, 0)).items() if name not in FREE}
    measure = None if row.measure is None else f"{row.measure.__module__}.{row.measure.__qualname__}"
    needed = [] if row.needs is None else [recipe(row.needs, plain(each)) for each in row.needs.settings()]
    model, augment = _model(row, setting), _describe(row.augmentation(chosen))
    parts = [row.version, setting, config, row.samples, measure, model, augment, needed, _source(row)]
    if row.loss is not None:  # only then: rows without one keep the checksums that their results are found by
        parts.append(getattr(row.loss, "__qualname__", None) or repr(row.loss))
    return checksum(parts)


def _source(row: Experiment) -> str:
    """What a row's data is called, without loading it; a function is told from others by the row's name."""
    text = repr(row.data)
    return f"{row.name}: {_anywhere(text)}" if _anywhere(text) != text else text


def _anywhere(text: str) -> str:
    """A text without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


@cache
def _outline(row: Experiment, setting: str) -> list[Any]:
    """The kinds of a network's parts and the shapes of its parameters."""
    model = _hollow(row, original(row, setting))
    return [
        [type(module).__name__ for module in _parts(model)],
        [tuple(parameter.shape) for parameter in model.parameters()],
    ]


def _parts(module: nn.Module | None) -> list[nn.Module]:
    return [] if module is None else list(module.modules())


#: Networks in words, by what makes them: many rows differ in their data alone.
_WORDS: dict[Any, str] = {}


def _model(row: Experiment, setting: str) -> str:
    """The network of a row at a setting, in words."""
    chosen = original(row, setting)
    before = "" if row.needs is None else _model(row.needs, plain(row.needs.settings()[0]))
    key = (_call(row.model), plain(row.arguments(chosen)), before)
    try:
        found = _WORDS.get(key)
    except TypeError:  # an argument without a hash
        return _describe(_hollow(row, chosen))
    if found is None:
        found = _WORDS[key] = _describe(_hollow(row, chosen))
    return found


def _call(function: Any) -> Any:
    """What tells a function from others, and one with some arguments given from the same with others."""
    if isinstance(function, partial):
        given = function.args, tuple(sorted(function.keywords.items()))
        return _call(function.func), given, repr(given)  # 1, 1.0 and True are equal, and read differently
    return function


def original(row: Experiment, setting: str) -> Setting:
    """The setting of the grid that a JSON text stands for: JSON has no tuples, a grid may."""
    return next(each for each in row.settings() if plain(each) == setting)


def _blank(row: Experiment, setting: Setting) -> nn.Module:
    with seeded(0):
        return row.build(setting, None if row.needs is None else _blank(row.needs, row.needs.settings()[0]))


def _hollow(row: Experiment, setting: Setting) -> nn.Module:
    """A network to be described, without numbers in it, which take most of the time to make, if it can be had so."""
    try:
        with torch.device("meta"):
            return _blank(row, setting)
    except Exception:  # by whatever needs a number to go on
        return _blank(row, setting)


def _describe(module: nn.Module | None) -> str:
    """A module in words: its layers and the shapes of its parameters."""
    if module is None:
        return ""
    shapes = [f"{name}: {tuple(p.shape)} {p.requires_grad}" for name, p in module.named_parameters()]
    # From 2.13 on, torch says of batch normalisation that it has a bias; that is among the shapes, and the same network
    # is to be found by whatever torch.
    text = re.sub(r"(affine=\w+), bias=True(?=, track_running_stats)", r"\1", repr(module))
    return _rounded(_anywhere(f"{text}\n{shapes}"))


def _rounded(text: str) -> str:
    """A text with all numbers to twelve digits: what was computed differs in the last ones between machines."""
    return re.sub(r"\d+\.\d{12,}(e[-+]?\d+)?", lambda found: f"{float(found[0]):.12g}", text)


@lru_cache(maxsize=16)
def _split(data: Any, fold: int) -> Split:
    try:
        return data(fold)
    except (ImportError, OSError, ValueError) as error:  # a download that fails, a file that is broken
        raise DataError(str(error)) from error


@cache
def _fingerprints(data: Any, fold: int) -> list[Any]:
    return [fingerprint(part) for part in _split(data, fold)]
