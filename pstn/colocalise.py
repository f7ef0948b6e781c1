"""Co-localisation: finding what pictures have in common, from nothing but the pictures, by a triplet loss."""

from __future__ import annotations

import math
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

    def everywhere(self, x: Float[Tensor, "b c h w"], size: int, step: int) -> list[Float[Tensor, "b p _"]]:
        """What each layer says of all windows of a side, row by row: the same as of each window cut out, not scaled.

        Convolutions and poolings go over the whole picture once. They must not pad, and their strides together must
        divide the step; what comes behind ``nn.Flatten`` is one linear layer.

        Arguments:
            x: Pictures.
            size: The side of a window.
            step: Pixels from one window to the next.

        Example:
            >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.Flatten(), nn.Linear(2 * 36, 4)))
            >>> [said.shape for said in Layers(network).everywhere(torch.rand(5, 1, 16, 12), 8, 2)]
            [torch.Size([5, 15, 72]), torch.Size([5, 15, 4])]
        """
        said, side, stride = [], size, 1
        for layer in self.network:
            leaves = [module for module in layer.modules() if next(module.children(), None) is None]
            if isinstance(leaves[0], nn.Flatten):
                linear = leaves[1]
                if len(leaves) != 2 or not isinstance(linear, nn.Linear):
                    raise TypeError(f"behind nn.Flatten stands {leaves[1:]}; expected one nn.Linear")
                weight = linear.weight.unflatten(1, (x.shape[1], side, side))
                x, side = nn.functional.conv2d(x, weight, linear.bias), 1
            else:
                side, stride = _through(leaves, side, stride)
                x = layer(x)
            if step % stride:
                raise ValueError(f"windows are {step} pixels apart; expected a multiple of the network's {stride}")
            windows = x.unfold(2, side, step // stride).unfold(3, side, step // stride)
            said.append(windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        return said

    def train(self, mode: bool = True) -> Layers:
        """A frozen network stays in evaluation."""
        super().train(False)
        return self


@dataclass
class Found:
    """What a :class:`Colocaliser` returns."""

    theta: Float[Tensor, "b 3"]
    """The windows: scale less one, and centre; the most probable ones of a posterior."""
    crops: Float[Tensor, "b c n n"]
    """What is in them."""
    hinge: Float[Tensor, " b"]
    """The loss of each picture as an anchor."""
    kl: Float[Tensor, " b"] | None = None
    """The divergence of a posterior over windows from all being as probable; None where there is no posterior."""


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


class Places(nn.Module):
    r"""A posterior over windows that looks for what the pictures of a batch have in common.

    The windows of one size are finitely many, :math:`q(p|x)` is a softmax of what a small convolutional localizer
    answers at each, and the loss is the *expected* hinge over all windows of the anchor: no gradient has to find its
    way through a crop to an object that the crop does not show. The localizer is the same everywhere, so it learns from
    a hundred pictures. The other pictures' windows are drawn from their posteriors.

    Each layer's descriptions are scaled together, so that all layers count alike and those windows that say most have
    length 1. If each had that length, windows that show only what is alike in all objects would have the least loss.

    The random crops do not overlap the anchor much, and the one that is most like it counts. A window without anything
    in it looks the same in all pictures, too, and has less loss than one with an object where the objects of a class
    differ; but it has its like elsewhere in the same picture, which an object has not.

    Train with :class:`Expected`, on batches of at least two pictures.

    Arguments:
        encoder: Says what is in a window, and in all of a picture's at once; frozen.
        shape: One picture's shape, (C, H, W), as high as wide.
        size: The side of a window, in pixels.
        step: Pixels from one window to the next.
        margin: The margin α.
        channels: Filters of the localizer's two convolutions.
        others: Windows of other pictures, and random crops, that each picture is compared with in a step.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015, for the task and the hinge

    Example:
        >>> layers = nn.Sequential(nn.Conv2d(1, 2, 9), nn.Sequential(nn.Flatten(), nn.Linear(800, 3)))
        >>> out = Places(Layers(layers))(torch.rand(6, 1, 84, 84))
        >>> out.theta.shape, out.crops.shape, out.hinge.shape, out.kl.shape
        (torch.Size([6, 3]), torch.Size([6, 1, 28, 28]), torch.Size([6]), torch.Size([6]))
    """

    windows: Tensor
    apart: Tensor

    def __init__(
        self,
        encoder: Layers,
        shape: Sequence[int] = (1, 84, 84),
        *,
        size: int = 28,
        step: int = 4,
        margin: float = 1.0,
        channels: int = 16,
        others: int = 16,
    ) -> None:
        super().__init__()
        first = 9
        if len(set(shape[1:])) > 1:
            raise ValueError(
                f"pictures have shape {tuple(shape)}; expected square ones, since a window has its picture's "
                "proportions: pad them to a square first"
            )
        if any((side - size) % step for side in shape[1:]) or size < first:
            raise ValueError(
                f"windows of {size} pixels, {step} apart, in pictures of shape {tuple(shape)}; expected a size of at "
                f"least {first}, and steps that lead from one edge to the other"
            )
        self.size, self.step, self.margin, self.others = size, step, margin, others
        last = nn.Conv2d(channels, 1, 1)
        nn.init.zeros_(last.weight)  # all windows as probable to begin with
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        self.localizer = nn.Sequential(
            *(nn.Conv2d(shape[0], channels, first, step), nn.ReLU()),
            *(nn.Conv2d(channels, channels, (size - first) // step + 1), nn.ReLU()),
            *(last, nn.Flatten()),
        )
        self.encoder, self.family = encoder, Crop(scale="linear")
        rows, columns = (torch.arange(0, side - size + 1, step) for side in shape[1:])
        corner = torch.cartesian_prod(rows, columns).flip(1)
        side = torch.tensor([shape[2], shape[1]])
        centre = (2 * corner + size) / side - 1
        scale = torch.full((len(corner), 1), size / shape[2] - 1)
        self.register_buffer("windows", torch.cat([scale, centre], dim=1), persistent=False)
        near = (corner[:, None] - corner[None]).abs()
        self.register_buffer("apart", (near >= size / 2).any(-1), persistent=False)

    def forward(self, x: Float[Tensor, "b c h w"], samples: int = 1) -> Found:
        """Look at a batch of pictures that have something in common."""
        if len(x) < 2:
            raise ValueError(f"a batch of {len(x)} has nothing in common; at least two pictures are needed")
        log_q = self.localizer(x).log_softmax(-1)
        q = log_q.exp()
        with torch.no_grad():
            hinge = self._hinges(x, log_q)
            theta = self.windows[q.argmax(-1)]
            crops = warp(x, self.family, theta, size=(self.size, self.size))
        kl = (q * log_q).sum(-1) + math.log(len(self.windows))
        return Found(theta, crops, (q * hinge).sum(-1), kl)

    def _hinges(self, x: Tensor, log_q: Tensor) -> Tensor:
        """The hinge of each window (B, P), had it been found."""
        count, places, several = *log_q.shape, self.others
        # All windows by the same length: one that cuts an object says less than one that shows it whole.
        said = [
            layer / layer.norm(dim=-1).amax(1).mean().clamp_min(1e-6)
            for layer in self.encoder.everywhere(x, self.size, self.step)
        ]
        features = torch.cat(said, dim=-1) / math.sqrt(len(said))
        each = torch.arange(count, device=x.device)[:, None]
        further, random, gumbel = torch.rand(several + count * several * (1 + places), device=x.device).split(
            [several, count * several, count * several * places]
        )
        other = (each + 1 + _whole(further, count - 1)) % count
        gumbel = -(-gumbel.clamp(1e-7, 1 - 1e-7).log()).log().reshape(count, several, places)
        drawn = (log_q[:, None] + gumbel).argmax(-1)[other, torch.arange(several, device=x.device)]
        elsewhere = _whole(random, places).reshape(count, several)
        near = _squared(features, features[other, drawn])
        # An overlapping crop is nothing else: it is as far as can be.
        far = torch.where(self.apart[elsewhere].mT, _squared(features, features[each, elsewhere]), torch.inf)
        far = far.amin(-1, keepdim=True)
        far = torch.where(far.isinf(), near, far)  # none of the crops is elsewhere: nothing is said but the margin
        return (near - far + self.margin).clamp_min(0).mean(-1)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"size={self.size}, step={self.step}, margin={self.margin}, others={self.others}"


def found_loss(out: Found, y: Tensor | None = None) -> Float[Tensor, ""]:
    """The mean hinge of a batch: the loss to train a :class:`Colocaliser` with; labels are not looked at."""
    return out.hinge.mean()


@dataclass(frozen=True)
class Expected:
    r"""The mean of :math:`\mathbb{E}_q[h] + w\, KL(q \| \text{uniform})`, h the hinge, for :class:`Places`.

    Arguments:
        kl_weight: The weight w. It keeps the posterior from deciding before the pictures agree.
    """

    kl_weight: float = 0.02

    def __call__(self, out: Found, y: Tensor | None = None) -> Float[Tensor, ""]:
        """The loss; labels are not looked at."""
        assert out.kl is not None
        return (out.hinge + self.kl_weight * out.kl).mean()


def _through(leaves: Sequence[nn.Module], side: int, stride: int) -> tuple[int, int]:
    """The side of a window and the distance of neighbours behind some layers."""
    for leaf in leaves:
        if isinstance(leaf, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            kernel, hop, pad = (_one(value) for value in (leaf.kernel_size, leaf.stride, leaf.padding))
            if pad or (side - kernel) % hop:
                raise ValueError(f"{leaf} on {side} pixels: a window cut out would end otherwise than in the picture")
            side, stride = (side - kernel) // hop + 1, stride * hop
        elif not isinstance(leaf, nn.ReLU | nn.LeakyReLU | nn.Identity):
            raise TypeError(f"{leaf} may mix windows; expected convolutions, poolings and activations")
    return side, stride


def _one(value: int | str | tuple[int, ...]) -> int:
    """A number that is the same along both axes."""
    values = set(value) if isinstance(value, tuple) else {value}
    (number,) = values if len(values) == 1 else (None,)
    if not isinstance(number, int):
        raise ValueError(f"got {value}; expected the same number along both axes")
    return number


def _squared(a: Float[Tensor, "b p f"], b: Float[Tensor, "b k f"]) -> Float[Tensor, "b p k"]:
    """Squared distances of all from all."""
    return (a.square().sum(-1)[..., None] + b.square().sum(-1)[:, None] - 2 * a @ b.mT).clamp_min(0)


def _whole(uniform: Tensor, count: int) -> Tensor:
    """Numbers from 0 to 1 as 0, 1, ... count - 1."""
    return (uniform * count).floor().clamp(max=count - 1).long()
