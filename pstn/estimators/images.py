"""A classifier of images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from pstn.estimators.base import Base


class PSTNClassifier(Base):
    """A classifier of images that learns how its images may be turned, scaled, sheared and shifted.

    For each image, several warps are looked at and the probabilities averaged.

    Arguments:
        image_shape: The (height, width) or (channels, height, width) of images that come as rows (n, features). By
            default a square of one channel where it comes out even, else a picture of one row.
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
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits()
        >>> clf = PSTNClassifier(max_steps=60, random_state=0).fit(digits.images[:100], digits.target[:100])
        >>> clf.predict_proba(digits.images[:5]).shape, clf.pose_.names
        ((5, 10), ('rotation', 'log-scale x', 'log-scale y', 'shear xy', 'x', 'y'))
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, ...] | None = None,
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
        super().__init__(
            warp=warp,
            samples=samples,
            max_steps=max_steps,
            time_budget=time_budget,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            class_weight=class_weight,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.image_shape = image_shape

    def _read(self, X: Any, fitting: bool) -> Tensor:
        X = _whole(X)
        if getattr(X, "ndim", 2) in (3, 4):
            array = check_array(np.asarray(X), allow_nd=True, dtype=np.float64, input_name="X")
            x = torch.from_numpy(np.require(array, requirements=["C", "W"]))
            if x.ndim == 3:
                x = x[:, None]
            elif _channels_last(x.shape):
                x = x.movedim(-1, 1)
            if fitting:
                self.n_features_in_ = math.prod(x.shape[1:])
        else:
            array = validate_data(self, X, reset=fitting, dtype=np.float64)
            rows = torch.from_numpy(np.require(array, requirements=["C", "W"]))
            x = rows.reshape(len(array), *self._row_shape(array.shape[1]))
        if fitting:
            self.channels_, self.image_shape_ = x.shape[1], tuple(x.shape[1:])
        elif tuple(x.shape[1:]) != tuple(self.image_shape_):
            raise ValueError(
                f"X has images of {tuple(x.shape[1:])} (channels, height, width); the estimator was fitted with "
                f"{tuple(self.image_shape_)}"
            )
        return x.float()

    def _row_shape(self, features: int) -> tuple[int, int, int]:
        if self.image_shape is None:
            side = math.isqrt(features)
            return (1, side, side) if side * side == features else (1, 1, features)
        shape = tuple(self.image_shape)
        if len(shape) not in (2, 3) or math.prod(shape) != features:
            raise ValueError(
                f"image_shape is {shape}; rows of {features} features need (height, width) or (channels, height, "
                f"width) with a product of {features}"
            )
        return (1, *shape) if len(shape) == 2 else shape  # type: ignore[return-value]

    def _shaped(self, x: Tensor, X: Any) -> np.ndarray:
        shape = getattr(_whole(X), "shape", (0, 0))
        if len(shape) == 2:
            return x.flatten(1).double().numpy()
        if len(shape) == 3:
            return x[:, 0].double().numpy()
        return (x.movedim(1, -1) if _channels_last(shape) else x).double().numpy()

    def _fitted(self) -> dict[str, Any]:
        return {**super()._fitted(), "image_shape_": self.image_shape_}


def _whole(X: Any) -> Any:
    """A list of images as one array; anything else as it is."""
    listed = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) >= 2
    if listed and len({np.shape(image) for image in X}) > 1:
        sizes = sorted({np.shape(image) for image in X})
        raise ValueError(f"X has images of different shapes, such as {sizes[0]} and {sizes[-1]}: resize them first")
    return np.asarray(X) if listed else X


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether (n, a, b, c) are images with the channels last: c is a number of colours and a is not."""
    first, last = shape[1] in (1, 3, 4), shape[3] in (1, 3, 4)
    if first == last:
        return shape[3] < shape[1]
    return last
