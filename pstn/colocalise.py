"""Co-localisation: finding what pictures have in common, from nothing but the pictures, by a triplet loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pstn.families import Crop
from pstn.nets.small import Localizer
from pstn.posterior import Point
from pstn.stn import STN
from pstn.warp import warp


def triplet_hinge(
    anchor: Float[Tensor, "*b f"], other: Float[Tensor, "*b f"], random: Float[Tensor, "*b f"], margin: float = 1.0
) -> Float[Tensor, "*b"]:
    r"""The hinge :math:`\max(0, \|a - o\|^2 - \|a - r\|^2 + \alpha)` of each triplet.

    It is zero where the anchor is nearer to the other's features than to a random crop's, by the margin.

    Arguments:
        anchor: Features of what was found in a picture.
        other: Features of what was found in another.
        random: Features of a random crop of the anchor's picture.
        margin: The margin α; the paper's is 1.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015, equation 1

    Example:
        >>> a, o, r = torch.tensor([[0.0]]), torch.tensor([[1.0]]), torch.tensor([[3.0]])
        >>> triplet_hinge(a, o, r), triplet_hinge(a, r, o)
        (tensor([0.]), tensor([9.]))
    """
    near, far = ((anchor - features).square().sum(-1) for features in (other, random))
    return (near - far + margin).clamp_min(0)


class Layers(nn.Module):
    """What all layers of a trained network say, side by side: its activations as a description of a picture.

    The network is frozen. Of STN'15's CNN these are two hidden layers and the classes' logits.

    A margin of 1 asks for descriptions of about that length. With those of a CNN as they are, tens of units apart, all
    crops showing nothing have less loss than all showing their digit; at unit length it is the other way round. The
    paper does not say which it takes.

    Arguments:
        network: Layers one after the other, such as the body of :func:`pstn.nets.distorted_cnn`.
        unit: Whether descriptions are scaled to length 1.

    Example:
        >>> Layers(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2)))(torch.rand(5, 1, 2, 2)).shape
        torch.Size([5, 9])
    """

    def __init__(self, network: nn.Sequential, unit: bool = True) -> None:
        super().__init__()
        self.network, self.unit = network.requires_grad_(False), unit

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b f"]:
        """The features, (B, F)."""
        said = []
        for layer in self.network:
            x = layer(x)
            said.append(x.flatten(1))
        features = torch.cat(said, dim=1)
        return nn.functional.normalize(features, dim=1) if self.unit else features

    def train(self, mode: bool = True) -> Layers:
        """A frozen network stays in evaluation."""
        super().train(False)
        return self


@dataclass
class Found:
    """What a :class:`Colocaliser` returns."""

    theta: Float[Tensor, "b 3"]
    """The windows: scale less one, and centre."""
    crops: Float[Tensor, "b c n n"]
    """What is in them."""
    hinge: Float[Tensor, " b"]
    """The loss of each picture as an anchor."""


class Colocaliser(nn.Module):
    r"""A transformer that looks for what the pictures of a batch have in common.

    Each picture is an anchor once; the other picture of its triplet is the same number of places further on for all,
    which is drawn, and the random crop has the size that the object is thought to have, anywhere in the picture.
    Training needs :func:`found_loss`; every batch must have at least two pictures.

    Arguments:
        encoder: Maps crops (B, C, size, size) to features (B, F); frozen, such as :class:`Layers`.
        shape: One picture's shape, (C, H, W).
        size: The side of a crop, in pixels.
        margin: The margin α.
        channels: Filters of the localizer's convolution (9×9, stride 4, pooled by two), and units of its two layers.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015. Its localizer is said to have 100k parameters;
        the layers it lists have 5,947.

    Example:
        >>> encoder = Layers(nn.Sequential(nn.Flatten(), nn.Linear(784, 4)))
        >>> model = Colocaliser(encoder)
        >>> out = model(torch.rand(6, 1, 84, 84))
        >>> out.theta.shape, out.crops.shape, out.hinge.shape
        (torch.Size([6, 3]), torch.Size([6, 1, 28, 28]), torch.Size([6]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        shape: Sequence[int] = (1, 84, 84),
        *,
        size: int = 28,
        margin: float = 1.0,
        channels: int = 8,
    ) -> None:
        super().__init__()
        self.size, self.side, self.margin = size, shape[1], margin
        layers = [nn.Conv2d(shape[0], channels, 9, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        with torch.no_grad():
            flat = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
        hidden = [nn.Linear(flat, channels), nn.ReLU(), nn.Linear(channels, channels), nn.ReLU()]
        localizer = Localizer(*layers, *hidden, out_features=channels)
        self.looks = STN(nn.Identity(), localizer, Crop(scale="linear"), Point(), size=(size, size))
        self.encoder = encoder

    @property
    def transformers(self) -> nn.ModuleList:
        """What is trained; training settings find it by this name."""
        return self.looks.transformers

    def forward(self, x: Float[Tensor, "b c h w"], samples: int = 1) -> Found:
        """Look at a batch of pictures that have something in common."""
        count = len(x)
        if count < 2:
            raise ValueError(f"a batch of {count} has nothing in common; at least two pictures are needed")
        out = self.looks(x)
        assert out.theta is not None
        assert out.warped is not None
        theta, crops = out.theta[0], out.warped[0]
        # One draw for the batch, and a place for each picture.
        further = 1 + (torch.rand(1, device=x.device) * (count - 1)).floor().clamp(max=count - 2).long()
        scale = self.size / self.side
        place = (1 - scale) * (2 * torch.rand(count, 2, device=x.device) - 1)
        window = torch.cat([torch.full_like(place[:, :1], scale - 1), place], dim=1)
        elsewhere = warp(x, self.looks.family, window, size=(self.size, self.size))  # type: ignore[arg-type]
        features, random = self.encoder(crops), self.encoder(elsewhere)
        other = features[(torch.arange(count, device=x.device) + further) % count]
        return Found(theta, crops, triplet_hinge(features, other, random, self.margin))


def found_loss(out: Found, y: Tensor | None = None) -> Float[Tensor, ""]:
    """The mean hinge of a batch: the loss to train a :class:`Colocaliser` with; labels are not looked at."""
    return out.hinge.mean()
