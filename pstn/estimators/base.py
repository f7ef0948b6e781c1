"""What the estimators share: fitting, predicting, aligning, augmenting."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names_in, _check_sample_weight, check_is_fitted, column_or_1d
from torch import Tensor

from pstn.data import Data, Normalise
from pstn.estimators.bound import Bound, held_out, merged
from pstn.estimators.looks import Looks
from pstn.estimators.progress import Enough, Progress
from pstn.export import Fixed
from pstn.families import Family
from pstn.inference import Predictive, at_a_time, predict
from pstn.recipe import Recipe, network, recipe, within
from pstn.train import Train, fit
from pstn.train.checkpoint import fill as fill_in
from pstn.train.checkpoint import load, save
from pstn.warp import warp

#: Up to so many inputs are predicted in double, and warps that a pose is found by.
FEW, LOOKS = 256, 64


@dataclass(frozen=True)
class Pose:
    """A posterior of the transformation θ, parameter by parameter."""

    names: tuple[str, ...]
    """What the parameters are called."""
    mean: np.ndarray
    """Their means, (d,), or (n, d) for n inputs."""
    spread: np.ndarray
    """Their standard deviations, of the same shape."""


class Base(ClassifierMixin, TransformerMixin, BaseEstimator):
    """What :class:`PSTNClassifier` and :class:`PSTNTimeSeriesClassifier` share."""

    classes_: np.ndarray
    recipe_: Recipe
    n_features_in_: int

    def __init__(
        self,
        *,
        warp: bool = True,
        samples: int = 16,
        max_steps: int | None = None,
        time_budget: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        patience: int = 10,
        class_weight: Any = None,
        random_state: Any = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.warp = warp
        self.samples = samples
        self.max_steps = max_steps
        self.time_budget = time_budget
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _read(self, X: Any, fitting: bool) -> Tensor:
        """The inputs as (n, channels, *space), checked; in double where small changes of large numbers count."""
        raise NotImplementedError(f"{type(self).__name__} must define _read(X, fitting)")

    def _shaped(self, x: Tensor, X: Any) -> np.ndarray:
        """What became of inputs, (n, channels, *space), in the form that they came in."""
        raise NotImplementedError(f"{type(self).__name__} must define _shaped(x, X)")

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Base:
        """Learn the classes, and the warps that leave them as they are.

        Ctrl-C ends training and keeps what was learned so far.

        Arguments:
            X: The examples.
            y: Their classes, (n,): numbers or words.
            sample_weight: How much each example counts, (n,); an example of weight 2 is the same as one given twice.

        Returns:
            The estimator itself.
        """
        x = self._read(X, fitting=True)
        self.rows_ = self._shaped(x[:1], X).ndim == 2
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if len(y) != len(x):
            raise ValueError(f"X has {len(x)} examples and y {len(y)} labels; expected one for each")
        weight = _check_sample_weight(sample_weight, np.empty((len(x), 0)), dtype=np.float64, ensure_non_negative=True)
        self.classes_ = np.unique(y[weight > 0])
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only ({self.classes_[0]}); a classifier needs examples of at least two classes"
            )
        used = np.flatnonzero(weight > 0)
        number = np.searchsorted(self.classes_, y[used])
        if self.class_weight is not None:
            factors = compute_class_weight(self.class_weight, classes=self.classes_, y=y[used])
            weight = weight.copy()
            weight[used] *= factors[number]
        rows, weights = merged(x[used], number, weight[used])
        self._learn(x[used][rows], number[rows], weights)
        return self

    def _learn(self, x: Tensor, y: np.ndarray, weight: np.ndarray) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        device = self._device()
        aside = held_out(y, self.validation_fraction, seed) if self.early_stopping else np.zeros(len(y), dtype=bool)
        kept = torch.from_numpy(aside)
        names = tuple(str(i) for i in range(len(self.classes_)))
        labels, weights = torch.from_numpy(y), torch.from_numpy(weight).float()
        data = Data(x[~kept], labels[~kept], names, "data")
        start = time.perf_counter()
        counts = np.bincount(y[~aside], weight[~aside]).tolist()
        found = recipe(data, warp=self.warp, steps=self.max_steps, seed=seed, counts=counts)
        data = Data(found.prepare(data.x), data.y, names, "data").to(device)  # in double until then: not all devices do
        if self.time_budget is not None:
            found = within(found, data, self.time_budget)
        self.recipe_ = found
        if self.verbose:
            print(found)
        accelerator: Any = "cuda" if device.type == "cuda" else "mps" if device.type == "mps" else "cpu"
        config = replace(found.config, accelerator=accelerator)
        rows = torch.arange(len(data), device=device)
        prepared = Data(data.x, rows, tuple(str(i) for i in range(len(data))), "data")
        held_x, held_y, held_weight = (v.to(device) for v in (found.prepare(x[kept]), labels[kept], weights[kept]))
        progress = Progress(self, config, held_x, held_y, held_weight, len(data))
        bound = Bound(data.y, weights[~kept].to(device), config)
        self.stopped_ = "the planned steps are taken"
        try:
            left = None if self.time_budget is None else self.time_budget - (time.perf_counter() - start)
            run = fit(
                found.model,
                prepared,
                config=config,
                loss=bound,
                progress=self.verbose > 0,
                on_epoch=progress,
                seconds=left,
            )
            if run.steps < (config.steps or 0):
                self.stopped_ = "time is up"
        except Enough as reason:
            self.stopped_ = str(reason)
        except KeyboardInterrupt:
            self.stopped_ = "interrupted"
            if progress.record is None:
                del self.recipe_, self.classes_
                raise
            warnings.warn(
                f"interrupted after {progress.record['step']} of {config.steps} steps: the estimator is fitted "
                "with what it had learned by then",
                ConvergenceWarning,
                stacklevel=3,
            )
        progress.restore(found.model)
        found.model.eval().cpu()
        self.n_steps_ = 0 if progress.record is None else int(progress.record["step"])
        self.seconds_ = time.perf_counter() - start
        self.pose_ = self._spread()

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, (n, K), in the order of ``classes_``: the mean over several warps."""
        return self.predictive(X).probs.double().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each input, (n,)."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def predictive(self, X: Any) -> Predictive:
        """Probabilities with their uncertainty: entropy, and the part of it that is due to the warps."""
        check_is_fitted(self, "recipe_")
        x = self.recipe_.prepare(self._read(X, fitting=False))
        model = copy.deepcopy(self.recipe_.model).to(self._device())
        if len(x) <= FEW and self._device().type == "cpu":
            # a few inputs cost little in double, and then an answer does not depend on its neighbours' rounding
            model, x = model.double(), x.double()
        found = predict(Fixed(model, self.samples), x, batch_size=at_a_time(x, self.samples))
        probs = found.probs.double()
        return replace(found, log_probs=(probs / probs.sum(-1, keepdim=True)).log())

    def transform(self, X: Any) -> np.ndarray:
        """The inputs aligned: each warped by its pose's mean; in the form that they came in."""
        check_is_fitted(self, "recipe_")
        x = self._read(X, fitting=False)
        if self._family is None:
            return self._shaped(x, X)
        return self._shaped(self._warped(x, torch.from_numpy(self.pose(X).mean)), X)

    def sample(self, X: Any, n: int = 1, random_state: Any = None) -> np.ndarray:
        """Augmented data: each input n times, warped at random as in training.

        Arguments:
            X: Inputs.
            n: How many of each.
            random_state: Fixes what is drawn; an integer, or None.

        Returns:
            The warped inputs in the form of ``X``, with an axis of n in front.
        """
        check_is_fitted(self, "recipe_")
        x = self._read(X, fitting=False)
        if self._family is None:
            return np.stack([self._shaped(x, X)] * n)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        spread = torch.from_numpy(self.pose_.spread).to(x.dtype)
        theta = spread * torch.randn(n, len(x), len(spread), generator=generator)
        return np.stack([self._shaped(self._warped(x, one), X) for one in theta])

    def pose(self, X: Any) -> Pose:
        r"""The posterior of each input's pose: the warps of training, weighted by how clear a class the network sees.

        :math:`p(\theta|x) \propto q(\theta)\,p(\hat y|x, \theta)`, with the class that is predicted.
        """
        check_is_fitted(self, "recipe_")
        family = self._family
        if family is None:
            raise ValueError("this estimator has no warps (warp=False), hence no poses")
        x = self.recipe_.prepare(self._read(X, fitting=False))
        spread = torch.from_numpy(self.pose_.spread).float()
        theta = Looks(self.recipe_.model, LOOKS).draws(spread)
        means, spreads = [], []
        with torch.no_grad():
            for part in x.split(at_a_time(x, LOOKS)):
                logits = Looks(self.recipe_.model, LOOKS).look(part, theta).double().log_softmax(-1)
                best = logits.exp().mean(0).argmax(-1)
                likely = logits.gather(-1, best.expand(len(theta), -1)[..., None]).softmax(0)
                mean = (likely * theta[:, None]).sum(0)
                means.append(mean)
                spreads.append((likely * (theta[:, None] - mean).square()).sum(0).sqrt())
        return Pose(family.names, torch.cat(means).numpy(), torch.cat(spreads).numpy())

    @available_if(lambda self: getattr(self, "rows_", True))
    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """What the columns of aligned rows are called: as those that came in; not for arrays of more axes."""
        check_is_fitted(self, "recipe_")
        return _check_feature_names_in(self, input_features)

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one safetensors file: weights and JSON, nothing pickled.

        A generator as ``random_state`` and a dictionary as ``class_weight`` have no place in JSON and have done their
        work: they come back as None.
        """
        check_is_fitted(self, "recipe_")
        found = self.recipe_
        given = self.get_params(deep=False)
        if not isinstance(given["random_state"], int | np.integer | None):
            given["random_state"] = None
        if isinstance(given["class_weight"], dict):
            given["class_weight"] = None
        meta = {
            "kind": type(self).__name__,
            "parameters": given,
            "classes": self.classes_.tolist(),
            "dtype": self.classes_.dtype.str,
            "size": found.size,
            "normalise": [found.normalise.mean, found.normalise.std, found.normalise.background],
            "understood": found.understood,
            "config": found.config.__dict__,
            "fitted": self._fitted(),
            "spread": getattr(found.model.posterior, "spread", None),
        }
        if self.classes_.dtype.kind == "O":
            meta["dtype"] = "object"
        save(path, found.model.state_dict(), meta)

    @classmethod
    def load(cls, path: str | Path) -> Base:
        """An estimator that :meth:`save` wrote: it predicts the same."""
        tensors, meta = load(path)
        if meta.get("kind") != cls.__name__:
            raise ValueError(f"{path} holds {meta.get('kind')!r}; expected a {cls.__name__} that save(...) wrote")
        parameters: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["parameters"].items()}
        self = cls(**parameters)
        self.classes_ = np.array(meta["classes"], dtype=np.dtype(meta["dtype"]))
        for name, value in meta["fitted"].items():
            setattr(self, name, tuple(value) if isinstance(value, list) else value)
        mean, std = (tuple(v) if isinstance(v, list) else v for v in meta["normalise"][:2])
        normalise = Normalise(mean, std, meta["normalise"][2])
        size = tuple(meta["size"])
        fill = float(normalise.fill) if meta["fitted"]["fills_"] else None
        shape = (meta["fitted"]["channels_"], *size)
        # the weights hold how far the spread went from where it started; files up to 0.4.0 do not say: it was 0.1
        model = network(shape, len(self.classes_), fill=fill, warp=self.warp, spread=meta.get("spread", 0.1))
        fill_in(model, tensors, path)
        self.recipe_ = Recipe(model.eval(), Train(**meta["config"]), size, normalise, tuple(meta["understood"]), fill)
        self.pose_ = self._spread()
        return self

    def _fitted(self) -> dict[str, Any]:
        names = ("n_features_in_", "n_steps_", "seconds_", "stopped_", "channels_")
        kept = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return {**kept, "fills_": self.recipe_.fill is not None}

    @property
    def _family(self) -> Family | None:
        return self.recipe_.model.family

    def _spread(self) -> Pose:
        if self._family is None:
            return Pose((), np.zeros(0), np.zeros(0))
        with torch.no_grad():
            q = Looks(self.recipe_.model, 1).posterior(training=True)
        return Pose(self._family.names, q.mean[0].double().numpy(), q.stddev[0].double().numpy())

    def _warped(self, x: Tensor, theta: Tensor) -> Tensor:
        """The inputs as they came, warped; what lies outside is as in training."""
        assert self._family is not None
        options = self.recipe_.model.options
        background = self.recipe_.normalise.background
        return warp(x, self._family, theta.to(x.dtype), fill=background, padding=options["padding"])  # type: ignore[arg-type]

    def _device(self) -> torch.device:
        if self.device != "auto":
            found = torch.device(self.device)
            if found.type == "cuda" and not torch.cuda.is_available():
                raise ValueError(f"device is {self.device!r}, and torch finds no GPU here; expected 'cpu' or 'auto'")
            return found
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may ask of the estimator."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []
        return tags
