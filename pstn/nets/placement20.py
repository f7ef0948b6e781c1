"""The networks of the placement paper, by name: for digits, with its numbers of parameters, numbers and plankton."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pstn.families import Affine
from pstn.grid import check_choice
from pstn.nets.small import Localizer
from pstn.nets.stn15 import convolutional_localizer, linear_localizer
from pstn.placement import CNN, DL, SL, C, Placement
from pstn.posterior import Point, Posterior
from pstn.stn import STN

Digits = Literal["R", "T", "S"]
Placed = Literal["CNN", "C0", "C1", "DL1", "SL1"]

#: The side of the input, filters of the plain CNN, and of the classifier behind a transformer.
_DIGITS: dict[str, tuple[int, tuple[int, int], tuple[int, int]]] = {
    "R": (28, (32, 32), (16, 32)),
    "T": (60, (21, 32), (16, 32)),
    "S": (112, (23, 21), (16, 16)),
}
#: Trainable parameters of the networks for digits, as Table VI prints them.
TABLE_VI = {
    "R": {"CNN": 54_122, "C0": 53_744, "C1": 53_984, "DL1": 55_296, "SL1": 53_984},
    "T": {"CNN": 66_692, "C0": 67_138, "C1": 67_088, "DL1": 66_800, "SL1": 65_488},
    "S": {"CNN": 136_674, "C0": 136_448, "C1": 137_072, "DL1": 138_384, "SL1": 137_072},
}
#: The localizer's learning rate as a multiple of the rest's, by data set, iterations and network. For digits, the paper
#: names none, so it is 1. Layers that a localizer shares with the classifier learn at the classifier's rate.
LOCALIZER_LR: dict[tuple[str, int], dict[str, float]] = {
    ("SVHN", 1): {
        **dict.fromkeys(("C0-large", "C0123", "SL0123", "C0", "C3", "C6", "C8", "SL3", "SL6", "SL8"), 0.01),
        **{"DL3": 0.3, "DL6": 0.1, "DL8": 0.1},
    },
    ("SVHN", 2): {"C0": 0.001, "SL3": 0.01, "SL6": 0.003, "SL8": 0.0003, "DL3": 0.03},
    ("plankton", 1): {
        **{"C0": 0.3, "C2": 0.3, "C4": 0.3, "C7": 0.03, "C10": 0.1},
        **{"SL2": 0.1, "SL4": 0.1, "SL7": 0.03, "SL10": 0.03},
        **{"DL2": 0.3, "DL4": 1.0, "DL7": 1.0, "DL10": 1.0},
    },
    ("plankton", 2): {"C0": 0.1, "DL2": 0.3, "DL4": 0.1, "SL2": 0.01, "SL4": 0.03, "SL7": 0.003},
    ("plankton", 3): {"C0": 0.03},
}


def named_placement(name: str, *, iterations: int = 1, test_iterations: int | None = None) -> Placement:
    """A placement by the paper's name: ``"CNN"``, or ``"C"``, ``"DL"`` or ``"SL"`` and depths, one digit each or 10.

    Arguments:
        name: ``"SL0123"`` looks from depths 0, 1, 2 and 3; ``"C10"`` from depth 10.
        iterations: How often each localizer looks in training.
        test_iterations: How often at test; as in training by default. The paper trains with two and tests with three.

    Example:
        >>> named_placement("SL0123").depths, named_placement("C10").depths, named_placement("DL3").shared
        ((0, 1, 2, 3), (10,), False)
    """
    if name == "CNN":
        return CNN
    found = re.fullmatch(r"(C|DL|SL)(10|\d+)", name)
    if found is None:
        raise ValueError(f"network is {name!r}; expected CNN, or C, DL or SL and its depths, such as SL3 or C0123")
    kind, digits = found.groups()
    depths = (10,) if digits == "10" else tuple(map(int, digits))
    made = {"C": C, "DL": DL, "SL": SL}[kind](*depths)
    return replace(made, iterations=iterations, test_iterations=test_iterations)


def placed_digits(network: Placed, data: Digits, *, posterior: Posterior | None = None) -> STN:
    """CNN, STN-C0, C1, DL1 or SL1 for turned (R), shifted (T) or scaled (S) digits, with Table VI's parameters.

    The classifier has convolutions of 9×9 and 7×7, each with max-pooling by two, and a layer for ten classes. On R, the
    localizer has linear layers; on T and S, convolutions of 5×5 and a linear layer. On T, a transformer's output has
    half the width. All maps are affine, the matrix less the identity, so that weight decay pulls towards the identity;
    outside is the nearest pixel.

    Table VI's figures for C1, DL1 and SL1 on T are 20 fewer than the layers it lists have, each with its bias. The one
    layer in which these three differ from C0 on T is the localizer's last convolution, which they do not pool; here it
    has no bias, so that all fifteen figures are the paper's. That is a guess: the authors' public code has the bias.

    Convention: this library's, pixel centres. The paper's PyTorch aligned the corners, which scales a map by (n - 1)/n
    of the side n, the same for all inputs, and takes every other pixel on T, where the mean of 2×2 is taken here.

    Arguments:
        network: ``"CNN"``, ``"C0"``, ``"C1"``, ``"DL1"`` or ``"SL1"``.
        data: ``"R"`` (28×28), ``"T"`` (60×60) or ``"S"`` (112×112).
        posterior: What is known of the transformation; a point by default, as in the paper.

    References:
        Finnveden et al., ICPR 2020, Table VI

    Example:
        >>> sum(p.numel() for p in placed_digits("SL1", "R").parameters())
        53984
    """
    check_choice("network", network, get_args(Placed))
    check_choice("data", data, get_args(Digits))
    side, alone, behind = _DIGITS[data]
    if network == "CNN":
        return STN(_two_convolutions(side, alone))
    half = side // 2 if data == "T" else side
    features, first = network == "C1", (side - 8) // 2
    # Features are halved by the transformer behind the first layer, the input before it.
    rest = first // 2 if features and data == "T" else (half - 8) // 2
    body = _two_convolutions(side, behind, (rest - 6) // 2)
    seen = (1, side, side) if network == "C0" else (behind[0], first, first)
    size = None
    if data == "T":
        size = (first // 2,) * 2 if features else (half, half)
    localizer = _digit_localizer(network, data, seen)
    options = {"size": size, "padding": "border"}
    if features and size is not None:  # an STN's size is the warped input's; here it is the features' that changes
        return _Halving(body, localizer, Affine(scale="linear"), posterior, named_placement(network), **options)  # type: ignore[arg-type]
    return STN(body, localizer, Affine(scale="linear"), posterior, named_placement(network), **options)  # type: ignore[arg-type]


class _Halving(STN):
    """An STN whose warped features have another size than the features."""

    def _warp(self, source: Tensor, pose: Tensor, resize: bool, window: Tensor | None = None) -> Tensor:
        return super()._warp(source, pose, True, window)


def _digit_localizer(network: str, data: str, seen: Sequence[int]) -> Localizer:
    if data == "R":
        return linear_localizer(seen, (32, 16, 16) if network == "C0" else (16, 16, 16))
    if data == "T":
        deep = network != "C0"
        return convolutional_localizer(seen, 20, 20 if deep else 10, pool_last=not deep, last_bias=not deep)
    return convolutional_localizer(seen, 16, 16, shrink=2 if network == "C0" else 1)


def _two_convolutions(side: int, filters: tuple[int, int], last: int | None = None) -> nn.Sequential:
    last = (((side - 8) // 2) - 6) // 2 if last is None else last
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, filters[0], 9), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(filters[0], filters[1], 7), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(filters[1] * last * last, 10)),
    )


class Heads(nn.Module):
    """Several linear classifiers that read the same features, (N, F) to (N, heads, K).

    Example:
        >>> Heads(8, 5, 11)(torch.rand(2, 8)).shape
        torch.Size([2, 5, 11])
    """

    def __init__(self, features: int, heads: int, classes: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(features, heads * classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.linear(x).unflatten(1, (self.heads, -1))


def number_classifier(
    size: int = 64,
    *,
    channels: Sequence[int] = (48, 64, 128, 160, 192, 192, 192, 192),
    units: int = 3072,
    dropout: float = 0.5,
) -> nn.Sequential:
    """The CNN of both papers for house numbers: eight convolutions, three linear layers, five heads of eleven classes.

    Convolutions are 5×5 with padding, with max-pooling by two behind the first, third, fifth and seventh; every layer
    but the first has dropout. Each child is one layer with the pooling and dropout that follow, so depth X is right in
    front of the next convolution. At 64 pixels it has 32,820,951 parameters.

    Arguments:
        size: The side of the images.
        channels: Filters of the eight convolutions. STN'15's list of layers is cut short; these are the placement
            paper's, which says they are the same.
        units: Units of the linear layers.
        dropout: The dropout of all layers but the first.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015; Finnveden et al., ICPR 2020, A.3
    """
    layers: list[nn.Module] = []
    before = 3
    for n, width in enumerate(channels):
        pool = [nn.MaxPool2d(2)] if n % 2 == 0 else []
        drop = [nn.Dropout(dropout)] if n else []
        layers.append(nn.Sequential(nn.Conv2d(before, width, 5, padding=2), nn.ReLU(), *pool, *drop))
        before = width
    flat = before * (size // 2 ** ((len(channels) + 1) // 2)) ** 2
    for n in range(3):
        first = [nn.Flatten()] if n == 0 else []
        layers.append(nn.Sequential(*first, nn.Linear(flat, units), nn.ReLU(), nn.Dropout(dropout)))
        flat = units
    return nn.Sequential(*layers, Heads(units, 5, 11))


def placed_numbers(
    network: str, *, size: int = 64, iterations: int = 1, test_iterations: int | None = None, **options: object
) -> STN:
    """A network for house numbers: the CNN, STN-C0-large, C0123, SL0123, or CX, DLX, SLX at any depth.

    ``"CNN"``, ``"C0-large"`` and ``"C0123"`` are STN'15's CNN, ST-CNN Single and ST-CNN Multi. Localizers have two
    linear layers of 32 units; that of C0-large has two convolutions before them. Maps are affine, outside is 0.

    Arguments:
        network: The name: ``"CNN"``, ``"C0-large"``, or as :func:`named_placement` takes it.
        size: The side of the images.
        iterations: How often each localizer looks in training.
        test_iterations: How often at test.
        options: For :func:`number_classifier`.

    Example:
        >>> model = placed_numbers("SL0123", size=32, channels=(4,) * 8, units=16)
        >>> model(torch.rand(2, 3, 32, 32)).logits.shape, len(model.transformers)
        (torch.Size([1, 2, 5, 11]), 4)
    """
    body = number_classifier(size, **options)  # type: ignore[arg-type]
    if network == "CNN":
        return STN(body)
    if network == "C0-large":
        where = named_placement("C0", iterations=iterations, test_iterations=test_iterations)
        half = size // 2
        large = Localizer(
            *(nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU()),
            *linear_localizer((32, half, half), (32, 32)),
            out_features=32,
        )
        return STN(body, large, Affine(scale="linear"), Point(), where)
    where = named_placement(network, iterations=iterations, test_iterations=test_iterations)
    shapes = _shapes(body, (3, size, size), where.depths)
    localizers = [linear_localizer(shape, (32, 32)) for shape in shapes]
    return STN(body, localizers, Affine(scale="linear"), Point(), where)


#: Of plankton's activations, below zero.
SLOPE = 1 / 3


def plankton_classifier(
    size: int = 95,
    classes: int = 121,
    *,
    channels: Sequence[int] = (32, 32, 64, 64, 128, 128, 128, 256, 256, 256),
    units: int = 512,
    scaled: bool = False,
) -> nn.Sequential:
    """The placement paper's CNN for plankton: ten convolutions of 3×3, pooled behind the 2nd, 4th, 7th and 10th.

    Convolutions are padded, pooling takes 3×3 with stride 2, activations are leaky (a slope of 1/3 below zero); dropout
    stands before each of the three linear layers. Each child is one layer with the pooling that follows.

    Arguments:
        size: The side of the images.
        classes: How many classes.
        channels: Filters of the ten convolutions.
        units: Units of the two hidden linear layers.
        scaled: Whether weights start at a size that keeps signals as large as they come, but for the last layer's, a
            tenth of it. As the paper has them, at torch's own size, signals shrink from layer to layer: what comes out
            hardly depends on the image, and hundreds of steps pass before anything is learned.

    References:
        Finnveden et al., ICPR 2020, A.4; He et al., ICCV 2015

    Example:
        >>> sum(p.numel() for p in plankton_classifier().parameters())
        5511385
    """
    layers: list[nn.Module] = []
    before, side = 1, size
    for n, width in enumerate(channels, start=1):
        pool = [nn.MaxPool2d(3, 2)] if n in (2, 4, 7, 10) else []
        layers.append(nn.Sequential(nn.Conv2d(before, width, 3, padding=1), nn.LeakyReLU(SLOPE), *pool))
        before, side = width, (side - 1) // 2 if pool else side
    first = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(before * side * side, units), nn.LeakyReLU(SLOPE))
    second = nn.Sequential(nn.Dropout(0.5), nn.Linear(units, units), nn.LeakyReLU(SLOPE))
    body = nn.Sequential(*layers, first, second, nn.Sequential(nn.Dropout(0.5), nn.Linear(units, classes)))
    if scaled:
        weighted = [layer for layer in body.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        for layer in weighted:
            nn.init.kaiming_normal_(layer.weight, a=SLOPE)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        with torch.no_grad():
            weighted[-1].weight.mul_(0.1)
    return body


def placed_plankton(
    network: str, *, size: int = 95, iterations: int = 1, test_iterations: int | None = None, **options: object
) -> STN:
    """A network for plankton: the CNN, or CX, DLX, SLX at a depth, in the paper 0, 2, 4, 7 and 10.

    Localizers have two linear layers of 64 units. Maps are affine; outside is the nearest pixel.

    Arguments:
        network: The name, as :func:`named_placement` takes it.
        size: The side of the images.
        iterations: How often each localizer looks in training.
        test_iterations: How often at test.
        options: For :func:`plankton_classifier`.

    Example:
        >>> model = placed_plankton("DL2", size=31, channels=(4,) * 10, units=8)
        >>> model(torch.rand(2, 1, 31, 31)).logits.shape
        torch.Size([1, 2, 121])
    """
    body = plankton_classifier(size, **options)  # type: ignore[arg-type]
    if network == "CNN":
        return STN(body)
    where = named_placement(network, iterations=iterations, test_iterations=test_iterations)
    localizers = [linear_localizer(shape, (64, 64)) for shape in _shapes(body, (1, size, size), where.depths)]
    return STN(body, localizers, Affine(scale="linear"), Point(), where, padding="border")


def _shapes(body: nn.Sequential, shape: Sequence[int], depths: Sequence[int]) -> list[tuple[int, ...]]:
    """The shape of one input's features at each depth."""
    mode = body.training
    body.eval()
    x, found = torch.zeros(1, *shape), []
    with torch.no_grad():
        for depth in range(max(depths) + 1):
            if depth in depths:
                found.append(tuple(x.shape[1:]))
            x = body[depth](x) if depth < max(depths) else x
    body.train(mode)
    return found
