"""Prediction by averaging over transformations: ``predict``, and the two baselines, ``TTA`` and ``Augment``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from pstn.distributions import Method, draw
from pstn.families.base import Family
from pstn.grid import Mode, Padding
from pstn.objectives import log_mean_exp
from pstn.stn import Output
from pstn.warp import warp


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
        model: An :class:`~pstn.stn.STN`, :class:`TTA`, or any module that returns logits (B, K), which counts as S = 1.
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
    with torch.no_grad(), _evaluating(model):
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
    r"""Random transformations in training, :math:`\theta \sim N(0, \sigma^2 I)`; the identity in evaluation.

    Arguments:
        family: The family of transformations.
        spread: The deviation σ, one number or one a parameter.
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
        spread: float | Sequence[float],
        *,
        fill: float = 0.0,
        padding: Padding = "fill",
        mode: Mode = "linear",
    ) -> None:
        super().__init__()
        self.family = family
        self.options: dict[str, Any] = {"fill": fill, "padding": padding, "mode": mode}
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
        """Draws θ (S, B, d), and the inputs warped by them, (S, B, C, *space)."""
        deviations = self.spread.expand(x.shape[0], -1)
        q = Independent(Normal(torch.zeros_like(deviations), deviations, validate_args=False), 1, validate_args=False)
        theta = draw(q, samples, method, generator)
        return theta, warp(x, self.family, theta, **self.options)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"spread={self.spread.tolist()}"


class TTA(nn.Module):
    r"""Test-time augmentation: a model that looks at S random transformations, :math:`\theta \sim N(0, \sigma^2 I)`.

    It answers as an :class:`~pstn.stn.STN` does, so :func:`predict` averages its probabilities. What it lacks is a
    posterior: every input is transformed alike.

    Arguments:
        model: A module that maps inputs to logits.
        family: The family of transformations.
        spread: The deviation σ, one number or one a parameter.
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
        spread: float | Sequence[float],
        *,
        fill: float = 0.0,
        padding: Padding = "fill",
        mode: Mode = "linear",
    ) -> None:
        super().__init__()
        self.model = model
        self.augment = Augment(family, spread, fill=fill, padding=padding, mode=mode)

    def forward(
        self,
        x: Float[Tensor, "b c *space"],
        samples: int = 1,
        *,
        method: Method = "random",
        generator: torch.Generator | None = None,
    ) -> Output:
        """The model's logits for S warps of each input."""
        theta, warped = self.augment.sample(x, samples, method, generator)
        logits = _logits(self.model(warped.flatten(0, 1)))
        # A model with samples of its own multiplies ours: (S', S·B, K) becomes (S'·S, B, K).
        return Output(logits.unflatten(1, theta.shape[:2]).flatten(0, 1), (), theta, warped)


def _logits(result: Any) -> Tensor:
    """(S, B, *K) logits of what a model returned; a plain network's are one sample."""
    return result.unsqueeze(0) if isinstance(result, Tensor) else result.logits


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
    theta = None if isinstance(result, Tensor) or result.theta is None else result.theta[:, : len(batch)]
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


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is in the mode it was in, a frozen part included."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
