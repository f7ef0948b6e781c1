"""Prediction by averaging over transformations: ``predict``, and the two baselines, ``TTA`` and ``Augment``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, kl_divergence
from torch.utils.data import default_collate

from pstn.distributions import Method, draw
from pstn.families.base import Family
from pstn.grid import Mode, Padding
from pstn.labels import Labels
from pstn.modes import evaluating
from pstn.nets.small import Blind
from pstn.objectives import log_mean_exp
from pstn.posterior import Posterior
from pstn.stn import Output, Stage, Transformer, answered, count_features
from pstn.warp import warp

#: At most so many inputs go through a network at a time, and so many pixels or points of their warps.
BATCH, POINTS = 256, 2**22


def at_a_time(x: Tensor, samples: int) -> int:
    """How many of the inputs go through a network at a time with so many warps of each: memory is limited.

    Example:
        >>> at_a_time(torch.zeros(1, 1, 28, 28), 16), at_a_time(torch.zeros(1, 3, 128, 128), 16)
        (256, 16)
    """
    return max(1, min(BATCH, POINTS // (max(samples, 1) * math.prod(x.shape[2:]))))


@dataclass(frozen=True)
class Predictive:
    """What is predicted for N inputs, and how sure it is."""

    log_probs: Float[Tensor, " n *k"]
    """log p(y|x), (N, K): the logarithm of the probabilities averaged over the samples."""
    entropy: Float[Tensor, " n *heads"]
    """The entropy of p(y|x), (N,), in nats: the whole uncertainty."""
    mutual_information: Float[Tensor, " n *heads"]
    """Between label and transformation, (N,): the part of the entropy due to not knowing θ."""
    theta: Float[Tensor, "s n *d"] | None = None
    """The sampled parameters, (S, N, d); None for a model without transformer."""

    @property
    def probs(self) -> Float[Tensor, " n *k"]:
        """p(y|x), (N, K)."""
        return self.log_probs.exp()

    @property
    def labels(self) -> Integer[Tensor, " n *heads"]:
        """The most probable class, (N,)."""
        return self.log_probs.argmax(-1)

    def nll(self, y: Integer[Tensor, " n *heads"]) -> float:
        """-log p(y|x), averaged, in nats; also of what is so sure and wrong that its probability is no number.

        Example:
            >>> none = torch.zeros(1)
            >>> Predictive(torch.tensor([[0.0, -1000.0]]), none, none).nll(torch.tensor([1]))
            1000.0
        """
        if y.shape != self.log_probs.shape[:-1]:
            raise ValueError(f"labels have shape {tuple(y.shape)}; {tuple(self.log_probs.shape[:-1])} were predicted")
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"labels are {y.dtype}; expected integers 0 ... K - 1, e.g. y.long()")
        return float(-self.log_probs.double().gather(-1, y.long().to(self.log_probs.device)[..., None]).mean())

    def __len__(self) -> int:
        return self.log_probs.shape[0]


def predict(
    model: nn.Module,
    x: Tensor | Iterable[Any],
    samples: int = 10,
    *,
    batch_size: int = 256,
    method: Method = "random",
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Predictive:
    r"""The predictive distribution :math:`p(y|x) = \frac1S \sum_s p(y|x, \theta_s)`: an average of probabilities.

    The model works in evaluation mode and is left in the mode it was in. Only results are kept, so the memory needed
    beside them does not grow with the data.

    References:
        Probabilistic Spatial Transformer Networks (Schwöbel et al., 2022), equation 19.

    Arguments:
        model: An :class:`~pstn.stn.STN`, :class:`TTA`, or any module that returns logits (B, K) or an object with
            ``logits``, which counts as S = 1.
        x: Inputs (N, C, *space), or an iterable of batches: x, or (x, y, ...) as a data loader gives them.
        samples: How many transformations S are drawn for each input.
        batch_size: How many inputs go through at a time, when ``x`` is a tensor.
        method: ``"random"``, ``"antithetic"`` or ``"sobol"``; see :func:`pstn.distributions.draw`.
        generator: The source of randomness; torch's own by default.
        progress: Whether to show a progress bar.

    Returns:
        The :class:`Predictive`, on the device that the inputs are on.

    Example:
        >>> p = predict(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.rand(5, 1, 4, 4))
        >>> p.probs.shape, p.entropy.shape, len(p)
        (torch.Size([5, 3]), torch.Size([5]), 5)
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected at least 1")
    options = {"samples": samples, "method": method, "generator": generator} if _takes_samples(model) else {}
    device = next((t.device for t in (*model.parameters(), *model.buffers())), None)
    parts: list[Predictive] = []
    done = 0
    with torch.no_grad(), evaluating(model):
        for batch in _batches(x, batch_size, progress):
            _check_finite(batch, done)
            # An empty batch has the shape of a full one with nothing in it: ask about one blank input, keep none.
            asked = batch if len(batch) else batch.new_zeros(1, *batch.shape[1:])
            parts.append(_summary(model(asked.to(device), **options), batch, done))
            done += len(batch)
    if not parts:
        raise ValueError("there is nothing to predict: x has no batches")
    return Predictive(
        torch.cat([part.log_probs for part in parts]),
        torch.cat([part.entropy for part in parts]),
        torch.cat([part.mutual_information for part in parts]),
        None if parts[0].theta is None else torch.cat([part.theta for part in parts], dim=1),  # type: ignore[misc]
    )


class Augment(nn.Module):
    r"""Random transformations in training, :math:`\theta \sim q(\theta|x)`; the identity in evaluation.

    Three kinds. *Fixed*: ``Augment(family, spread)`` draws from :math:`N(0, \sigma^2 I)`. *Learned for the data set*:
    ``Augment(family, posterior=Learned())`` learns the deviations with the network behind it. *Learned for each input*:
    ``Augment(family, posterior=Gaussian(), localizer=net)``. The last two add :attr:`kl` to the loss.

    A module in front of a network, or a transform of batches: ``jitter(x)`` in the loop, or
    ``DataLoader(..., collate_fn=jitter.collate)``. What belongs to the images goes with them: :meth:`together`.

    References:
        Benton et al.: Learning Invariances in Neural Networks, 2020 (Augerino).
        Schwöbel et al.: Probabilistic Spatial Transformer Networks, 2022.

    Arguments:
        family: The family of transformations.
        spread: The deviation σ of fixed augmentation, one number or one a parameter.
        posterior: What is learned instead, such as :class:`pstn.posterior.Learned`.
        localizer: What the posterior reads; by default nothing, and it is the same for all inputs.
        fill: The value outside the input.
        padding: ``"fill"``, ``"border"`` or ``"reflect"``.
        mode: ``"linear"`` or ``"nearest"``.

    Example:
        >>> from pstn.families import Similarity
        >>> x = torch.rand(5, 1, 8, 8)
        >>> jitter = Augment(Similarity(), spread=0.15)
        >>> jitter(x).shape, torch.equal(jitter.eval()(x), x)
        (torch.Size([5, 1, 8, 8]), True)
    """

    spread: Tensor

    def __init__(
        self,
        family: Family,
        spread: float | Sequence[float] | None = None,
        *,
        posterior: Posterior | None = None,
        localizer: nn.Module | None = None,
        fill: float = 0.0,
        padding: Padding = "fill",
        mode: Mode = "linear",
    ) -> None:
        super().__init__()
        self.family = family
        self.options: dict[str, Any] = {"fill": fill, "padding": padding, "mode": mode}
        self.stage: Stage | None = None
        if (spread is None) == (posterior is None):
            raise ValueError("give Augment a spread, or a posterior to learn; not both, not neither")
        self.transformer: Transformer | None = None
        if posterior is not None:
            reader = Blind() if localizer is None else localizer
            head = posterior.head(count_features(reader), family.dim)
            self.transformer = Transformer(None, reader, head)
            return
        if localizer is not None:
            raise ValueError("a fixed spread reads nothing: a localizer needs a posterior, such as Gaussian()")
        deviations = torch.as_tensor(spread, dtype=torch.get_default_dtype())
        if deviations.shape not in ((), (family.dim,)):
            raise ValueError(
                f"spread has shape {tuple(deviations.shape)}; {family.label} takes 1 or {family.dim} numbers"
            )
        if not ((deviations >= 0) & deviations.isfinite()).all():
            raise ValueError(f"spread is {spread}; expected zero or positive deviations")
        self.register_buffer("spread", deviations.expand(family.dim).clone())

    def forward(
        self, x: Float[Tensor, "b c *space"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "b c *space"]:
        """The inputs, each warped by its own draw when training."""
        return self.sample(x, 1, generator=generator)[1].squeeze(0) if self.training else x

    def sample(
        self, x: Tensor, samples: int, method: Method = "random", generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "s b d"], Float[Tensor, "s b c *space"]]:
        """Draws θ (S, B, d), or for S = 0 the one centre, and the inputs warped by them, (S, B, C, *space)."""
        q: Distribution
        if self.transformer is not None:
            q = self.transformer(x, (x.shape[0],))
        else:
            scale = self.spread.expand(x.shape[0], -1)
            q = Independent(Normal(torch.zeros_like(scale), scale, validate_args=False), 1, validate_args=False)
        theta = draw(q, samples, method, generator) if samples else q.mode.unsqueeze(0)
        self.stage = None if self.transformer is None else Stage(theta, q, self.transformer.head.prior(q))
        return theta, warp(x, self.family, theta, **self.options)

    @property
    def transformers(self) -> Sequence[nn.Module]:
        """What learns the spread, and may learn at a rate of its own."""
        return () if self.transformer is None else (self.transformer,)

    @property
    def kl(self) -> Float[Tensor, " b"]:
        """The divergence from the prior of the last batch's inputs, (B,): what a learned spread adds to the loss."""
        if self.stage is None or self.stage.prior is None:
            raise ValueError("there is no divergence: the spread is fixed, or nothing was warped yet")
        return kl_divergence(self.stage.posterior, self.stage.prior)

    def together(
        self, x: Float[Tensor, "b c *space"], labels: Labels, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "b c *space"], Labels, Float[Tensor, "b d"]]:
        """Inputs and what belongs to them (landmarks, boxes, masks) under the same warps.

        Returns:
            The inputs, their labels, and θ (B, d): ``labels.unwarped(family, theta)`` brings predictions back.

        Example:
            >>> from pstn.families import Translation
            >>> jitter = Augment(Translation(), 0.2)
            >>> x, labels, theta = jitter.together(torch.rand(2, 1, 8, 8), Labels(masks=torch.ones(2, 1, 8, 8).bool()))
            >>> labels.masks.dtype, theta.shape
            (torch.bool, torch.Size([2, 2]))
        """
        if not self.training:
            return x, labels, self.family.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        theta, warped = self.sample(x, 1, generator=generator)
        return warped[0], labels.warped(self.family, theta[0].detach()), theta[0]

    def collate(self, batch: Sequence[Any]) -> Any:
        """Examples as a data loader has them, as one augmented batch: x, or (x, y, ...), without gradient.

        Example:
            >>> from pstn.families import Translation
            >>> data = torch.utils.data.TensorDataset(torch.rand(6, 1, 8, 8), torch.arange(6))
            >>> loader = torch.utils.data.DataLoader(data, 3, collate_fn=Augment(Translation(), 0.1).collate)
            >>> [x.shape for x, y in loader]
            [torch.Size([3, 1, 8, 8]), torch.Size([3, 1, 8, 8])]
        """
        whole = default_collate(list(batch))
        with torch.no_grad():
            if isinstance(whole, Tensor):
                return self(whole)
            return [self(whole[0]), *whole[1:]]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stage": None}  # the last batch has a graph behind it, which cannot be copied

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"spread={self.spread.tolist()}" if self.transformer is None else ""


class TTA(nn.Module):
    r"""Test-time augmentation: a model that looks at S random transformations of each input.

    It answers as an :class:`~pstn.stn.STN` does, so :func:`predict` averages its probabilities, and with a posterior
    :func:`pstn.objectives.elbo` trains it. With a fixed spread it lacks a posterior: every input is transformed alike.

    Arguments:
        model: A module that maps inputs to logits, or to an object with ``logits``.
        family: The family of transformations.
        spread: The deviation σ, one number or one a parameter.
        posterior: What is learned instead of a fixed spread; see :class:`Augment`.
        localizer: What the posterior reads.
        fill: The value outside the input.
        padding: ``"fill"``, ``"border"`` or ``"reflect"``.
        mode: ``"linear"`` or ``"nearest"``.

    Example:
        >>> from pstn.families import Similarity
        >>> model = TTA(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), Similarity(), spread=0.1)
        >>> predict(model, torch.rand(5, 1, 4, 4), samples=7).theta.shape
        torch.Size([7, 5, 4])
    """

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        spread: float | Sequence[float] | None = None,
        *,
        posterior: Posterior | None = None,
        localizer: nn.Module | None = None,
        fill: float = 0.0,
        padding: Padding = "fill",
        mode: Mode = "linear",
    ) -> None:
        super().__init__()
        self.model = model
        self.augment = Augment(
            family, spread, posterior=posterior, localizer=localizer, fill=fill, padding=padding, mode=mode
        )

    def forward(
        self,
        x: Float[Tensor, "b c *space"],
        samples: int = 1,
        *,
        method: Method = "random",
        generator: torch.Generator | None = None,
    ) -> Output:
        """The model's logits for S warps of each input; 0 for the centre, the identity where the spread is fixed."""
        theta, warped = self.augment.sample(x, samples, method, generator)
        logits = _logits(self.model(warped.flatten(0, 1)))
        stages = () if self.augment.stage is None else (self.augment.stage,)
        # A model with samples of its own multiplies ours: (S', S·B, K) becomes (S'·S, B, K).
        return Output(logits.unflatten(1, theta.shape[:2]).flatten(0, 1), stages, theta, warped)


def _logits(result: Any) -> Tensor:
    """(S, B, *K) logits of what a model returned; a plain network's are one sample."""
    logits = answered(result)
    return logits if hasattr(result, "theta") else logits.unsqueeze(0)


def _summary(result: Any, batch: Tensor, done: int) -> Predictive:
    """What the model's answer says about a batch, after ``done`` inputs before it."""
    logits = _logits(result)
    if logits.ndim < 3:
        found = tuple(logits.shape[1:])
        raise ValueError(f"the model returned {found}; expected logits (B, K), or an Output with (S, B, K)")
    logits = logits[:, : len(batch)]
    each = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    bad = each.isnan().movedim(1, 0).flatten(1).any(1)
    if bad.any():
        raise ValueError(
            f"the model's logits for {int(bad.sum())} inputs are NaN or infinite, the first is input "
            f"{done + int(bad.nonzero()[0])}; its weights may be damaged, or training diverged"
        )
    log_probs = log_mean_exp(each)
    entropy = torch.special.entr(log_probs.exp()).sum(-1)
    within = torch.special.entr(each.exp()).sum(-1).mean(0)
    information = (entropy - within).clamp_min(0)  # never negative but for rounding
    theta = getattr(result, "theta", None)
    theta = None if theta is None else theta[:, : len(batch)]
    device = batch.device
    return Predictive(
        log_probs.to(device),
        entropy.to(device),
        information.to(device),
        None if theta is None else theta.to(device),
    )


def _batches(x: Tensor | Iterable[Any], batch_size: int, progress: bool) -> Iterator[Tensor]:
    if isinstance(x, Tensor) and x.ndim < 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected a batch (N, C, *space)")
    batches: Iterable[Any] = (x.split(batch_size) if len(x) else (x,)) if isinstance(x, Tensor) else x
    if progress:
        from rich.progress import track

        batches = track(batches, description="predict")
    for batch in batches:
        batch = batch[0] if isinstance(batch, (tuple, list)) else batch
        if not isinstance(batch, Tensor):
            raise TypeError(f"a batch is {type(batch).__name__}; expected a tensor x, or (x, y, ...)")
        yield batch


def _check_finite(batch: Tensor, done: int) -> None:
    if not batch.is_floating_point():
        raise TypeError(f"x is {batch.dtype}; expected floating point: convert it first, e.g. x.float() / 255")
    bad = ~batch.isfinite()
    if bad.any():
        first = done + int(bad.flatten(1).any(1).nonzero()[0])
        raise ValueError(
            f"x has {int(bad.sum())} values that are NaN or infinite among inputs {done} to {done + len(batch) - 1}, "
            f"the first in input {first}; clean the data first, e.g. torch.nan_to_num(x)"
        )


def _takes_samples(model: nn.Module) -> bool:
    """Whether ``model(x, samples=...)`` is understood, also behind wrappers that pass everything on."""
    parameters = inspect.signature(model.forward).parameters
    if "samples" in parameters:
        return True
    inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return passes_on and isinstance(inner, nn.Module) and _takes_samples(inner)
