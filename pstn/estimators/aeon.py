"""aeon's face of the time-series classifier; needs the extra ``aeon``."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pstn.estimators.series import PSTNTimeSeriesClassifier

try:
    from aeon.classification.base import BaseClassifier
except ImportError:

    class BaseClassifier:  # type: ignore[no-redef]
        """What stands in for aeon's where aeon is not installed."""

        def __init__(self) -> None:
            raise ImportError("the aeon face of the classifier needs aeon: pip install 'pstn[aeon]'")


class AeonPSTNClassifier(BaseClassifier):
    """:class:`PSTNTimeSeriesClassifier` as aeon has its classifiers: same network, same training, same answers.

    Arguments:
        samples: How many warps are looked at in prediction.
        max_steps: How many steps of training; by the number of examples otherwise.
        time_limit_in_minutes: How long training may take, about; 0 for as long as the steps take.
        class_weight: How much each class counts: a dictionary, ``"balanced"`` or None.
        random_state: Fixes everything drawn; an integer, a generator or None.
        device: Where to train: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        verbose: Whether to say what was understood of the data and show progress.

    Attributes:
        estimator_: The fitted :class:`PSTNTimeSeriesClassifier`, for ``transform``, ``sample``, ``pose`` and ``save``.
    """

    _tags: ClassVar[dict[str, Any]] = {
        "X_inner_type": ["np-list", "numpy3D"],
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:contractable": True,
        "algorithm_type": "deeplearning",
        "python_dependencies": "torch",
    }

    def __init__(
        self,
        samples: int = 16,
        max_steps: int | None = None,
        time_limit_in_minutes: float = 0,
        class_weight: Any = None,
        random_state: Any = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.samples = samples
        self.max_steps = max_steps
        self.time_limit_in_minutes = time_limit_in_minutes
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        super().__init__()

    def _fit(self, X: Any, y: np.ndarray) -> AeonPSTNClassifier:
        self.estimator_ = PSTNTimeSeriesClassifier(
            samples=self.samples,
            max_steps=self.max_steps,
            time_budget=60 * self.time_limit_in_minutes or None,
            class_weight=self.class_weight,
            random_state=self.random_state,
            device=self.device,
            verbose=self.verbose,
        ).fit(X, y)
        return self

    def _predict(self, X: Any) -> np.ndarray:
        return self.estimator_.predict(X)

    def _predict_proba(self, X: Any) -> np.ndarray:
        return self.estimator_.predict_proba(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        """Few steps, for aeon's own checks."""
        limit = {"time_limit_in_minutes": 1} if parameter_set == "contracting" else {}
        return {"max_steps": 5, "samples": 2, **limit}
