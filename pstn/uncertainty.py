"""Uncertainty to act on: sets that hold the right class as often as asked, what to hand to a person, honest poses.

Everything here works on probabilities that some model gave, (N, K) with labels (N,). What is fitted (a threshold, a
temperature) is fitted on labelled examples that the model was not trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from pstn.grid import check_choice
from pstn.metrics import _checked

Score = Literal["lac", "aps"]


@dataclass(frozen=True)
class Conformal:
    """Prediction sets of a requested coverage; made by :func:`conformal`."""

    coverage: float
    """How often a set shall hold the right class, at least."""
    score: Score
    """What a class's strangeness is."""
    threshold: float
    """The largest strangeness that a set admits; infinite where there were too few examples to say anything."""
    empty: bool = False
    """Whether a set may be empty."""

    def __call__(self, probs: Float[Tensor, "n k"]) -> Bool[Tensor, "n k"]:
        """Which classes each input's set holds, (N, K)."""
        inside = strangeness(probs, self.score) <= self.threshold
        if not self.empty:
            inside[torch.arange(len(probs)), probs.argmax(-1)] = True
        return inside


def conformal(
    probs: Float[Tensor, "n k"],
    y: Integer[Tensor, " n"],
    coverage: float = 0.9,
    *,
    score: Score = "lac",
    empty: bool = False,
) -> Conformal:
    r"""Split-conformal prediction: sets of classes that hold the right one with at least the requested probability.

    The threshold is the :math:`\lceil (n + 1)\,c \rceil`-th smallest strangeness of the right class among n examples
    that the model was not trained on. Whatever the model, a new example from the same source has its class in its set
    with probability at least c, and at most c + 1/(n + 1) where no two scores are equal and sets may be empty. That
    holds on average over inputs, not for each kind of input. Fewer than c/(1 - c) examples can promise nothing: then
    every set holds every class.

    References:
        Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2005.
        Sadinle, Lei, Wasserman: Least Ambiguous Set-Valued Classifiers with Bounded Error Levels, 2019 ("lac").
        Romano, Sesia, Candès: Classification with Valid and Adaptive Coverage, 2020 ("aps").

    Arguments:
        probs: Probabilities of the examples set aside, (n, K).
        y: Their labels, (n,).
        coverage: The requested probability c.
        score: ``"lac"``, the smallest sets on average; or ``"aps"``, larger sets where the input is hard.
        empty: Whether a set may be empty. Otherwise it holds at least the most probable class, which covers more.

    Returns:
        The :class:`Conformal`, to be called with probabilities.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2, 0.0], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
        >>> sets = conformal(probs, torch.tensor([0, 1, 2]), coverage=0.75)
        >>> sets(torch.tensor([[0.5, 0.4, 0.1], [0.9, 0.1, 0.0]]))
        tensor([[ True,  True, False],
                [ True, False, False]])
    """
    check_choice("score", score, get_args(Score))
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is {coverage}; expected a probability between 0 and 1, such as 0.9")
    probs, y = _checked(probs, y)
    strange = strangeness(probs, score).gather(1, y[:, None]).squeeze(1).sort().values
    # 0.9 * 10 is 9.000000000000002 for some products: a rank one too high would do no harm but is not the rank
    rank = math.ceil((len(strange) + 1) * coverage - 1e-9)
    threshold = float(strange[rank - 1]) if rank <= len(strange) else math.inf
    return Conformal(coverage, score, threshold, empty)


def strangeness(probs: Float[Tensor, "n k"], score: Score = "lac") -> Float[Tensor, "n k"]:
    """How strange each class would be for each input: 1 - p(k), or the probability of all classes at least as probable.

    Arguments:
        probs: Probabilities, (N, K).
        score: ``"lac"`` or ``"aps"``.

    Example:
        >>> strangeness(torch.tensor([[0.5, 0.2, 0.3]]), "aps")
        tensor([[0.5000, 1.0000, 0.8000]])
    """
    check_choice("score", score, get_args(Score))
    if score == "lac":
        return 1 - probs
    order = probs.argsort(dim=-1, descending=True, stable=True)
    return torch.empty_like(probs).scatter(-1, order, probs.gather(-1, order).cumsum(-1))


@dataclass(frozen=True)
class RiskCoverage:
    """Errors against how many inputs are answered, the surest first; made by :func:`risk_coverage`."""

    coverage: Float[Tensor, " n"]
    """The share of inputs answered, 1/N to 1."""
    risk: Float[Tensor, " n"]
    """The share of errors among the answered."""

    @property
    def area(self) -> float:
        """The mean risk over all coverages, AURC: the smaller the better."""
        return float(self.risk.mean())

    def accuracy(self, handed: float = 0.1) -> float:
        """The accuracy on the rest, if the share ``handed`` of the inputs, the least sure, goes to a person."""
        if not 0 <= handed < 1:
            raise ValueError(f"handed is {handed}; expected a share of the inputs, from 0 to below 1")
        kept = max(1, round(len(self.risk) * (1 - handed)))
        return float(1 - self.risk[kept - 1])


def risk_coverage(
    probs: Float[Tensor, "n k"], y: Integer[Tensor, " n"], uncertainty: Float[Tensor, " n"] | None = None
) -> RiskCoverage:
    """The risk-coverage curve: the error rate among the m surest inputs, for every m.

    Inputs that are equally sure share their errors, so the curve does not depend on their order.

    References:
        El-Yaniv, Wiener: On the Foundations of Noise-free Selective Classification, 2010.

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).
        uncertainty: How unsure each answer is, such as an entropy or a mutual information; 1 - max p by default.

    Example:
        >>> curve = risk_coverage(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 0, 1]))
        >>> curve.risk, curve.accuracy(handed=1 / 3)
        (tensor([0.0000, 0.0000, 0.3333]), 1.0)
    """
    probs, y = _checked(probs, y)
    confidence, named = probs.max(-1)
    unsure = (1 - confidence if uncertainty is None else uncertainty.detach().cpu()).double()
    if unsure.shape != y.shape or unsure.isnan().any():
        raise ValueError(f"uncertainty has shape {tuple(unsure.shape)}; {len(y)} inputs need as many numbers, none NaN")
    wrong = (named != y).double()
    _, place, count = unsure.unique(return_inverse=True, return_counts=True)
    shared = torch.zeros(len(count), dtype=wrong.dtype).index_add(0, place, wrong) / count
    answered = torch.arange(1, len(y) + 1)
    risk = shared.repeat_interleave(count).cumsum(0) / answered
    return RiskCoverage((answered / len(y)).to(probs.dtype), risk.to(probs.dtype))


def selective_accuracy(
    probs: Float[Tensor, "n k"],
    y: Integer[Tensor, " n"],
    handed: float = 0.1,
    uncertainty: Float[Tensor, " n"] | None = None,
) -> float:
    """The accuracy on the rest, if the share ``handed`` of the inputs, the least sure, goes to a person.

    Arguments:
        probs: Probabilities, (N, K).
        y: Labels, (N,).
        handed: The share that is handed over.
        uncertainty: How unsure each answer is; 1 - max p by default.

    Example:
        >>> selective_accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), handed=0.5)
        1.0
    """
    return risk_coverage(probs, y, uncertainty).accuracy(handed)


@dataclass(frozen=True)
class Temperature:
    r"""Probabilities :math:`p(k) \propto e^{z_k / T}`: sharper for T < 1, flatter for T > 1, the same order always."""

    value: float = 1.0
    """The temperature T."""

    def __call__(self, logits: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """The probabilities, (N, K), of logits or log-probabilities."""
        return (logits / self.value).softmax(-1)

    @classmethod
    def fit(cls, logits: Float[Tensor, "n k"], y: Integer[Tensor, " n"]) -> Temperature:
        r"""The temperature of the least NLL on examples that the model was not trained on.

        The NLL is convex in 1/T, so its slope, the mean of :math:`E_p[z] - z_y`, is followed to its zero by bisection.

        References:
            Guo et al.: On Calibration of Modern Neural Networks, 2017.

        Arguments:
            logits: Logits or log-probabilities, (N, K); those of a :class:`pstn.Predictive` are its ``log_probs``.
            y: Labels, (N,).

        Example:
            >>> logits = torch.tensor([[2.0, 0.0]]).repeat(4, 1)  # sure to 88 %, right in 75 %
            >>> Temperature.fit(logits, torch.tensor([0, 0, 0, 1]))(logits)[0]
            tensor([0.7500, 0.2500])
        """
        _, y = _checked(logits.softmax(-1), y)
        z = logits.detach().cpu().double()
        z = (z - z.amax(-1, keepdim=True)).clamp(min=-1e6)  # a class that is impossible is so at every temperature

        def slope(sharpness: float) -> float:
            p = (sharpness * z).softmax(-1)
            return float(((p * z).sum(-1) - z.gather(1, y[:, None]).squeeze(1)).mean())

        low, high = math.log(1e-3), math.log(1e3)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(math.exp(middle)) < 0 else (low, middle)
        return cls(math.exp(-(low + high) / 2))


def pose_coverage(
    theta: Float[Tensor, "s n d"],
    truth: Float[Tensor, "n d"],
    level: float = 0.9,
    *,
    angles: Sequence[int] = (),
) -> Float[Tensor, " d"]:
    """How often the true pose lies in the posterior's central interval of the given level, for each parameter.

    An honest posterior gives ``level``; a collapsed one less, a timid one more. The truth's rank among S samples has
    S + 1 values, so S should be large against 1/(1 - level).

    Arguments:
        theta: Samples of the posterior, (S, N, d), such as ``predict(model, x, 100).theta``.
        truth: The true parameters, (N, d).
        level: The probability of the interval.
        angles: Which parameters are angles in radians, and are compared on the circle.

    Returns:
        The share of inputs, (d,).

    Example:
        >>> theta = torch.linspace(-1, 1, 101)[:, None, None].expand(101, 2, 1)
        >>> pose_coverage(theta, torch.tensor([[0.5], [2.0]]), level=0.9)
        tensor([0.5000])
    """
    if theta.ndim != 3 or truth.shape != theta.shape[1:]:
        raise ValueError(
            f"theta has shape {tuple(theta.shape)} and truth {tuple(truth.shape)}; expected (S, N, d) and (N, d)"
        )
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a probability between 0 and 1, such as 0.9")
    off = theta - truth
    for i in angles:
        off[..., i] = torch.remainder(off[..., i] + math.pi, 2 * math.pi) - math.pi
    # where the truth stands among the samples, from 0 to 1; ties count half
    below = ((off < 0).double().sum(0) + 0.5 * (off == 0).double().sum(0) + 0.5) / (theta.shape[0] + 1)
    return ((2 * below - 1).abs() <= level).to(theta.dtype).mean(0)
