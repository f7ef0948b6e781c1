"""What each process of a distributed run does: train, and write down what came out of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from subject import CONFIG, make_data
from torch import nn

from pstn import STN, Similarity
from pstn.train import Train, fit, load, save, seeded

#: 21 examples in batches of five: each is shared as three and two; of the last, which is one, a process has none.
JOINT = replace(CONFIG, epochs=3, lr=1e-2, weight_decay=1e-3, clip=1.0, schedule="cosine", validate_every=1)


def make_model() -> STN:
    """An STN that draws nothing and normalises nothing over the batch: its gradient is a mean over examples."""
    with seeded(0):
        body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
        localizer = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        return STN(body, localizer, Similarity(), features=8)


def train(config: Train, directory: Path | None = None) -> tuple[dict[str, torch.Tensor], dict]:
    """The weights and the history of a run."""
    run = fit(
        make_model(), make_data(21), make_data(15, seed=1), config, directory=directory, progress=False, resume=False
    )
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in run.history]
    return run.model.state_dict(), {"history": history, "steps": run.steps}


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict]:
    """What a process wrote."""
    return load(path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, devices = Path(sys.argv[1]), int(sys.argv[2])
    found = train(replace(JOINT, devices=devices), folder / "run")
    rank = torch.distributed.get_rank()
    assert torch.distributed.get_backend() == "gloo"
    assert torch.distributed.get_world_size() == devices
    save(folder / f"rank{rank}.safetensors", *found)
