"""What a variational autoencoder returns, and what is minimised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from pstn.stn import Output


@dataclass
class Drawing:
    """Pictures drawn from codes, beside what they were to show."""

    drawn: Float[Tensor, "s b c h w"]
    """The decoder's pictures where they are compared: warped back to the observed pose, or as drawn."""
    target: Float[Tensor, "t b c h w"]
    """What they are compared with: the inputs, or the inputs in canonical pose."""
    canonical: Float[Tensor, "s b c h2 w2"]
    """The decoder's pictures in canonical pose."""
    code: Float[Tensor, "l b f"]
    """The centre of q(z|x), before anything is drawn."""
    z: Float[Tensor, "s b f"]
    """The codes that were decoded."""
    kl: Float[Tensor, " b"]
    """KL(q(z|x) || p(z)) of each input in nats, averaged over the looks."""
    pose: Output | None = None
    """What the transformer in front said; None without one."""

    @cached_property
    def error(self) -> Float[Tensor, " b"]:
        """The squared error a pixel and channel, averaged over the samples."""
        return (self.drawn - self.target).square().mean(dim=(0, 2, 3, 4))

    @property
    def pose_kl(self) -> Float[Tensor, " b"]:
        """KL(q(θ|x) || p(θ)) of each input; zeros for a point mass."""
        return self.kl.new_zeros(self.kl.shape) if self.pose is None else self.pose.kl


@dataclass(frozen=True)
class Bound:
    r"""The negative evidence lower bound of a Gaussian decoder, a pixel, averaged over the batch:

    .. math:: \frac1D \|x - \hat x\|^2 + w\,KL(q(z|x) \| p(z)) + w_\theta\,KL(q(\theta|x) \| p(\theta))
        + g\,\|\bar\theta\|^2.

    The last term, of the mean :math:`\bar\theta` over the batch, is there for transformers that learn together with the
    autoencoder. Which pose is canonical is their own choice: all of them could be turned by the same angle and nothing
    but the corners of the pictures would change. The term chooses the one that leaves pictures where they are on
    average, and does not care how far a single one is moved.

    The unit is that of squared pixels: with normalised pictures, 1 is what a grey picture costs. Called as training
    calls a loss, with the output and labels, which it does not look at.

    References:
        Auto-Encoding Variational Bayes (Kingma & Welling, 2014).

    Arguments:
        kl_weight: The weight w of the code's divergence.
        pose_weight: The weight of the transformation's; ``kl_weight`` by default.
        gauge: The weight g of the mean pose.

    Example:
        >>> import torch
        >>> from pstn.vae import VAE
        >>> x = torch.zeros(2, 1, 8, 8)
        >>> Bound(kl_weight=0.0)(VAE((1, 8, 8))(x)).shape
        torch.Size([])
    """

    kl_weight: float = 1e-3
    pose_weight: float | None = None
    gauge: float = 0.0

    def __post_init__(self) -> None:
        for name in ("kl_weight", "pose_weight", "gauge"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}; expected zero or a positive number")

    def each(self, out: Drawing) -> Float[Tensor, " b"]:
        """The bound of each input, without the gauge."""
        weight = self.kl_weight if self.pose_weight is None else self.pose_weight
        return out.error + self.kl_weight * out.kl + weight * out.pose_kl

    def __call__(self, out: Drawing, y: Tensor | None = None) -> Float[Tensor, ""]:
        """The mean over the batch, a scalar to minimise."""
        loss = self.each(out).mean()
        if self.gauge == 0 or out.pose is None or out.pose.theta is None:
            return loss
        return loss + self.gauge * out.pose.theta.mean(dim=(0, 1)).square().sum()
