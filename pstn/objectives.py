"""What is minimised: the evidence lower bound, its importance-weighted cousin, and the log-likelihood, all negated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from pstn.grid import check_choice

if TYPE_CHECKING:
    from pstn.stn import Output

KLPer = Literal["dimension", "input"]
Bound = Literal["elbo", "iw"]


def elbo(
    out: Output,
    y: Integer[Tensor, " b *heads"],
    kl_weight: float = 1.0,
    kl_per: KLPer = "dimension",
    bound: Bound = "elbo",
    *,
    class_weight: Float[Tensor, " k"] | None = None,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    r"""The negative evidence lower bound, averaged over the batch:

    .. math:: -\frac1S \sum_s \log p(y|x, \theta_s) + w\,KL(q(\theta|x) \| p(\theta)).

    Training averages *log*-likelihoods over the samples; prediction averages likelihoods (:func:`nll`).
    ``bound="iw"`` is the importance-weighted bound, with marginal densities and the weight w as an exponent:

    .. math:: -\log \frac1S \sum_s p(y|x, \theta_s) \left(\frac{p(\theta_s)}{q(\theta_s|x)}\right)^w.

    For w = 1 it is the tighter the larger S. A point mass has no densities, and for it both are :func:`nll`.

    References:
        Probabilistic Spatial Transformer Networks (Schwöbel et al., 2022), equation 17.
        Importance Weighted Autoencoders (Burda et al., 2016).

    Arguments:
        out: What the model returned: logits (S, B, K), or (S, B, heads, K) for several labels an input.
        y: Labels, (B,) or (B, heads); those of one input are independent given θ, so their log-likelihoods add.
        kl_weight: The weight w, the papers' KL weight.
        kl_per: ``"dimension"`` divides the KL of an input by the number of parameters of all looks (the 2022 paper's
            code averages so); ``"input"`` takes it whole (2020).
        bound: ``"elbo"`` or ``"iw"``.
        class_weight: A factor for the log-likelihood of each class, (K,).
        label_smoothing: How much of each label is spread over all classes.

    Returns:
        A scalar to minimise.

    Example:
        >>> from pstn.stn import Output
        >>> elbo(Output(torch.zeros(2, 3, 10)), torch.tensor([0, 5, 9]))  # log 10
        tensor(2.3026)
    """
    check_choice("kl_per", kl_per, get_args(KLPer))
    check_choice("bound", bound, get_args(Bound))
    likelihood = log_likelihood(out.logits, y, class_weight=class_weight, label_smoothing=label_smoothing)
    if kl_per == "dimension" and out.stages:
        kl_weight = kl_weight / sum(stage.posterior.event_shape[0] for stage in out.stages)
    if bound == "elbo":
        return (kl_weight * out.kl - likelihood.mean(0)).mean()
    for stage in out.stages:
        if stage.prior is not None:
            ratio = stage.prior.log_prob(stage.theta) - stage.posterior.log_prob(stage.theta)
            likelihood = likelihood + kl_weight * ratio
    return -log_mean_exp(likelihood).mean()


def nll(out: Output, y: Integer[Tensor, " b *heads"]) -> Float[Tensor, ""]:
    r"""The negative log-likelihood of the averaged prediction: :math:`-\log \frac1S \sum_s p(y|x, \theta_s)`.

    Arguments:
        out: What the model returned: logits (S, B, K) or (S, B, heads, K).
        y: Labels, (B,) or (B, heads).

    Returns:
        The mean over the batch, a scalar.

    Example:
        >>> from pstn.stn import Output
        >>> logits = torch.tensor([[[0.0, 100.0]], [[100.0, 0.0]]])  # two samples, each sure of another class
        >>> nll(Output(logits), torch.tensor([0]))  # log 2
        tensor(0.6931)
    """
    return -log_mean_exp(log_likelihood(out.logits, y)).mean()


def log_likelihood(
    logits: Float[Tensor, "s b *k"],
    y: Integer[Tensor, " b *heads"],
    *,
    class_weight: Float[Tensor, " k"] | None = None,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "s b"]:
    r""":math:`\log p(y|x, \theta_s)` for every sample and input, (S, B), in float32 at least.

    Arguments:
        logits: (S, B, K), or (S, B, heads, K) for several labels an input.
        y: Labels, (B,) or (B, heads).
        class_weight: A factor for each class, (K,).
        label_smoothing: How much of each label is spread over all classes.

    Example:
        >>> log_likelihood(torch.zeros(1, 2, 4), torch.tensor([0, 3]))
        tensor([[-1.3863, -1.3863]])
    """
    if logits.ndim < 3 or y.shape != logits.shape[1:-1]:
        wanted = tuple(logits.shape[1:-1]) or "(B,)"
        raise ValueError(
            f"labels have shape {tuple(y.shape)}; logits {tuple(logits.shape)} = (S, B, *, K) need {wanted}"
        )
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"labels are {y.dtype}; expected integers 0 ... K - 1, e.g. y.long()")
    classes = logits.shape[-1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    try:
        loss = F.cross_entropy(
            logits.reshape(-1, classes),
            y.long().expand(logits.shape[:-1]).reshape(-1),
            weight=None if class_weight is None else class_weight.to(logits),
            label_smoothing=label_smoothing,
            reduction="none",
            ignore_index=-(2**63),  # nothing is ignored: -100 is as wrong a label as any other negative
        )
    except IndexError as error:
        raise ValueError(
            f"labels go from {int(y.min())} to {int(y.max())}; logits of {classes} classes need 0 ... {classes - 1}"
        ) from error
    return -loss.view(logits.shape[:-1]).flatten(2).sum(-1) if logits.ndim > 3 else -loss.view(logits.shape[:-1])


def log_mean_exp(x: Float[Tensor, " s *b"]) -> Float[Tensor, "*b"]:
    r""":math:`\log \frac1S \sum_s e^{x_s}` over the first axis.

    Example:
        >>> log_mean_exp(torch.tensor([0.5, 0.25]).log()).exp()
        tensor(0.3750)
    """
    return x.logsumexp(0) - math.log(x.shape[0])


@dataclass(frozen=True)
class KLWeight:
    """A weight for the KL that grows linearly from nothing to its value, and stays.

    Arguments:
        value: The weight in the end.
        warmup: How many steps it takes to get there; 0 for a constant.

    Example:
        >>> weight = KLWeight(3e-4, warmup=10)
        >>> weight(0), weight(4), weight(10), weight(1000)
        (0.0, 0.00012, 0.0003, 0.0003)
    """

    value: float = 1.0
    warmup: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.value < math.inf:
            raise ValueError(f"the KL weight is {self.value}; expected zero or a positive number")
        if self.warmup < 0:
            raise ValueError(f"warmup is {self.warmup} steps; expected 0 or more")

    def __call__(self, step: int) -> float:
        """The weight at a step, counted from 0."""
        return self.value if step >= self.warmup else self.value * step / self.warmup
