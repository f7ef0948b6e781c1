"""The training of many networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from pstn.train.fleet.files import take_up
from pstn.train.fleet.fleet import Fleet
from pstn.train.fleet.member import Member, check_config, key
from pstn.train.loop import CHECKPOINT, Run
from pstn.train.signals import Signals


def fit_fleet(
    members: Sequence[Member],
    *,
    directory: str | Path | None = None,
    resume: bool = True,
    progress: bool | Progress = True,
    on_step: Callable[[int], object] | None = None,
) -> list[Run]:
    r"""Train many networks at once: what :func:`pstn.train.fit` does for each, as one computation.

    Members of one architecture, batch size, number of examples and length of training form a fleet; a mixture is sorted
    into several. Within one they may differ in data, seed, learning rates, schedule, weight decay and KL weight, and in
    everything that a model keeps in tensors (initial weights, prior scales, the spread of an augmentation).

    Each ends, to rounding, in the weights that :func:`pstn.train.fit` gives it on the CPU: the same order of examples
    and the same noise. On a GPU the order is the same; noise is drawn for many steps at once, so it is that of a fleet
    of one, not of ``fit``. A network whose loss becomes NaN or infinite keeps its last good weights and is left out
    from then on; the others do not notice.

    Networks that torch cannot stack, such as recurrent ones, take their steps one after the other, on the CPU.

    Arguments:
        members: The networks.
        directory: Where to keep a checkpoint for each fleet, and at the end each member's ``model.safetensors`` and
            ``log.jsonl`` in a folder of its own, numbered as given.
        resume: Go on from the checkpoints in the directory, if there are any.
        progress: Show progress on a terminal, or a ``rich`` display to add a line to.
        on_step: Called every so many steps with how many a fleet has behind it.

    Returns:
        A run for each member, in the order given; ``failure`` says why one was left out. ``seconds`` is a network's
        share of the fleet's time.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pstn import STN
        >>> from pstn.data import Data
        >>> from pstn.train import Train
        >>> data = Data(torch.randn(6, 1, 8), torch.tensor([0, 1, 0, 1, 0, 1]), ("a", "b"))
        >>> def network():
        ...     return STN(nn.Sequential(nn.Flatten(), nn.Linear(8, 2)))
        >>> rates = (1e-3, 1e-2, 1e-1)
        >>> members = [Member(network(), data, config=Train(epochs=2, batch_size=4, lr=lr)) for lr in rates]
        >>> [run.steps for run in fit_fleet(members, progress=False)]
        [4, 4, 4]
    """
    if not members:
        raise ValueError("there is nothing to train: no members were given")
    if len({id(member.model) for member in members}) < len(members):
        raise ValueError(
            "two members have the same model; each trains one of its own: build it anew, or copy.deepcopy it"
        )
    groups: dict[Any, list[int]] = {}
    for index, member in enumerate(members):
        check_config(member)
        groups.setdefault(key(member), []).append(index)
    folder = None if directory is None else Path(directory)
    runs: list[Run | None] = [None] * len(members)
    with Signals() as signals:
        for number, indices in enumerate(groups.values()):
            fleet = Fleet([members[i] for i in indices], signals)
            if folder is not None:
                fleet.path = folder / f"fleet{number}-{CHECKPOINT}"
                fleet.folders = [folder / f"{i:03d}" for i in indices]
            fleet.on_step = on_step
            take_up(fleet, resume)
            for index, run in zip(indices, fleet.go(progress), strict=True):
                runs[index] = run
    return [run for run in runs if run is not None]
