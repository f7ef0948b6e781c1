"""The papers' localizers and classifiers, by shape and parameter budget."""

from pstn.nets.pooled import pooled_classifier, pooled_localizer
from pstn.nets.resnet import ResNet, resnet18
from pstn.nets.small import Blind, Localizer, blind, classifier, features, localizer

__all__ = [
    "Blind",
    "Localizer",
    "ResNet",
    "blind",
    "classifier",
    "features",
    "localizer",
    "pooled_classifier",
    "pooled_localizer",
    "resnet18",
]
