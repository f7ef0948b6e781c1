"""Variational autoencoders whose codes do not depend on where a picture's content is, how large, how turned."""

from pstn.vae.model import VAE, CategoricalVAE
from pstn.vae.nudge import Nudge
from pstn.vae.output import Bound, Drawing
from pstn.vae.pose import undo
from pstn.vae.probe import Probe, fit_probe, invariance
from pstn.vae.transformer import Paired, front, paired_error

__all__ = [
    "VAE",
    "Bound",
    "CategoricalVAE",
    "Drawing",
    "Nudge",
    "Paired",
    "Probe",
    "fit_probe",
    "front",
    "invariance",
    "paired_error",
    "undo",
]
