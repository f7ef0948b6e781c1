"""One network of the demonstration: what it is trained with, testing it, and the files that say that this is done."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pstn._version import __version__
from pstn.demo.models import KINDS, augmentation, build, glance, parts
from pstn.demo.settings import Demo
from pstn.inference import predict
from pstn.metrics import summary
from pstn.stn import STN
from pstn.train import Member, Run, Train, load, load_model, save, seeded
from pstn.train.checkpoint import write

#: The KL weight of the learned spread, which other validation digits chose, and the warps drawn for each digit.
LEARNED, COPIES = 9.0, 4


@dataclass(frozen=True)
class Job:
    """A network to train: its kind, its seed, and the value of what is tuned.

    Arguments:
        demo: The settings of the demonstration.
        kind: One of :data:`~pstn.demo.models.KINDS`.
        seed: Which training digits and initial weights, from 0.
        strength: The augmentation's σ or the P-STN's KL weight; None for the other kinds.
    """

    demo: Demo
    kind: str
    seed: int
    strength: float | None = None

    @property
    def label(self) -> str:
        """The network in words."""
        kind = KINDS[self.kind]
        tuned = "" if self.strength is None else f" ({kind.tuned} = {self.strength:g})"
        return f"{kind.label}{tuned}, seed {self.seed}"

    @property
    def config(self) -> Train:
        """How it is trained: the same for all kinds, but for the KL weight."""
        demo = self.demo
        epochs = demo.steps * demo.batch_size // demo.train
        return Train(
            steps=demo.steps,
            batch_size=demo.batch_size,
            lr=demo.lr,
            localizer_lr=0.05,  # at lr = 2e-3 that is the paper's 1e-4
            weight_decay=0.01,
            schedule="cosine",
            samples=COPIES if self.kind == "learned" else 1,
            samples_validation=demo.samples,
            kl_weight=LEARNED if self.kind == "learned" else self.strength or 0.0 if self.kind == "pstn" else 0.0,
            kl_per="dataset" if self.kind == "learned" else "dimension",
            seed=self.seed,
            accelerator="cpu",
            validate_every=max(1, epochs // 10),
        )

    @cached_property
    def folder(self) -> Path:
        """Where its files are. The name holds a checksum of all that matters: other settings, another folder."""
        demo = self.demo
        data = (demo.seed, demo.train, demo.validation, demo.test, demo.samples)
        what = json.dumps([__version__, self.kind, self.strength, data, asdict(self.config)])
        strength = "" if self.strength is None else f"-{self.strength:g}"
        return demo.runs / f"{self.kind}{strength}-seed{self.seed}-{zlib.crc32(what.encode()):08x}"

    @property
    def trained(self) -> bool:
        """Whether it is trained and validated."""
        return (self.folder / "result.json").exists()

    @property
    def tested(self) -> bool:
        """Whether its predictions for the test digits are there."""
        return (self.folder / "test.safetensors").exists()

    def result(self) -> dict[str, Any]:
        """What training left: validation scores, history, its share of its fleet's seconds."""
        return json.loads((self.folder / "result.json").read_text())

    def predictions(self) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        """Probabilities (N, K) and their entropy (N,) for the test digits, and the scores."""
        tensors, meta = load(self.folder / "test.safetensors")
        return tensors["probs"], tensors["entropy"], meta

    def model(self) -> STN:
        """The trained network, in evaluation mode."""
        model = build(self.kind)
        load_model(model, self.folder / "model.safetensors")
        model.eval()
        return model

    def member(self) -> Member:
        """A fresh network with its digits and settings, to be trained."""
        # A neighbouring seed's network must not start from the same weights, whatever the demonstration's seed is.
        with seeded(1000 * self.demo.seed + self.seed):
            model = build(self.kind)
        augment = augmentation(self.strength) if self.kind == "augment" and self.strength is not None else None
        return Member(model, parts(self.demo).train[self.seed], glance(self.demo), self.config, augment)

    def keep(self, run: Run) -> None:
        """Validate the trained network and take over its files; ``result.json`` comes last and says that it is done."""
        validation = parts(self.demo).validation
        p = predict(run.model, validation.x, self.demo.samples, generator=torch.Generator().manual_seed(self.seed))
        result = {
            "kind": self.kind,
            "seed": self.seed,
            "strength": self.strength,
            "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
            "validation": summary(p.probs, validation.y),
            "seconds": run.seconds,
            "history": run.history,
        }
        assert run.directory is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in run.directory.iterdir():
            file.replace(self.folder / file.name)
        write(self.folder / "result.json", json.dumps(result).encode())

    def test(self) -> None:
        """Predict the test digits and keep the predictions."""
        _, _, digits = parts(self.demo)
        p = predict(self.model(), digits.x, self.demo.samples, generator=torch.Generator().manual_seed(self.seed))
        save(self.folder / "test.safetensors", {"probs": p.probs, "entropy": p.entropy}, summary(p.probs, digits.y))
