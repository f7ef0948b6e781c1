"""Training: one model at a time on Lightning Fabric, or many of one architecture at once as a fleet."""

from pstn.train.checkpoint import CheckpointError, load, load_model, save, save_model
from pstn.train.config import Train
from pstn.train.fleet import Fleet, Member, fit_fleet
from pstn.train.loop import Run, fit
from pstn.train.seed import seeded

__all__ = [
    "CheckpointError",
    "Fleet",
    "Member",
    "Run",
    "Train",
    "fit",
    "fit_fleet",
    "load",
    "load_model",
    "save",
    "save_model",
    "seeded",
]
