"""What is looked at while an estimator learns: the clock, and the examples set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pstn.inference import at_a_time, predict
from pstn.stn import STN
from pstn.train import Train
from pstn.train.seed import seeded

if TYPE_CHECKING:
    from pstn.estimators.base import Base

#: About how often the examples set aside are looked at.
LOOKS = 40


class Enough(Exception):
    """Training is to stop here: nothing gets better."""


class Progress:
    """What is looked at after each epoch: the examples set aside.

    Arguments:
        estimator: The estimator.
        config: The settings of training.
        x: The examples set aside, prepared.
        y: Their labels.
        weight: Their weights.
        examples: How many are learned from.
    """

    def __init__(self, estimator: Base, config: Train, x: Tensor, y: Tensor, weight: Tensor, examples: int) -> None:
        self.estimator, self.config, self.x, self.y, self.weight = estimator, config, x, y, weight
        epochs = max(1, (config.steps or 1) // max(1, examples // config.batch_size))
        self.every = max(1, epochs // LOOKS)
        self.record: dict[str, Any] | None = None
        self.best: tuple[float, int, dict[str, Tensor]] | None = None

    def __call__(self, record: dict[str, Any]) -> None:
        """After an epoch: stop, if it is time to."""
        self.record = record
        if len(self.y) and record["epoch"] % self.every == 0:
            self.look(record["epoch"])

    def look(self, epoch: int) -> None:
        """Measure on the examples set aside, and remember the best."""
        model = self.estimator.recipe_.model
        with seeded(0, self.x.device):
            found = predict(model, self.x, self.estimator.samples, batch_size=at_a_time(self.x, self.estimator.samples))
        right = found.log_probs.gather(1, self.y[:, None]).squeeze(1)
        loss = -float((self.weight * right).sum() / self.weight.sum())
        if self.best is None or loss < self.best[0]:
            self.best = loss, epoch, {k: v.detach().clone() for k, v in model.state_dict().items()}
        elif epoch - self.best[1] >= self.estimator.patience * self.every:
            raise Enough(f"no better on the examples set aside for {self.estimator.patience} looks")

    def restore(self, model: STN) -> None:
        """Put the best weights back."""
        if self.best is not None:
            model.load_state_dict(self.best[2])
