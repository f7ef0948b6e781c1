"""Training: one model at a time, on Lightning Fabric."""

from pstn.train.checkpoint import CheckpointError, load, load_model, save, save_model
from pstn.train.config import Train
from pstn.train.loop import Run, fit
from pstn.train.seed import seeded

__all__ = ["CheckpointError", "Run", "Train", "fit", "load", "load_model", "save", "save_model", "seeded"]
