"""The residual network of 18 layers, whole for photographs or narrow for small images."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pstn.nets.pooled import Mean

Weights = Literal["torchvision"] | str | os.PathLike[str] | Mapping[str, Tensor]


class Block(nn.Module):
    """Two 3×3 convolutions around which the input goes straight, halved where they halve it."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride > 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's answer."""
        straight = x if self.downsample is None else self.downsample(x)
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + straight).relu()


class ResNet(nn.Module):
    """See :func:`resnet18`. The names of the parameters are torchvision's, so that its weights fit."""

    def __init__(self, classes: int | None, channels: int, width: int, small: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for n, (before, after) in enumerate(itertools.pairwise(widths), start=1):
            stride = 1 if n == 1 else 2
            self.add_module(f"layer{n}", nn.Sequential(Block(before, after, stride), Block(after, after, 1)))
        self.mean = Mean()
        self.fc: nn.Module = nn.Identity() if classes is None else nn.Linear(8 * width, classes)
        self.out_features = 8 * width if classes is None else classes
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """The logits, (B, K), or the features, (B, 8 · width)."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for n in range(1, 5):
            x = self.get_submodule(f"layer{n}")(x)
        return self.fc(self.mean(x))


def resnet18(
    classes: int | None = None,
    *,
    channels: int = 3,
    width: int = 64,
    small: bool = False,
    weights: Weights | None = None,
) -> ResNet:
    """ResNet-18 as a classifier, or without its last layer as a localizer with 512 features.

    Arguments:
        classes: How many classes; None for the features.
        channels: The input's channels.
        width: Filters of the first layers; the last have eight times as many.
        small: For images of about 32 to 64 pixels: a first convolution of 3×3, and neither it nor a pooling shrinks.
        weights: Trained weights of all but the last layer: ``"torchvision"`` for those of ImageNet, which needs
            torchvision and may download them; a file of weights that torch saved, such as torchvision's; or the tensors
            by name.

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016

    Example:
        >>> sum(p.numel() for p in resnet18(1000).parameters())
        11689512
        >>> resnet18(width=16, small=True).out_features
        128
    """
    model = ResNet(classes, channels, width, small)
    if weights is not None:
        state = {name: value for name, value in _read(weights).items() if not name.startswith("fc.")}
        own = {name: value.shape for name, value in model.state_dict().items() if not name.startswith("fc.")}
        wrong = sorted(n for n in own.keys() | state.keys() if n not in state or own.get(n) != state[n].shape)
        if wrong:
            raise ValueError(
                f"the weights do not fit: {len(wrong)} of {len(own)} tensors are missing, unknown or of another shape, "
                f"the first is {wrong[0]!r}; expected those of a ResNet-18 of {channels} channels and width {width}"
            )
        model.load_state_dict(state, strict=False)
    return model


def _read(weights: Weights) -> Mapping[str, Tensor]:
    if isinstance(weights, Mapping):
        return weights
    if weights != "torchvision":
        return torch.load(weights, map_location="cpu", weights_only=True)
    try:
        models: Any = import_module("torchvision.models")
    except ImportError as error:
        raise ImportError("weights='torchvision' needs torchvision: pip install torchvision") from error
    return models.ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False)
