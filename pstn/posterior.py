"""Posteriors over transformations: specifications that build heads, and heads that turn features into q(θ|x).

A specification (``Point()``, ``Gaussian()``, ``StudentT()``) is plain data; ``spec.head(features, dim)`` is the module
with the weights. Every head starts at the identity, θ = 0, with a chosen spread, for every input alike: its last layers
have zero weights. A new posterior needs just these two, and is checked by :func:`pstn.testing.assert_posterior`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from pstn.distributions import Delta, GammaNormal
from pstn.grid import check_choice
from pstn.tabled import Tabled

PriorMean = Literal["identity", "posterior"]
Per = Literal["dimension", "input"]

#: The least spread of θ a head can give: far below a pixel, and the KL to any prior stays finite.
FLOOR = 1e-6
#: The largest deviation that is learned for a data set: with it nothing is left to see.
LARGEST = 10.0


@runtime_checkable
class Posterior(Protocol):
    """What a specification is: something that builds a head."""

    def head(self, features: int, dim: int) -> Head:
        """The head that maps ``features`` numbers to a distribution of ``dim`` numbers."""
        ...


class Head(Tabled):
    """From features to q(θ|x): a location and, where there is one, a positive scale, by separate layers.

    The layers run in their own dtype also under autocast, and the distribution's parameters are float32 at least: a
    transformation's parameter is worth more than eight bits.

    Arguments:
        spec: The specification that the head was built from.
        features: How many features come in.
        dim: How many numbers θ has.
        scales: How many scales there are, 0 for none.
        start: What the scales are at the start.
        floor: What is added to the softplus of the scales' layer.
    """

    loc: nn.Sequential
    scale: nn.Sequential | None

    def __init__(
        self, spec: Any, features: int, dim: int, *, scales: int = 0, start: float = 1.0, floor: float = 0.0
    ) -> None:
        super().__init__()
        if features < 1 or dim < 1:
            raise ValueError(f"a head of {features} features and {dim} parameters; both must be at least 1")
        self.spec = spec
        self.features = features
        self.dim = dim
        self.floor = floor
        self.loc = _layers(features, spec.hidden, dim, bias=0.0)
        bias = _inverse_softplus(start - floor) if scales else 0.0
        self.scale = _layers(features, spec.hidden, scales, bias=bias) if scales else None

    def forward(self, h: Float[Tensor, "*b f"]) -> Distribution:
        """q(θ|x) for features h (*b, f), with batch shape (*b) and event shape (d,)."""
        if h.shape[-1:] != (self.features,):
            raise ValueError(f"features have shape {tuple(h.shape)}; the head needs (..., {self.features})")
        dtype = next((p.dtype for p in self.parameters()), torch.float32)  # quantised layers have no parameters
        work = torch.promote_types(dtype, torch.float32)
        with torch.autocast(h.device.type, enabled=False):
            h = h.to(dtype)
            loc = self.loc(h).to(work)
            scale = None if self.scale is None else F.softplus(self.scale(h).to(work)) + self.floor
        return self.distribution(loc, scale)

    def distribution(self, loc: Float[Tensor, "*b d"], scale: Float[Tensor, "*b k"] | None) -> Distribution:
        """The distribution that the two outputs describe."""
        raise NotImplementedError(f"{type(self).__name__} must define distribution(loc, scale)")

    def prior(self, q: Distribution) -> Distribution | None:
        """The prior that ``q`` is held against, with the same batch and event shape; None where there is none."""
        raise NotImplementedError(f"{type(self).__name__} must define prior(q)")

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return repr(self.spec)


@dataclass(frozen=True)
class Point:
    """A point mass at μ(x): the deterministic spatial transformer.

    References:
        Spatial Transformer Networks (Jaderberg et al., 2015).

    Arguments:
        hidden: Widths of hidden layers (linear, ReLU) before the output layer.

    Example:
        >>> q = Point().head(features=8, dim=4)(torch.randn(5, 8))
        >>> q.mean[0], q.batch_shape
        (tensor([0., 0., 0., 0.], grad_fn=<SelectBackward0>), torch.Size([5]))
    """

    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_hidden(self.hidden)

    def head(self, features: int, dim: int) -> Head:
        """The head that maps ``features`` numbers to a point of ``dim`` numbers."""
        return PointHead(self, features, dim)


class PointHead(Head):
    """See :class:`Point`."""

    def distribution(self, loc: Tensor, scale: Tensor | None) -> Delta:
        """The point mass at ``loc``."""
        return Delta(loc, validate_args=False)

    def prior(self, q: Distribution) -> None:
        """None."""
        return None


@dataclass(frozen=True)
class Gaussian:
    r"""A diagonal Gaussian N(μ(x), σ(x)²) against the prior :math:`N(0, \sigma_p^2)`; σ by softplus.

    References:
        Probabilistic Spatial Transformers for Bayesian Data Augmentation (Schwöbel et al., 2020).

    Arguments:
        prior_scale: :math:`\sigma_p`, one number or one a dimension.
        spread: σ at the start, one number; softplus(-2), as the paper's code has it, by default.
        hidden: Widths of hidden layers (linear, ReLU) before each of the two output layers.
        prior_mean: Where the prior sits: at the ``"identity"``, θ = 0, or at the ``"posterior"``'s own mean, so that
            only the spread is held (both occur in the history of the paper's code).
        image_noise: The deviation of the Gaussian noise that the model adds to the warped array.
        covariance: A full prior covariance, (d, d), in place of :math:`\sigma_p^2` times the identity: a smoothness
            prior, say. It is kept as nested tuples, so that the specification stays plain data.

    Example:
        >>> head = Gaussian(prior_scale=0.05).head(features=8, dim=4)
        >>> q = head(torch.randn(5, 8))
        >>> torch.distributions.kl_divergence(q, head.prior(q))
        tensor([7.1622, 7.1622, 7.1622, 7.1622, 7.1622], grad_fn=<SumBackward1>)
    """

    #: What the head keeps in its weights and buffers: heads that differ in nothing else can be stacked.
    in_state: ClassVar = frozenset({"prior_scale", "spread", "covariance"})

    prior_scale: float | tuple[float, ...] = 0.05
    spread: float = math.log1p(math.exp(-2))
    hidden: tuple[int, ...] = ()
    prior_mean: PriorMean = "identity"
    image_noise: float = 0.0
    covariance: Tensor | Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        _check_hidden(self.hidden)
        _check_spread(self.spread)
        check_choice("prior_mean", self.prior_mean, get_args(PriorMean))
        _check_prior(self)
        if not 0 <= self.image_noise < math.inf:
            raise ValueError(f"image_noise is {self.image_noise}; expected zero or a positive deviation")
        if self.covariance is not None:
            if self.prior_scale != type(self).prior_scale:
                raise ValueError("give the prior a prior_scale or a covariance, not both")
            plain = torch.as_tensor(self.covariance, dtype=torch.float64, device="cpu").tolist()
            _cholesky(plain)
            object.__setattr__(self, "covariance", tuple(map(tuple, plain)))

    def head(self, features: int, dim: int) -> Head:
        """The head that maps ``features`` numbers to a Gaussian of ``dim`` numbers."""
        return GaussianHead(self, features, dim)


class GaussianHead(Head):
    """See :class:`Gaussian`."""

    prior_scale: Tensor

    def __init__(self, spec: Gaussian, features: int, dim: int) -> None:
        super().__init__(spec, features, dim, scales=dim, start=spec.spread, floor=FLOOR)
        self.lay_tables()

    def tables(self) -> dict[str, Tensor | None]:
        """Deviations (d,) or a Cholesky factor (d, d), as the specification says."""
        if self.spec.covariance is None:
            scale = _deviations(self.spec.prior_scale, self.dim)
        else:
            scale = _cholesky(self.spec.covariance)
            _check_dim(scale, self.dim)
        return {"prior_scale": scale.to(torch.empty(0))}  # the default dtype and device

    def distribution(self, loc: Tensor, scale: Tensor | None) -> Independent:
        """The diagonal Gaussian of that mean and deviation."""
        assert scale is not None
        return Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)

    def prior(self, q: Distribution) -> Distribution:
        """The Gaussian at the identity or at the posterior's mean, of the chosen scale."""
        loc = q.mean if self.spec.prior_mean == "posterior" else torch.zeros_like(q.mean)
        scale = self.prior_scale.to(loc.dtype)
        if scale.ndim == 2:
            return MultivariateNormal(loc, scale_tril=scale, validate_args=False)
        return Independent(Normal(loc, scale.expand_as(loc), validate_args=False), 1, validate_args=False)


@dataclass(frozen=True)
class StudentT:
    r"""A Student-t by its precision: q(λ) = Γ(α, β(x)), hence :math:`\theta \sim t_{2\alpha}(\mu(x), \beta(x)/\alpha)`.

    The prior has the same location and λ ~ Γ(α, β₀), so that the KL speaks of the spread alone; β by softplus. Two
    degrees of freedom (α = 1) are heavy tails: the variance is infinite, and a draw far out comes now and then.

    References:
        Probabilistic Spatial Transformer Networks (Schwöbel et al., 2022).

    Arguments:
        alpha: α of posterior and prior, half the degrees of freedom.
        beta0: The prior's rate β₀.
        spread: The scale :math:`\sqrt{\beta/\alpha}` of θ at the start; the paper's code has β = softplus(-5).
        per: One precision a ``"dimension"``, as the paper's code does, or one an ``"input"``, as its text says.
        hidden: Widths of hidden layers (linear, ReLU) before each of the two output layers.

    Example:
        >>> head = StudentT(spread=0.1).head(features=8, dim=4)
        >>> head(torch.randn(5, 8)).scale[0]
        tensor([0.1000, 0.1000, 0.1000, 0.1000], grad_fn=<SelectBackward0>)
    """

    in_state: ClassVar = frozenset({"spread"})

    alpha: float = 1.0
    beta0: float = 1.0
    spread: float = math.sqrt(math.log1p(math.exp(-5)))
    per: Per = "dimension"
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_hidden(self.hidden)
        _check_spread(self.spread)
        check_choice("per", self.per, get_args(Per))
        _check_positive("alpha", self.alpha)
        _check_positive("beta0", self.beta0)

    def head(self, features: int, dim: int) -> Head:
        """The head that maps ``features`` numbers to a Student-t of ``dim`` numbers."""
        return StudentTHead(self, features, dim)


class StudentTHead(Head):
    """See :class:`StudentT`."""

    def __init__(self, spec: StudentT, features: int, dim: int) -> None:
        scales = dim if spec.per == "dimension" else 1
        beta, floor = spec.alpha * spec.spread**2, spec.alpha * FLOOR**2
        super().__init__(spec, features, dim, scales=scales, start=beta, floor=floor)

    def distribution(self, loc: Tensor, scale: Tensor | None) -> GammaNormal:
        """The Student-t of that location and rate β."""
        assert scale is not None
        return GammaNormal(loc, self.spec.alpha, scale, validate_args=False)

    def prior(self, q: Distribution) -> GammaNormal:
        """The same location, and precisions of rate β₀."""
        assert isinstance(q, GammaNormal)
        return GammaNormal(q.loc, self.spec.alpha, torch.full_like(q.rate, self.spec.beta0), validate_args=False)


@dataclass(frozen=True)
class Learned:
    r"""A Gaussian :math:`N(0, \sigma^2)` whose deviations are learned once for all inputs: augmentation without a knob.

    One deviation a parameter of the family, against the prior :math:`N(0, \sigma_p^2)`. What is learned is a property
    of the data set, so its divergence counts for the data set: train with ``kl_per="dataset"`` and a ``kl_weight`` of
    18, the same for ten inputs and ten thousand. With it the spread grows as long as the network can still tell the
    classes apart, each parameter on its own: shifts stay small where rotations need not. Several warps for each input
    and step (``samples=4``) make it better still.

    In evaluation the deviations are narrower by a factor. The network is honest about each single warp, so an average
    over warps as wide as in training would be less sure than it is right.

    Arguments:
        prior_scale: :math:`\sigma_p`, one number or one a parameter.
        spread: σ at the start. One so wide that classes cannot be told apart does not find its way back:
            :mod:`pstn.recipe` starts series at 0.03.
        narrow: The factor of σ in evaluation. This one and the weight of 18 were chosen once, on validation digits of
            MNIST for 30, 100 and 1000 training digits. Other data wants less: :mod:`pstn.recipe` takes 7 for images and
            0.6 for series.
        centred: Whether the mean is the identity for every input. Otherwise it is a linear function of the features, as
            in :class:`Gaussian`.

    Example:
        >>> head, h = Learned().head(features=8, dim=2), torch.randn(5, 8)
        >>> head(h).stddev[0].detach(), head.eval()(h).stddev[0].detach()
        (tensor([0.1000, 0.1000]), tensor([0.0200, 0.0200]))
    """

    in_state: ClassVar = frozenset({"prior_scale", "spread"})

    prior_scale: float | tuple[float, ...] = 1.0
    spread: float = 0.1
    narrow: float = 0.2
    centred: bool = True

    def __post_init__(self) -> None:
        _check_spread(self.spread)
        _check_prior(self)
        if not 0 < self.narrow <= 1:
            raise ValueError(f"narrow is {self.narrow}; expected a factor above 0, at most 1")

    @property
    def hidden(self) -> tuple[int, ...]:
        """No hidden layers."""
        return ()

    def head(self, features: int, dim: int) -> Head:
        """The head that gives ``dim`` numbers the same deviations for all inputs."""
        return LearnedHead(self, features, dim)


class LearnedHead(Head):
    """See :class:`Learned`."""

    start: Tensor
    prior_scale: Tensor

    #: Logarithms of deviations have far to go, and the optimizer's steps are as long as any weight's: each counts for
    #: so many. It also keeps weight decay from deciding where they end.
    GAIN = 30.0

    def __init__(self, spec: Learned, features: int, dim: int) -> None:
        super().__init__(spec, features, dim)
        if spec.centred:
            del self.loc
        self.growth = nn.Parameter(torch.zeros(dim))
        self.lay_tables()

    def tables(self) -> dict[str, Tensor | None]:
        """The logarithms of the deviations at the start, and the prior's deviations, both (d,)."""
        start = torch.full((self.dim,), math.log(self.spec.spread), dtype=torch.get_default_dtype())
        return {"start": start, "prior_scale": _deviations(self.spec.prior_scale, self.dim).to(start)}

    def forward(self, h: Float[Tensor, "*b f"]) -> Distribution:
        """q(θ) for features h (*b, f), with batch shape (*b) and event shape (d,)."""
        if h.shape[-1:] != (self.features,):
            raise ValueError(f"features have shape {tuple(h.shape)}; the head needs (..., {self.features})")
        work = torch.promote_types(self.growth.dtype, torch.float32)
        with torch.autocast(h.device.type, enabled=False):
            scale = (self.start + self.GAIN * self.growth).to(work).clamp(max=math.log(LARGEST)).exp() + FLOOR
            scale = (scale if self.training else self.spec.narrow * scale).expand(*h.shape[:-1], -1)
            loc = torch.zeros_like(scale) if self.spec.centred else self.loc(h.to(self.growth.dtype)).to(work)
        return Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)

    def prior(self, q: Distribution) -> Independent:
        """The Gaussian at the identity."""
        zeros = torch.zeros_like(q.mean)
        scale = self.prior_scale.to(zeros.dtype).expand_as(zeros)
        return Independent(Normal(zeros, scale, validate_args=False), 1, validate_args=False)


def _layers(features: int, hidden: Sequence[int], out: int, *, bias: float) -> nn.Sequential:
    """Linear layers with ReLUs between them; the last starts as the constant ``bias``."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    last = nn.Linear(features, out)
    nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, bias)
    return nn.Sequential(*layers, last)


def _inverse_softplus(y: float) -> float:
    return y + math.log(-math.expm1(-y))


def _cholesky(covariance: Tensor | Sequence[Sequence[float]]) -> Tensor:
    matrix = torch.as_tensor(covariance, dtype=torch.float64, device="cpu")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not torch.allclose(matrix, matrix.T):
        raise ValueError(f"covariance has shape {tuple(matrix.shape)}; expected a symmetric (d, d) matrix")
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        raise ValueError("covariance is not positive definite; add a little to its diagonal")
    return factor


def _deviations(prior_scale: float | Sequence[float], dim: int) -> Tensor:
    scale = torch.as_tensor(prior_scale, dtype=torch.float64)
    scale = scale if scale.ndim else scale.expand(dim)
    _check_dim(scale, dim)
    return scale


def _check_dim(scale: Tensor, dim: int) -> None:
    if scale.shape[-1] != dim:
        raise ValueError(f"the Gaussian prior has {scale.shape[-1]} dimensions; θ has {dim}")


def _check_prior(spec: Any) -> None:
    scale = spec.prior_scale
    scale = scale.tolist() if hasattr(scale, "tolist") else scale  # torch's and NumPy's numbers, as plain data
    object.__setattr__(spec, "prior_scale", tuple(map(float, scale)) if isinstance(scale, (list, tuple)) else scale)
    for value in spec.prior_scale if isinstance(spec.prior_scale, tuple) else (spec.prior_scale,):
        _check_positive("prior_scale", value)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}; expected a positive number")


def _check_spread(spread: float) -> None:
    if not FLOOR < spread < math.inf:
        raise ValueError(f"spread is {spread}; expected a number above {FLOOR:g} (for no spread at all use Point)")


def _check_hidden(hidden: tuple[int, ...]) -> None:
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden is {hidden}; expected widths of at least 1")
