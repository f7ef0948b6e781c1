"""Which setting a row ends with: the best on validation data. Test scores are not looked at."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from pstn.experiment.row import Experiment, Setting


def choose(row: Experiment, find: Callable[[Setting, int], Mapping[str, Any] | None]) -> Setting | None:
    """The setting with the best mean validation score over the row's tuning folds.

    A setting at which networks diverged stands behind those at which fewer did.

    Arguments:
        row: The row.
        find: Gives the record of a setting and a fold, or None.

    Returns:
        The setting; None where a record is still missing.
    """
    settings, (metric, better) = row.settings(), row.select
    scores: list[tuple[int, float]] = []
    for setting in settings:
        records = [find(setting, fold) for fold in range(row.tuned)]
        if any(record is None for record in records):
            return None
        sound = [record["validation"] for record in records if record is not None and not record["failure"]]
        if len(settings) == 1:
            return setting
        values = [_score(row, validation, metric) for validation in sound]
        mean = statistics.fmean(values) if values else math.inf
        value = mean if better == "min" else -mean
        scores.append((len(records) - len(sound), math.inf if math.isnan(value) else value))
    return settings[scores.index(min(scores))]


def _score(row: Experiment, validation: Mapping[str, float], metric: str) -> float:
    if metric not in validation:
        raise ValueError(
            f"row {row.name!r} chooses by {metric!r}, but its validation scores are {sorted(validation)}: a row with a "
            "grid needs validation data, and a measure that gives the score it chooses by"
        )
    return validation[metric]
