"""Encoders and decoders of pictures: each layer halves or doubles the picture, sizes are found from its shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn


def encoder(shape: Sequence[int], numbers: int, hidden: Sequence[int] = (16, 32, 64)) -> nn.Sequential:
    """Strided 3×3 convolutions, each followed by a leaky ReLU, then one linear layer: pictures to vectors.

    Arguments:
        shape: One picture's shape, (C, H, W), of any size.
        numbers: How many numbers come out.
        hidden: Channels of each hidden layer; each halves the picture, rounding up.

    Example:
        >>> import torch
        >>> encoder((3, 19, 30), 10)(torch.rand(2, 3, 19, 30)).shape
        torch.Size([2, 10])
    """
    check(shape, hidden)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise([shape[0], *hidden]):
        layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.LeakyReLU()]
    last = sizes(shape, len(hidden))[-1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(hidden[-1] * math.prod(last), numbers))


def decoder(shape: Sequence[int], numbers: int, hidden: Sequence[int] = (16, 32, 64)) -> nn.Sequential:
    """One linear layer, then the encoder's layers backwards, each a 3×3 convolution whose channels become pixels.

    A convolution that gives four times the channels at the coarse size, rearranged as twice the height and width, is a
    transposed convolution written as a plain one, which fleets are fast at.

    Arguments:
        shape: One picture's shape, (C, H, W), of any size.
        numbers: How many numbers come in.
        hidden: Channels as the encoder has them.

    Example:
        >>> import torch
        >>> decoder((3, 19, 30), 10)(torch.rand(2, 10)).shape
        torch.Size([2, 3, 19, 30])
    """
    check(shape, hidden)
    ladder = sizes(shape, len(hidden))[::-1]
    layers: list[nn.Module] = [
        nn.Linear(numbers, hidden[-1] * math.prod(ladder[0])),
        nn.Unflatten(1, (hidden[-1], *ladder[0])),
        nn.LeakyReLU(),
    ]
    for (a, b), size in zip(itertools.pairwise([*hidden[::-1], shape[0]]), ladder[1:], strict=True):
        layers += [nn.Conv2d(a, 4 * b, 3, padding=1), Grow(size), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


class Grow(nn.Module):
    """Four channels to one of twice the height and width, cut to a size.

    Arguments:
        size: The height and width in the end.
    """

    def __init__(self, size: Sequence[int]) -> None:
        super().__init__()
        self.size = tuple(size)

    def forward(self, x: Float[Tensor, "b four_c h w"]) -> Float[Tensor, "b c h2 w2"]:
        """The picture, (B, C, *size)."""
        height, width = self.size
        return nn.functional.pixel_shuffle(x, 2)[..., :height, :width]

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"size={self.size}"


def sizes(shape: Sequence[int], layers: int) -> list[tuple[int, int]]:
    """The heights and widths of a picture before the first layer and behind each.

    Example:
        >>> sizes((1, 28, 28), 3)
        [(28, 28), (14, 14), (7, 7), (4, 4)]
    """
    found = [(int(shape[1]), int(shape[2]))]
    for _ in range(layers):
        found.append(tuple(-(-n // 2) for n in found[-1]))  # type: ignore[arg-type]
    return found


def check(shape: Sequence[int], hidden: Sequence[int]) -> None:
    """Raise unless the shape is a picture's and there are hidden layers."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape is {tuple(shape)}; expected one picture's (C, H, W), e.g. (1, 28, 28)")
    if not hidden or min(hidden) < 1:
        raise ValueError(f"hidden is {tuple(hidden)}; expected the channels of at least one layer")
