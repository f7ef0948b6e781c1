"""The papers' localizers and classifiers, by shape and parameter budget."""

from pstn.nets.placement20 import (
    LOCALIZER_LR,
    TABLE_VI,
    Heads,
    named_placement,
    number_classifier,
    placed_digits,
    placed_numbers,
    placed_plankton,
    plankton_classifier,
)
from pstn.nets.pooled import pooled_classifier, pooled_localizer
from pstn.nets.resnet import ResNet, resnet18
from pstn.nets.small import Blind, Localizer, blind, classifier, features, localizer, normed_classifier
from pstn.nets.stn15 import (
    Beside,
    attended,
    convolutional_localizer,
    distorted,
    distorted_cnn,
    distorted_fcn,
    linear_localizer,
    summing,
    transformation,
)

__all__ = [
    "LOCALIZER_LR",
    "TABLE_VI",
    "Beside",
    "Blind",
    "Heads",
    "Localizer",
    "ResNet",
    "attended",
    "blind",
    "classifier",
    "convolutional_localizer",
    "distorted",
    "distorted_cnn",
    "distorted_fcn",
    "features",
    "linear_localizer",
    "localizer",
    "named_placement",
    "normed_classifier",
    "number_classifier",
    "placed_digits",
    "placed_numbers",
    "placed_plankton",
    "plankton_classifier",
    "pooled_classifier",
    "pooled_localizer",
    "resnet18",
    "summing",
    "transformation",
]
