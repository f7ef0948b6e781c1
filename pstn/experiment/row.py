"""An experiment as data: what one row of a table is trained on, how, over which settings, and what the paper found."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pstn.data import Data
from pstn.grid import check_choice
from pstn.inference import predict
from pstn.metrics import reliability, summary
from pstn.train.config import Train

Column = Literal["published", "best", "extra"]
State = Literal["full", "stand-in", "needs data"]
Setting = dict[str, Any]

#: Inputs a forward pass when networks are measured. The draws depend on it, so it is the same everywhere.
BATCH = 512
#: What a quick look cuts down to: folds, values of each hyperparameter, steps, and examples of each part.
QUICK_FOLDS, QUICK_VALUES, QUICK_STEPS, QUICK_TRAIN, QUICK_REST = 2, 2, 200, 200, 500

_TRAIN = {f.name for f in fields(Train)}


class Split(NamedTuple):
    """The data of one fold. Settings are chosen on the second part; the third is looked at once, after the choice."""

    train: Data
    validation: Data | None
    test: Data


@dataclass(frozen=True, eq=False)
class Experiment:
    """One row of a table: several folds of a network, at each setting of a grid, of which validation picks one.

    Arguments:
        name: The row's name in files.
        data: Gives the data of a fold, from 0. Give rows with the same data the same object: it is then loaded once.
        model: Builds the network from the hyperparameters that are its arguments, and from ``pretrained`` where the row
            ``needs`` another.
        train: How to train; its seed plus the fold is the fold's seed.
        label: The row in words; the name by default.
        line: The line of the comparison that the row stands on; its label by default.
        column: Whether the row is the recipe as ``"published"``, the ``"best"`` under the same budget, or ``"extra"``.
        folds: How many folds.
        further: How many folds beyond these to train at the chosen setting, for the table's claims to be tested by.
            They are not among what the row shows, nor what its setting is chosen by.
        grid: Values to choose from. A field of ``Train`` is set there; any other name is an argument of ``model``, of
            ``augment``, or of both.
        tuning_folds: How many of the folds the choice looks at; all by default. The others are trained at it alone.
        trial_epochs: How many epochs to train for while settings are compared; as many as ever by default. The chosen
            setting is then trained in full, on every fold.
        augment: Builds the augmentation of training inputs from its hyperparameters.
        loss: ``loss(output, y)`` to minimise instead of the bound: a function, or a frozen dataclass to call.
        samples: Transformations that are averaged over when a network is measured.
        measure: Scores a network on data; accuracy, NLL, Brier score and ECE by default, as :func:`classified` gives.
            A list of numbers is kept beside the scores on test data, for figures.
        select: The score that picks the setting, by its mean over the folds, and whether less or more is better.
        needs: The row whose trained network, of the same fold, ``model`` is given as ``pretrained``.
        paper: The paper's (mean, deviation) of each score.
        tags: What the row is for figures: its place on an axis, the curve it belongs to.
        stand_in: Where the data stands in for something else: what, and for what.
        missing: Says which file the row lacks and where it comes from, or None.
        note: What to know beside the figures.
        version: Counted up when the recipe changes in a way that the settings do not show.
        quick: What a quick look changes, by field, beyond the usual cuts.

    Example:
        >>> from pstn.stn import STN
        >>> row = Experiment("linear", data=None, model=lambda width: STN(nn.Linear(width, 2)),
        ...                  grid={"lr": (1e-3, 1e-2), "width": (8,)})
        >>> row.settings()
        [{'lr': 0.001, 'width': 8}, {'lr': 0.01, 'width': 8}]
        >>> row.config({"lr": 0.01, "width": 8}, fold=3).seed
        3
    """

    name: str
    data: Callable[[int], Split]
    model: Callable[..., nn.Module]
    train: Train = Train()  # noqa: RUF009 - frozen
    label: str = ""
    line: str = ""
    column: Column = "published"
    folds: int = 5
    further: int = 0
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tuning_folds: int | None = None
    trial_epochs: int | None = None
    augment: Callable[..., nn.Module] | None = None
    loss: Callable[[Any, Tensor], Tensor] | None = None
    samples: int = 10
    measure: Callable[[nn.Module, Data], Mapping[str, Any]] | None = None
    select: tuple[str, Literal["min", "max"]] = ("nll", "min")
    needs: Experiment | None = None
    paper: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    stand_in: str = ""
    missing: Callable[[], str | None] | None = None
    note: str = ""
    version: int = 1
    quick: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)
        object.__setattr__(self, "line", self.line or self.label)
        check_choice("column", self.column, ("published", "best", "extra"))
        check_choice("select", self.select[1], ("min", "max"))
        tuning = self.folds if self.tuning_folds is None else self.tuning_folds
        if "/" in self.name or self.folds < 1 or self.further < 0 or not 1 <= tuning <= self.folds:
            raise ValueError(
                f"row {self.name!r} has {self.folds} folds, {self.further} more, and tunes on {tuning}; expected a "
                "name without '/', and at least one fold, no more of them for tuning than there are"
            )
        for name, values in self.grid.items():
            if not len(values):
                raise ValueError(f"row {self.name!r} has no value for {name!r}; expected at least one")
            if name not in _TRAIN and not any(_takes(f, name) for f in (self.model, self.augment) if f is not None):
                raise ValueError(
                    f"row {self.name!r} has {name!r} in its grid, which is no field of Train and no argument of its "
                    "model or augmentation"
                )

    @property
    def tuned(self) -> int:
        """How many folds the choice of a setting looks at; all where there is nothing to choose."""
        return self.folds if self.tuning_folds is None or len(self.settings()) == 1 else self.tuning_folds

    @cached_property
    def trials(self) -> Experiment | None:
        """The row on which the setting is chosen, where that is not this one."""
        if self.trial_epochs is None or len(self.settings()) == 1:
            return None
        train, words = replace(self.train, epochs=self.trial_epochs), f"{self.label}, to choose by"
        return replace(
            self, name=f"{self.name}-trials", label=words, line=words, train=train, folds=self.tuned, further=0,
            trial_epochs=None,
        )  # fmt: skip

    def chain(self) -> list[Experiment]:
        """The rows that must be trained before this one, in order, and itself."""
        before = [each for each in (self.needs, self.trials) if each is not None]
        return [*dict.fromkeys(row for each in before for row in each.chain()), self]

    @property
    def lacks(self) -> str | None:
        """Which file the row lacks, in words; None where it lacks nothing."""
        found = self.missing() if self.missing is not None else None
        return found or (self.needs.lacks if self.needs is not None else None)

    @property
    def state(self) -> State:
        """Whether the row runs on the paper's data, on data that stands in for it, or not at all here."""
        return "needs data" if self.lacks else "stand-in" if self.stand_in else "full"

    def settings(self) -> list[Setting]:
        """All settings of the grid; one without hyperparameters where there is none."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def config(self, setting: Setting, fold: int) -> Train:
        """How the network of a setting and a fold is trained."""
        own = {name: value for name, value in setting.items() if name in _TRAIN}
        return replace(self.train, **{"seed": self.train.seed + fold, **own})

    def build(self, setting: Setting, pretrained: nn.Module | None = None) -> nn.Module:
        """A fresh network, from torch's generator."""
        options = {} if self.needs is None else {"pretrained": pretrained}
        return self.model(**self.arguments(setting), **options)

    def arguments(self, setting: Setting) -> Setting:
        """The part of a setting that makes the network."""
        return _taken(self.model, setting)

    def augmentation(self, setting: Setting) -> nn.Module | None:
        """The augmentation of a setting, if the row has one."""
        return None if self.augment is None else self.augment(**_taken(self.augment, setting))

    def scores(self, model: nn.Module, data: Data) -> dict[str, Any]:
        """What ``measure`` says about a network, from torch's generator: numbers, and lists of numbers."""
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        data = data.to(device)
        found = classified(model, data, self.samples) if self.measure is None else self.measure(model, data)
        return {name: value if isinstance(value, list) else float(value) for name, value in found.items()}

    def sliced(self) -> Experiment:
        """The row cut down for a quick look."""
        train = replace(self.train, steps=min(QUICK_STEPS, self.train.steps or QUICK_STEPS))
        cut = {
            "folds": min(self.folds, QUICK_FOLDS),
            "further": 0,
            "tuning_folds": 1,
            "trial_epochs": None,
            "grid": {name: _middle(values) for name, values in self.grid.items()},
            "train": train,
            "data": Slice(self.data),
            "needs": None if self.needs is None else self.needs.sliced(),
        }
        return replace(self, **{**cut, "quick": {}, **self.quick})


@dataclass(frozen=True)
class Slice:
    """The first examples of each part of some data."""

    data: Callable[[int], Split]
    train: int = QUICK_TRAIN
    rest: int = QUICK_REST

    def __call__(self, fold: int) -> Split:
        """The cut data of a fold."""
        train, validation, test = self.data(fold)
        return Split(
            train.subset(range(min(len(train), self.train))),
            None if validation is None else validation.subset(range(min(len(validation), self.rest))),
            test.subset(range(min(len(test), self.rest))),
        )


def classified(model: nn.Module, data: Data, samples: int = 10) -> dict[str, Any]:
    """How well a network classifies: accuracy, NLL, Brier score, ECE, and the reliability table behind it.

    Arguments:
        model: The network.
        data: What to classify, on its device.
        samples: Transformations to average over.

    Returns:
        The scores, and as ``"reliability"`` a list [count, confidence, accuracy] for each bin, 0 where it is empty.
    """
    found = predict(model, data.x, samples, batch_size=BATCH)
    table = reliability(found.probs, data.y)
    bins = torch.stack([table.count, table.confidence.nan_to_num(0.0), table.accuracy.nan_to_num(0.0)], dim=1)
    return {**summary(found.probs, data.y), "nll": found.nll(data.y), "reliability": listed(bins, 5)}


def listed(values: Tensor, digits: int = 3) -> list[Any]:
    """A tensor as nested lists of rounded numbers, for the file of results.

    Example:
        >>> listed(torch.tensor([[0.12345, 2.0]]))
        [[0.123, 2.0]]
    """
    return values.detach().cpu().double().round(decimals=digits).tolist()


def words(setting: Setting) -> str:
    """A setting in words.

    Example:
        >>> words({"kl_weight": 3e-4, "lr": 1e-3})
        'kl_weight = 0.0003, lr = 0.001'
    """
    return ", ".join(f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in setting.items())


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _taken(function: Callable[..., Any], setting: Setting) -> Setting:
    return {name: value for name, value in setting.items() if name not in _TRAIN and _takes(function, name)}


def _middle(values: Sequence[Any]) -> Sequence[Any]:
    """A few values from the middle, where the good ones are."""
    start = max(0, (len(values) - QUICK_VALUES) // 2)
    return values[start : start + QUICK_VALUES]
