"""Where a run is, and how that becomes a checkpoint and comes back from one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pstn.train.checkpoint import CheckpointError, fill, load, pack_optimizer, part, save, unpack_optimizer
from pstn.train.seed import random_state, set_random_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Settings that may differ when a run is resumed: they do not change what is learned.
FREE = ("accelerator", "checkpoint_every")


@dataclass
class State:
    """Everything in a run that is neither the model's nor the optimizer's nor torch's generators'."""

    order: Tensor
    """The state of the generator from which the current epoch's permutation is drawn."""
    epoch: int = 0
    """Epochs behind us."""
    batch: int = 0
    """Batches of the current epoch behind us; the epoch is closed, and this 0, after its validation."""
    step: int = 0
    """Optimizer steps behind us."""
    seen: int = 0
    """Examples of the current epoch behind us."""
    sums: list[float] = field(default_factory=list)
    """The loss and its terms, summed over these examples."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The records of the epochs behind us."""
    best: dict[str, Any] | None = None
    """The record with the least validation NLL."""
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    """The weights of that epoch, where they are to be kept."""
    seconds: float = 0.0
    """Time spent, over all sittings."""

    def save(
        self, path: Path, header: Mapping[str, Any], fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Write a checkpoint, on the first process; all of them take part."""
        random = random_state(fabric.device)
        if fabric.world_size > 1:
            random = {name: fabric.all_gather(value).cpu() for name, value in random.items()}  # type: ignore[union-attr]
        if not fabric.is_global_zero:
            return
        slots, rest = pack_optimizer(optimizer.state_dict())
        groups = {"model": model.state_dict(), "optimizer": slots, "random": random, "best": self.best_weights}
        tensors = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
        tensors["order"] = self.order
        plain = {k: v for k, v in vars(self).items() if k not in ("order", "best_weights")}
        scaler = fabric.strategy.precision.state_dict()
        save(path, tensors, {"header": dict(header), "state": plain, "optimizer": rest, "scaler": scaler})

    @classmethod
    def load(
        cls, path: Path, header: Mapping[str, Any], fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[State, dict[str, Any]]:
        """Fill model, optimizer and generators from a checkpoint of the same run; its state and its header."""
        tensors, meta = load(path)
        if "state" not in meta or "header" not in meta:
            raise CheckpointError(f"{path} holds a model, not a run: move it away, or read it with load_model")
        wrong = differences(meta["header"], header)
        if wrong:
            raise CheckpointError(
                f"{path} belongs to a run with other settings: {'; '.join(wrong)}. Use the same ones to go on, another "
                "directory, or resume=False to start over"
            )
        fill(model, part(tensors, "model"), path)
        optimizer.load_state_dict(unpack_optimizer(part(tensors, "optimizer"), meta["optimizer"]))
        fabric.strategy.precision.load_state_dict(meta["scaler"])
        random = part(tensors, "random")
        if fabric.world_size > 1:
            random = {name: value[fabric.global_rank] for name, value in random.items()}
        set_random_state(random, fabric.device)
        state = cls(order=tensors["order"], best_weights=part(tensors, "best"), **meta["state"])
        return state, meta["header"]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What keeps a run from going on under new settings, in words.

    More epochs are no obstacle unless the schedule looks at their number: ten epochs and ten more are twenty.
    """
    free = FREE if new["config"]["schedule"] == "cosine" else (*FREE, "epochs")
    wrong = []
    for name in dict.fromkeys((*old["config"], *new["config"])):
        # as a file has them: JSON knows no tuples
        before, now = (json.loads(json.dumps(h["config"].get(name, "absent"))) for h in (old, new))
        if name not in free and before != now:
            wrong.append(f"{name} {before} there, {now} here")
    for name in ("train", "validation"):
        if old[name] != new[name]:
            wrong.append(f"{name} data {_words(old[name])} there, {_words(new[name])} here")
    return wrong


def _words(data: Mapping[str, Any] | None) -> str:
    return "none" if data is None else f"{data['name']} {tuple(data['shape'])} (checksum {data['crc32']})"
