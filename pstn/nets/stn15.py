"""The networks of the paper that invented spatial transformers, for distorted digits, sums of two, and birds."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pstn.families import TPS, Affine, Family, Projective, Translation
from pstn.grid import check_choice
from pstn.nets.small import Localizer
from pstn.placement import C
from pstn.posterior import Point, Posterior
from pstn.stn import STN

Distorted = Literal["FCN", "CNN", "ST-FCN", "ST-CNN"]
Summing = Literal["FCN", "CNN", "ST-FCN", "2xST-FCN"]
Kind = Literal["affine", "projective", "tps"]

#: Parameters of all networks of a comparison.
BUDGET = 400_000


def transformation(kind: Kind) -> Family:
    """The paper's families: six, eight or 2 × 16 numbers, all the identity at 0, so that weight decay pulls there.

    Example:
        >>> [transformation(kind).dim for kind in ("affine", "projective", "tps")]
        [6, 8, 32]
    """
    check_choice("kind", kind, get_args(Kind))
    if kind == "affine":
        return Affine(scale="linear")
    return Projective() if kind == "projective" else TPS()


def distorted_fcn(shape: Sequence[int], classes: int = 10, *, units: int = 256, shrink: int = 1) -> nn.Sequential:
    """Two hidden layers and one for the classes; each child is one layer.

    Arguments:
        shape: One input's shape, (C, H, W).
        classes: How many classes.
        units: Units of each hidden layer.
        shrink: The mean of squares of so many pixels is taken first, behind a transformer.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015

    Example:
        >>> sum(p.numel() for p in distorted_fcn((1, 28, 28), units=256).parameters())
        269322
    """
    first = [nn.AvgPool2d(shrink)] if shrink > 1 else []
    flat = shape[0] * (shape[1] // shrink) * (shape[2] // shrink)
    return nn.Sequential(
        nn.Sequential(*first, nn.Flatten(), nn.Linear(flat, units), nn.ReLU()),
        nn.Sequential(nn.Linear(units, units), nn.ReLU()),
        nn.Linear(units, classes),
    )


def distorted_cnn(shape: Sequence[int], classes: int = 10, *, filters: int = 64, shrink: int = 1) -> nn.Sequential:
    """Convolutions of 9×9 and 7×7, each with max-pooling by two, and one layer for the classes.

    Of the paper's RTS behind a transformer, 42 pixels pooled to 21, pooling would leave 13 // 2 = 6, too few for the
    second convolution: for inputs of that size, pooling rounds up.

    Arguments:
        shape: One input's shape, (C, H, W).
        classes: How many classes.
        filters: Filters of each convolution.
        shrink: The mean of squares of so many pixels is taken first, behind a transformer.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015

    Example:
        >>> sum(p.numel() for p in distorted_cnn((1, 28, 28), filters=64).parameters())
        208586
    """
    first = [nn.AvgPool2d(shrink)] if shrink > 1 else []
    up = min(shape[1:]) // shrink == 21
    height, width = (((n // shrink - 8 + up) // 2 - 6 + up) // 2 for n in shape[1:])
    if min(height, width) < 1:
        raise ValueError(f"inputs of shape {tuple(shape)} are too small for convolutions of 9×9 and 7×7")
    return nn.Sequential(
        nn.Sequential(*first, nn.Conv2d(shape[0], filters, 9), nn.MaxPool2d(2, ceil_mode=up), nn.ReLU()),
        nn.Sequential(nn.Conv2d(filters, filters, 7), nn.MaxPool2d(2, ceil_mode=up), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(filters * height * width, classes)),
    )


def linear_localizer(shape: Sequence[int], widths: Sequence[int] = (32, 32, 32)) -> Localizer:
    """Linear layers with ReLU: STN'15's in front of fully connected networks, and the placement paper's of R.

    Example:
        >>> sum(p.numel() for p in linear_localizer((1, 28, 28)).parameters())
        27232
    """
    flat = torch.Size(shape).numel()
    pairs = itertools.pairwise([flat, *widths])
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
    return Localizer(nn.Flatten(), *layers, out_features=widths[-1])


def convolutional_localizer(
    shape: Sequence[int],
    filters: int = 20,
    units: int = 20,
    *,
    shrink: int = 1,
    pool_last: bool = True,
    last_bias: bool = True,
) -> Localizer:
    """Two convolutions of 5×5 with max-pooling by two, and a linear layer, all with ReLU.

    Arguments:
        shape: What it reads: one input's shape, or one feature map's.
        filters: Filters of each convolution.
        units: Units of the linear layer.
        shrink: The mean of squares of so many pixels is taken first; STN'15 has 2.
        pool_last: Whether the second convolution is pooled, too; in STN'15 it is not.
        last_bias: Whether the second convolution has a bias.

    Example:
        >>> convolutional_localizer((1, 60, 60), shrink=2, pool_last=False)[-2].in_features
        1620
    """
    first = [nn.AvgPool2d(shrink)] if shrink > 1 else []
    sides = [((n // shrink - 4) // 2 - 4) // (2 if pool_last else 1) for n in shape[1:]]
    if min(sides) < 1:
        raise ValueError(f"what has shape {tuple(shape)} is too small for two convolutions of 5×5")
    last = [nn.MaxPool2d(2)] if pool_last else []
    return Localizer(
        *first,
        *(nn.Conv2d(shape[0], filters, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(filters, filters, 5, bias=last_bias), *last, nn.ReLU(), nn.Flatten()),
        *(nn.Linear(filters * sides[0] * sides[1], units), nn.ReLU()),
        out_features=units,
    )


def distorted(
    network: Distorted,
    shape: Sequence[int] = (1, 28, 28),
    kind: Kind = "affine",
    *,
    classes: int = 10,
    shrink: int | None = None,
    width: int | None = None,
    budget: int = BUDGET,
    posterior: Posterior | None = None,
) -> STN:
    """STN'15's networks for distorted digits: FCN, CNN, and either behind a transformer, about 400k parameters each.

    The paper gives widths as "between" 128 and 256 units or 32 and 64 filters, and 400k parameters; on 28×28 these
    exclude each other (256 units are 269k, 64 filters 209k). The budget decides here: the width is the one that comes
    nearest to it. Outside a picture is black, 0.

    Arguments:
        network: ``"FCN"``, ``"CNN"``, ``"ST-FCN"`` or ``"ST-CNN"``.
        shape: One input's shape.
        kind: The transformer's family: ``"affine"``, ``"projective"`` or ``"tps"``.
        classes: How many classes.
        shrink: By how much what the classifier reads is pooled; by default, 2 behind a transformer on canvases larger
            than 28 (the paper's RTS and TC).
        width: Units or filters of the classifier, instead of the budget.
        budget: How many parameters, in all.
        posterior: What is known of the transformation; a point by default, as in the paper.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015

    Example:
        >>> sum(p.numel() for p in distorted("ST-CNN", kind="tps").parameters())
        401922
    """
    check_choice("network", network, get_args(Distorted))
    transforms, convolves = network.startswith("ST"), network.endswith("CNN")
    if shrink is None:
        shrink = 2 if transforms and max(shape[1:]) > 28 else 1
    localizer: Localizer | None = None
    if transforms:
        found = convolutional_localizer(shape, shrink=2, pool_last=False) if convolves else linear_localizer(shape)
        localizer = found
    family = transformation(kind) if transforms else None

    def build(width: int) -> STN:
        if convolves:
            body = distorted_cnn(shape, classes, filters=width, shrink=shrink)
        else:
            body = distorted_fcn(shape, classes, units=width, shrink=shrink)
        return STN(body, localizer, family, posterior)

    return build(width) if width is not None else nearest(build, budget)


def summing(
    network: Summing,
    kind: Kind = "affine",
    shape: Sequence[int] = (2, 42, 42),
    *,
    classes: int = 19,
    shrink: int | None = None,
    apart: bool = False,
    width: int | None = None,
    budget: int = BUDGET,
) -> STN:
    """STN'15's networks for the sum of two digits in two channels; ``"2xST-FCN"`` has two transformers side by side.

    Each of the two has a localizer of its own that reads both channels, and warps both: four channels go on. One linear
    layer reads the features of both localizers. As on RTS, what comes out of a transformer is pooled by two.

    Arguments:
        network: ``"FCN"``, ``"CNN"``, ``"ST-FCN"`` or ``"2xST-FCN"``.
        kind: The transformers' family.
        shape: One input's shape.
        classes: How many classes.
        shrink: By how much what the classifier reads is pooled; 2 behind a transformer by default.
        apart: Whether each of two localizers reads a channel of its own instead of both.
        width: Units or filters of the classifier, instead of the budget.
        budget: How many parameters, in all.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015

    Example:
        >>> summing("2xST-FCN", "tps")(torch.rand(3, 2, 42, 42)).theta.shape
        torch.Size([1, 3, 2, 32])
    """
    check_choice("network", network, get_args(Summing))
    if shrink is None:
        shrink = 2 if "ST" in network else 1
    if network != "2xST-FCN":
        return distorted(network, shape, kind, classes=classes, shrink=shrink, width=width, budget=budget)
    seen = (shape[0] // 2, *shape[1:]) if apart else shape
    looks = Beside(linear_localizer(seen), linear_localizer(seen), apart=apart)

    def build(width: int) -> STN:
        body = distorted_fcn((2 * shape[0], *shape[1:]), classes, units=width, shrink=shrink)
        return STN(body, looks, transformation(kind), Point(), C(0, parallel=2))

    return build(width) if width is not None else nearest(build, budget)


class Beside(nn.Module):
    """Several localizers, their features side by side.

    Arguments:
        localizers: The localizers.
        apart: Whether each reads an equal share of the channels instead of all.

    Example:
        >>> Beside(linear_localizer((1, 4, 4)), linear_localizer((1, 4, 4), (5,))).out_features
        37
    """

    def __init__(self, *localizers: Localizer, apart: bool = False) -> None:
        super().__init__()
        self.each = nn.ModuleList(localizers)
        self.apart = apart
        self.out_features = sum(localizer.out_features for localizer in localizers)

    def forward(self, x: Tensor) -> Tensor:
        """The features, (N, F)."""
        parts = x.chunk(len(self.each), dim=1) if self.apart else [x] * len(self.each)
        return torch.cat([localizer(part) for localizer, part in zip(self.each, parts, strict=True)], dim=1)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return "apart" if self.apart else ""


def attended(
    stream: nn.Module,
    trunk: nn.Module,
    channels: int,
    features: int,
    *,
    classes: int = 200,
    parallel: int = 2,
    size: int = 224,
    shrink: int = 1,
    side: int = 7,
) -> STN:
    """STN'15's network for birds: crops of half the image's size, each through a network of its own, classified
    together.

    One localizer says where all crops are: a trunk of convolutions, a 1×1 convolution to 128 channels and a linear
    layer of 128 units. The crops start as tiles of the image; only their places are learned.

    Arguments:
        stream: What describes a crop, (B, 3, size, size) to (B, features); copied for each crop, weights included.
        trunk: What the localizer begins with, to (B, channels, side, side): a network without its last pooling.
        channels: The trunk's channels; Inception's are 1,024.
        features: The stream's features; Inception's are 1,024.
        classes: How many classes.
        parallel: How many crops, 2 or 4 in the paper.
        size: The side of a crop, in pixels.
        shrink: By how much the image is made smaller for the localizer: 2 where it has twice the crops' size (448).
        side: The side of the trunk's result.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015, Figure 2

    Example:
        >>> small = lambda: nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU())
        >>> model = attended(nn.Sequential(small(), nn.Flatten()), small(), 4, 4 * 64, classes=5, size=32, side=8)
        >>> model(torch.rand(2, 3, 32, 32)).logits.shape
        torch.Size([1, 2, 5])
    """
    smaller = [nn.AvgPool2d(shrink)] if shrink > 1 else []
    localizer = Localizer(
        *smaller,
        trunk,
        *(nn.Conv2d(channels, 128, 1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(128 * side * side, 128), nn.ReLU()),
        out_features=128,
    )
    placement = C(0, parallel=parallel, merge="branches", tile=0.5)
    body = nn.Linear(parallel * features, classes)
    streams = [stream, *(copy.deepcopy(stream) for _ in range(parallel - 1))]
    return STN(body, localizer, Translation(), Point(), placement, branch=streams, size=(size, size))


def nearest(build: Callable[[int], STN], budget: int) -> STN:
    """The network of the width whose number of parameters comes nearest to a budget; more width is more of them."""
    generator = torch.get_rng_state()  # networks that are only counted leave no trace

    def size(width: int) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in build(width).body.parameters())

    rest = budget - sum(p.numel() for p in build(1).transformers.parameters())
    low, high = 1, 2
    while size(high) < rest:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < rest else (low, middle)
    torch.set_rng_state(generator)
    return build(low if rest - size(low) <= size(high) - rest else high)
