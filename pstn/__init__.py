"""Spatial transformers that know what they don't know.

Networks that learn to rotate, crop, zoom and bend their input before they classify it, with a probability distribution
over that transformation.
"""

from pstn import nets
from pstn._version import __version__
from pstn.families import CPAB, TPS, Affine, Compose, Crop, Family, Projective, Rotation, Similarity, Translation
from pstn.inference import TTA, Augment, Predictive, predict
from pstn.objectives import elbo, nll
from pstn.placement import CNN, DL, SL, C, Placement, turns
from pstn.posterior import Gaussian, Learned, Point, StudentT
from pstn.stn import STN, Output, Stage, param_groups
from pstn.warp import warp

__all__ = [
    "CNN",
    "CPAB",
    "DL",
    "SL",
    "STN",
    "TPS",
    "TTA",
    "Affine",
    "Augment",
    "C",
    "Compose",
    "Crop",
    "Family",
    "Gaussian",
    "Learned",
    "Output",
    "Placement",
    "Point",
    "Predictive",
    "Projective",
    "Rotation",
    "Similarity",
    "Stage",
    "StudentT",
    "Translation",
    "__version__",
    "elbo",
    "nets",
    "nll",
    "param_groups",
    "predict",
    "turns",
    "warp",
]
