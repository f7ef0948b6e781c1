"""Spatial transformers that know what they don't know.

Networks that learn to rotate, crop, zoom and bend their input before they classify it, with a probability distribution
over that transformation. Names are imported when they are first asked for: ``pstn --help`` does not wait for torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pstn._version import __version__

if TYPE_CHECKING:
    from pstn import nets
    from pstn.export import export
    from pstn.families import CPAB, TPS, Affine, Compose, Crop, Family, Projective, Rotation, Similarity, Translation
    from pstn.inference import TTA, Augment, Predictive, predict
    from pstn.labels import Labels
    from pstn.objectives import elbo, nll
    from pstn.placement import CNN, DL, SL, C, Placement, turns
    from pstn.posterior import Gaussian, Learned, Point, StudentT
    from pstn.stn import STN, Output, Stage, param_groups
    from pstn.uncertainty import Conformal, Temperature, conformal, risk_coverage, selective_accuracy
    from pstn.warp import warp
    from pstn.wrap import Wrapped, wrap

_HOMES = {
    "export": ("export",),
    "families": (
        *("Affine", "CPAB", "Compose", "Crop", "Family", "Projective", "Rotation", "Similarity", "TPS", "Translation"),
    ),
    "inference": ("Augment", "Predictive", "TTA", "predict"),
    "labels": ("Labels",),
    "objectives": ("elbo", "nll"),
    "placement": ("C", "CNN", "DL", "Placement", "SL", "turns"),
    "posterior": ("Gaussian", "Learned", "Point", "StudentT"),
    "stn": ("Output", "STN", "Stage", "param_groups"),
    "uncertainty": ("Conformal", "Temperature", "conformal", "risk_coverage", "selective_accuracy"),
    "warp": ("warp",),
    "wrap": ("Wrapped", "wrap"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

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
    "Conformal",
    "Crop",
    "Family",
    "Gaussian",
    "Labels",
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
    "Temperature",
    "Translation",
    "Wrapped",
    "__version__",
    "conformal",
    "elbo",
    "export",
    "nets",
    "nll",
    "param_groups",
    "predict",
    "risk_coverage",
    "selective_accuracy",
    "turns",
    "warp",
    "wrap",
]


class _Package(ModuleType):
    """A package in which ``warp`` is the function, also once the module of that name has been imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "nets":
        return import_module("pstn.nets")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"pstn.{_HOME[name]}"), name)
    globals()[name] = value  # found without asking from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
