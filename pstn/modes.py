"""Which parts of a model are in training mode, as they came in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Modes:
    """The mode of each part of a model, to be put back.

    Arguments:
        model: The model.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
        >>> _ = model[0].eval()
        >>> modes = Modes(model)
        >>> _ = model.eval()
        >>> modes.restore()
        >>> model.training, model[0].training, model[1].training
        (True, False, True)
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.each = {module: module.training for module in model.modules()}

    def restore(self) -> None:
        """Put the modes back."""
        self.model.train(self.each[self.model])  # which models may do in a way of their own
        for module, mode in self.each.items():
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is in the mode it was in, a frozen part included."""
    modes = Modes(model)
    model.eval()
    try:
        yield
    finally:
        modes.restore()


def resting(model: nn.Module) -> tuple[str, ...]:
    """The parts in evaluation mode of a model that is in training mode: so they are to stay while it is trained."""
    return tuple(name for name, module in model.named_modules() if not module.training) if model.training else ()
