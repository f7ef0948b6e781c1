"""A transformer that passes pictures on, and its training on pairs: moved pictures in, pictures as they were out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from pstn import nets
from pstn.families.base import Family
from pstn.posterior import Posterior
from pstn.stn import STN


def front(
    shape: Sequence[int], family: Family, posterior: Posterior | None = None, *, localizer: nn.Module | None = None,
    **options: Any,
) -> STN:  # fmt: skip
    """A transformer for the front of an autoencoder: an ``STN`` whose body is the identity.

    Arguments:
        shape: One picture's shape, (C, H, W).
        family: The family of transformations; one that has an inverse.
        posterior: ``Point()`` by default.
        localizer: Reads the picture; a small convolutional one by default.
        options: As for ``STN``: ``fill``, ``padding``, ``placement``, ...

    Example:
        >>> import torch
        >>> from pstn import Similarity
        >>> front((1, 28, 28), Similarity())(torch.rand(5, 1, 28, 28)).warped.shape
        torch.Size([1, 5, 1, 28, 28])
    """
    localizer = nets.localizer(shape, channels=(8, 16), hidden=32) if localizer is None else localizer
    return STN(nn.Identity(), localizer, family, posterior, **options)


class Paired(nn.Module):
    """A transformer learning from pairs: inputs hold moved pictures and, as more channels, what they were.

    Arguments:
        front: The transformer, of :func:`front`.

    Example:
        >>> import torch
        >>> from pstn import Similarity
        >>> model = Paired(front((1, 28, 28), Similarity()))
        >>> warped, true = model(torch.rand(5, 2, 28, 28))
        >>> paired_error((warped, true)).shape
        torch.Size([])
    """

    def __init__(self, front: STN) -> None:
        super().__init__()
        self.front = front

    @property
    def transformers(self) -> nn.ModuleList:
        """The transformers, which may learn at a rate of their own."""
        return self.front.transformers

    def forward(
        self, x: Float[Tensor, "b two_c h w"], samples: int = 1
    ) -> tuple[Float[Tensor, "s b c h w"], Float[Tensor, "b c h w"]]:
        """The warped pictures, and what they should be."""
        if x.shape[1] % 2:
            raise ValueError(
                f"pairs have shape {tuple(x.shape)}; expected (B, 2 C, H, W), each with its twin behind it"
            )
        moved, true = x.chunk(2, dim=1)
        return self.front(moved, samples=samples).warped, true


def paired_error(
    out: tuple[Float[Tensor, "s b c h w"], Float[Tensor, "b c h w"]], y: Tensor | None = None
) -> Float[Tensor, ""]:
    """The squared error a pixel between warped pictures and their twins."""
    warped, true = out
    return (warped - true).square().mean()
