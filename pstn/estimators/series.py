"""A classifier of time series."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from pstn.align.arrays import read
from pstn.estimators.base import Base


class PSTNTimeSeriesClassifier(Base):
    """A classifier of time series that learns how its series may be shifted, stretched and distorted in time.

    Series of different lengths are stretched to the longest. For each series, several warps are looked at and the
    probabilities averaged.

    Arguments:
        warp: Whether there are warps; without, it is the same network as a plain one, to compare with.
        samples: How many warps are looked at in prediction.
        max_steps: How many steps of training; by the number of examples otherwise.
        time_budget: How many seconds training may take, about.
        early_stopping: Whether to set examples aside and stop when nothing gets better for them. With few examples all
            are better learned from.
        validation_fraction: The share of each class that is set aside.
        patience: How many looks (of about 40) without anything better it takes to stop.
        class_weight: How much each class counts: a dictionary, ``"balanced"`` or None.
        random_state: Fixes everything drawn; an integer, a generator or None.
        device: Where to train: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        verbose: Whether to say what was understood of the data and show progress.

    Attributes:
        classes_: The classes.
        recipe_: What was trained, and how; ``print(clf.recipe_)`` says what was understood.
        pose_: The learned spread of the warps, a :class:`Pose`.
        n_steps_: How many steps were taken; ``stopped_`` says why no more.

    Example:
        >>> from pstn.data import cbf
        >>> data = cbf(24, seed=0)
        >>> clf = PSTNTimeSeriesClassifier(max_steps=60, random_state=0).fit(data.x.numpy(), data.y.numpy())
        >>> clf.predict_proba(data.x.numpy()).shape, clf.pose_.names[:2]
        ((24, 3), ('log-scale x', 'x'))
    """

    length_: int

    def _read(self, X: Any, fitting: bool) -> Tensor:
        # one series, or several of one length that is not the fitted one, are still a list of series
        if _uneven(X) or (not fitting and _arrays(X) and np.shape(X[0]) != (self.length_,)):
            series = [np.asarray(one, dtype=np.float64) for one in X]
            length = None if fitting else (self.length_,)
            x, _ = read(series, length, False, None)
            count = x.shape[1]
        elif getattr(X, "ndim", 2) == 3:
            array = check_array(np.asarray(X), allow_nd=True, dtype=np.float64, input_name="X")
            x, count = torch.from_numpy(np.require(array, requirements=["C", "W"])), array.shape[1]
        else:
            array = validate_data(self, X, reset=fitting, dtype=np.float64)
            x, count = torch.from_numpy(np.require(array, requirements=["C", "W"]))[:, None], 1
        if fitting:
            self.channels_, self.length_ = count, x.shape[-1]
            self.n_features_in_ = x.shape[-1]
        elif count != self.channels_:
            raise ValueError(f"X has {count} channels; the estimator was fitted with {self.channels_}")
        return x

    def _shaped(self, x: Tensor, X: Any) -> np.ndarray:
        flat = not _uneven(X) and getattr(X, "ndim", 2) == 2
        return (x[:, 0] if flat else x).double().numpy()

    def _fitted(self) -> dict[str, Any]:
        return {**super()._fitted(), "length_": self.length_}


def _uneven(X: Any) -> bool:
    """Whether this is a list of arrays, such as series of different lengths."""
    if _listed(X):
        arrays = [one for one in X if isinstance(one, list | tuple) or hasattr(one, "__array__")]
        return len(arrays) == len(X) > 0 and (np.ndim(X[0]) == 2 or len({np.shape(one) for one in arrays}) > 1)
    return False


def _arrays(X: Any) -> bool:
    """Whether this is a list of nothing but arrays, tensors or columns of tables."""
    return _listed(X) and len(X) > 0 and all(hasattr(one, "__array__") and np.ndim(one) > 0 for one in X)


def _listed(X: Any) -> bool:
    return isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1)
