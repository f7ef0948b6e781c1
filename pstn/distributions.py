"""What ``torch.distributions`` lacks: a point mass, the Student-t with its Gamma precision, their KLs, and ``draw``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.distributions import (
    Distribution,
    Gamma,
    Independent,
    MultivariateNormal,
    Normal,
    constraints,
    kl_divergence,
    register_kl,
)
from torch.utils._python_dispatch import _disable_current_modes

from pstn.grid import check_choice

Method = Literal["random", "antithetic", "sobol"]


class Delta(Distribution):
    r"""The point mass at a vector: :math:`\theta = v` with probability one. A deterministic STN draws from it.

    Arguments:
        value: Where the mass sits, with shape (*b, d); draws carry its gradient.
        validate_args: As everywhere in ``torch.distributions``.

    Example:
        >>> q = Delta(torch.tensor([0.1, -0.2]))
        >>> q.rsample((2,))
        tensor([[ 0.1000, -0.2000],
                [ 0.1000, -0.2000]])
    """

    arg_constraints: ClassVar = {"value": constraints.real}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, value: Float[Tensor, "*b d"], validate_args: bool | None = None) -> None:
        if value.ndim < 1:
            raise ValueError("a Delta needs a vector, (*b, d), not a single number")
        self.value = value
        super().__init__(value.shape[:-1], value.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Delta:
        """The same point for a larger batch."""
        return Delta(self.value.expand(*batch_shape, -1), validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """The point itself, (*sample_shape, *b, d), with its gradient."""
        return self.value.expand(*sample_shape, *self.value.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """0 at the point, minus infinity elsewhere: a density against the counting measure."""
        here = (value == self.value).all(-1)
        return torch.zeros_like(here, dtype=self.value.dtype).masked_fill(~here, -math.inf)

    @property
    def mean(self) -> Tensor:
        """The point."""
        return self.value

    @property
    def mode(self) -> Tensor:
        """The point."""
        return self.value

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.value)


class GammaNormal(Distribution):
    r"""The Student-t as a scale mixture: θ|λ ~ N(m, 1/λ), λ ~ Γ(α, β).

    The marginal of θ has 2α degrees of freedom, location m and scale :math:`\sqrt{\beta/\alpha}`. With one precision λ
    a dimension the dimensions are independent t's; with one for the whole vector it is the multivariate t. Unlike
    ``torch.distributions.StudentT`` it knows its precision, so that the KL of the joint has a closed form, and it
    samples by plain tensor operations, which survive ``vmap`` and ``torch.export``.

    References:
        Probabilistic Spatial Transformer Networks (Schwöbel et al., 2022), equations 5, 7 and 14.

    Arguments:
        loc: The location m, with shape (*b, d).
        concentration: The shape α of the Gamma, a fixed number: no gradient reaches it.
        rate: The rate β of the Gamma, (*b, d) for one precision a dimension, (*b, 1) for one in all.
        validate_args: As everywhere in ``torch.distributions``.

    Example:
        >>> q = GammaNormal(torch.zeros(5, 2), 3.0, torch.full((5, 2), 0.5))
        >>> q.batch_shape, q.event_shape, q.variance[0]
        (torch.Size([5]), torch.Size([2]), tensor([0.2500, 0.2500]))
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "rate": constraints.positive}
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Float[Tensor, "*#b d"],
        concentration: float,
        rate: Float[Tensor, "*#b k"],
        validate_args: bool | None = None,
    ) -> None:
        if rate.shape[-1:] not in (loc.shape[-1:], (1,)):
            raise ValueError(
                f"rate has shape {tuple(rate.shape)} and loc {tuple(loc.shape)}; "
                f"the last axis of rate must be {loc.shape[-1]} (one precision a dimension) or 1 (one in all)"
            )
        if not 0 < concentration < math.inf:
            raise ValueError(f"concentration is {concentration}; expected a positive number")
        batch = torch.broadcast_shapes(loc.shape[:-1], rate.shape[:-1])
        self.loc = loc.expand(*batch, -1)
        self.rate = rate.expand(*batch, -1)
        self.concentration = float(concentration)
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> GammaNormal:
        """The same distribution for a larger batch."""
        loc, rate = self.loc.expand(*batch_shape, -1), self.rate.expand(*batch_shape, -1)
        return GammaNormal(loc, self.concentration, rate, validate_args=False)

    @property
    def precision(self) -> Gamma:
        """The distribution of λ, with batch shape (*b, d) or (*b, 1)."""
        return Gamma(self.concentration, self.rate, validate_args=False)

    @property
    def scale(self) -> Tensor:
        r"""The marginal's scale :math:`\sqrt{\beta/\alpha}`, (*b, d) or (*b, 1)."""
        return (self.rate / self.concentration).sqrt()

    @property
    def mode(self) -> Tensor:
        """The location."""
        return self.loc

    @property
    def mean(self) -> Tensor:
        """The location where the mean exists, α > 1/2; NaN otherwise."""
        return self.loc if self.concentration > 0.5 else torch.full_like(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        """β/(α - 1); infinite for α ≤ 1, NaN for α ≤ 1/2."""
        if self.concentration > 1:
            return (self.rate / (self.concentration - 1)).expand_as(self.loc)
        return torch.full_like(self.loc, math.inf if self.concentration > 0.5 else math.nan)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws with shape (*sample_shape, *b, d), with gradients to ``loc`` and ``rate``."""
        flat = draw(self, math.prod(sample_shape))
        return flat.reshape(*sample_shape, *self.loc.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of the marginal t at ``value``, (*b,)."""
        square = (value - self.loc) ** 2
        together = 1  # how many dimensions share a precision
        if self.rate.shape[-1] < self.loc.shape[-1]:
            square, together = square.sum(-1, keepdim=True), self.loc.shape[-1]
        a, half = self.concentration, together / 2
        constant = math.lgamma(a + half) - math.lgamma(a) - half * math.log(2 * math.pi)
        return (constant - half * self.rate.log() - (a + half) * torch.log1p(square / (2 * self.rate))).sum(-1)


@register_kl(Delta, Distribution)
def _kl_delta(p: Delta, q: Distribution) -> Tensor:
    """Zero: a deterministic transformer has no regularisation term (the true KL, infinite, is a constant)."""
    return p.value.new_zeros(p.batch_shape)


@register_kl(GammaNormal, GammaNormal)
def _kl_gamma_normal(p: GammaNormal, q: GammaNormal) -> Tensor:
    r"""The KL of the joints over (θ, λ): the Gamma-Gamma KL summed over the λ's, and what the locations add.

    In the P-STN the prior shares μ(I) with the posterior, so that p(θ|λ) cancels and KL(Γ(α, β) || Γ(α₀, β₀)) is all
    that remains (equation 10). Where the locations differ, E[λ] (m_p - m_q)²/2 is added.
    """
    if p.rate.shape[-1] != q.rate.shape[-1]:
        raise ValueError(
            f"the KL needs the same precisions on both sides, got {p.rate.shape[-1]} and {q.rate.shape[-1]}"
        )
    shift = (p.precision.mean * (p.loc - q.loc) ** 2).sum(-1) / 2
    return kl_divergence(p.precision, q.precision).sum(-1) + shift


@register_kl(Independent, MultivariateNormal)
def _kl_independent_multivariate(p: Independent, q: MultivariateNormal) -> Tensor:
    """Of a diagonal Gaussian to a full one, Σ = LLᵀ: [tr(Σ⁻¹D) + |L⁻¹(m_q - m_p)|² - d + log |Σ|/|D|]/2."""
    if not _is_diagonal(p):
        raise NotImplementedError
    deviation = p.base_dist.scale
    tril = q._unbroadcasted_scale_tril
    inverse = torch.linalg.solve_triangular(
        tril, torch.eye(tril.shape[-1], dtype=tril.dtype, device=tril.device), upper=False
    )
    trace = (inverse.square().sum(-2) * deviation.square()).sum(-1)
    with torch.autocast(tril.device.type, enabled=False):  # a matrix product would lose half of the digits
        distance = (inverse @ (q.loc - p.mean).unsqueeze(-1)).square().sum((-2, -1))
    log_det = 2 * (tril.diagonal(dim1=-2, dim2=-1).log().sum(-1) - deviation.log().sum(-1))
    return (trace + distance - deviation.shape[-1] + log_det) / 2


def draw(
    q: Distribution, samples: int, method: Method = "random", generator: torch.Generator | None = None
) -> Float[Tensor, "s *b d"]:
    r"""S reparametrised draws :math:`\theta_1, \dots, \theta_S` from each of a batch of distributions.

    Every draw on its own follows q, whatever the method; together they cover q better than chance in the last two:

    - ``"random"``: independent draws.
    - ``"antithetic"``: pairs mirrored about the location, so that odd moments cancel. With an odd S the last is single.
    - ``"sobol"``: one scrambled Sobol sequence, moved by a random shift for each input (modulo one) and mapped through
      the inverse distribution function. The error of an average falls nearly as 1/S instead of 1/√S.

    References:
        Randomization of number theoretic methods for multiple integration (Cranley & Patterson, 1976).

    Arguments:
        q: A :class:`Delta`, a :class:`GammaNormal`, a diagonal Gaussian (``Independent(Normal(...), 1)``) or a
            ``MultivariateNormal``, with batch shape (*b) and event shape (d,). Other distributions are drawn from by
            their own ``rsample``, by method ``"random"`` only.
        samples: How many draws S, at least one.
        method: ``"random"``, ``"antithetic"`` or ``"sobol"``.
        generator: Where the randomness comes from; torch's own by default. It may live on another device than q.

    Returns:
        The draws, with shape (S, *b, d), differentiable in the parameters of q.

    Example:
        >>> q = GammaNormal(torch.ones(1), 1.0, torch.ones(1))
        >>> first, second = draw(q, 2, "antithetic")
        >>> first + second
        tensor([2.])
    """
    check_choice("method", method, get_args(Method))
    if samples < 1:
        raise ValueError(f"samples is {samples}; at least one draw is needed")
    if isinstance(q, Delta):
        return q.rsample((samples,))
    if isinstance(q, GammaNormal):
        z, g = _noise(q.loc, q.rate.shape[-1], q.concentration, samples, method, generator)
        return q.loc + z * (q.rate / g).sqrt()
    if isinstance(q, MultivariateNormal):
        z, _ = _noise(q.loc, 0, 1.0, samples, method, generator)
        with torch.autocast(z.device.type, enabled=False):  # a matrix product would lose half of the digits
            return q.loc + (q.scale_tril @ z.unsqueeze(-1)).squeeze(-1)
    if isinstance(q, Independent) and _is_diagonal(q):
        z, _ = _noise(q.base_dist.loc, 0, 1.0, samples, method, generator)
        return q.base_dist.loc + q.base_dist.scale * z
    if method == "random" and generator is None and q.has_rsample:
        return q.rsample((samples,))
    raise TypeError(
        f"draw does not know how to take {method} draws with a generator from {type(q).__name__}; use method='random' "
        "without a generator, or one of Delta, GammaNormal, Independent(Normal(...), 1) and MultivariateNormal"
    )


def _is_diagonal(q: Independent) -> bool:
    return isinstance(q.base_dist, Normal) and len(q.event_shape) == 1


def _noise(
    loc: Tensor, precisions: int, concentration: float, samples: int, method: Method, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Standard normals (S, *b, d) and Gamma(concentration, 1) variates (S, *b, precisions), by the method named."""

    def fresh(source: Any, *size: int) -> Tensor:
        if generator is None:
            return source(*size, dtype=loc.dtype, device=loc.device)
        # A generator on the CPU gives the same draws to a model on any device.
        return source(*size, dtype=loc.dtype, device=generator.device, generator=generator).to(loc.device)

    batch, d = loc.shape[:-1], loc.shape[-1]
    if method == "sobol":
        width = d + precisions
        points = _sobol(samples, width).to(loc).view(samples, *[1] * len(batch), width)
        u = _inside((points + fresh(torch.rand, *batch, width)) % 1)
        return torch.special.ndtri(u[..., :d]), gamma_quantile(u[..., d:], concentration)
    n = samples if method == "random" else (samples + 1) // 2
    z = fresh(torch.randn, n, *batch, d)
    g = gamma_quantile(_inside(fresh(torch.rand, n, *batch, precisions)), concentration)
    if method == "antithetic":
        z = torch.stack([z, -z], dim=1).flatten(0, 1)[:samples]
        g = torch.stack([g, g], dim=1).flatten(0, 1)[:samples]
    return z, g


def normal_like(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normals in the shape of x; the generator may live on another device."""
    if generator is None:
        return torch.randn_like(x)
    return torch.randn(x.shape, dtype=x.dtype, device=generator.device, generator=generator).to(x.device)


def _inside(u: Tensor) -> Tensor:
    """Uniform numbers kept off 0 and 1, where the quantiles are infinite."""
    eps = torch.finfo(u.dtype).eps
    return u.clamp(eps, 1 - eps)


@lru_cache(maxsize=64)
def _sobol(samples: int, width: int) -> Tensor:
    # One scramble serves all: the random shift of each input makes the draws unbiased. It is a constant, so what
    # transforms or traces the draws is not to see how it is made.
    with temporarily_clear_interpreter_stack(), _disable_current_modes():
        return torch.quasirandom.SobolEngine(width, scramble=True, seed=0).draw(samples, dtype=torch.float64)


@torch.no_grad()
def gamma_quantile(u: Float[Tensor, "*b"], concentration: float) -> Float[Tensor, "*b"]:
    """The x with P(α, x) = u: the inverse of the distribution function of Γ(α, 1).

    For α = 1 it is -log(1 - u); otherwise four Newton steps on the logarithm of the smaller tail as a function of log
    x, which is concave: to six digits and better in float64, to four in float32 (five from α = 0.01 on).

    Arguments:
        u: Probabilities strictly between 0 and 1, any shape.
        concentration: The shape α > 0.

    Returns:
        The quantiles, with the shape of ``u``, positive, without gradient.

    Example:
        >>> gamma_quantile(torch.tensor([0.5]), 1.0), gamma_quantile(torch.tensor([0.5]), 2.5)
        (tensor([0.6931]), tensor([2.1757]))
    """
    if concentration == 1:
        return -torch.log1p(-u)
    tiny = torch.finfo(u.dtype).tiny
    a = torch.full_like(u, concentration)
    # Two starts, each good where the other is not: the leading term of the series at 0, a lower bound, and
    # Wilson and Hilferty's cube of a normal.
    series = (u.log() + math.lgamma(concentration + 1)) / concentration
    cube = 1 - 1 / (9 * concentration) + torch.special.ndtri(u) / (3 * math.sqrt(concentration))
    y = torch.maximum(series, 3 * cube.clamp_min(tiny).log() + math.log(concentration))
    low = u < 0.5
    sign = torch.where(low, 1.0, -1.0).to(u.dtype)
    target = torch.where(low, u, 1 - u).log()
    # Below the median steps stay on one side. Above it the first may fly past where the tail is zero, but for
    # α ≤ 1 the tail is at most exp(-x)/Γ(α) from x = 1 on: the quantile is not beyond.
    most = (-target - math.lgamma(concentration)).clamp_min(1.0).log()
    most = torch.where(low | (concentration > 1), math.inf, most)
    for _ in range(4):
        x = y.exp()
        tail = torch.where(low, torch.special.gammainc(a, x), torch.special.gammaincc(a, x)).clamp_min(tiny)
        slope = (concentration * y - x - math.lgamma(concentration) - tail.log()).exp()
        ahead = torch.minimum(y - sign * (tail.log() - target) / slope.clamp_min(tiny), most)
        y = torch.where(x < tiny, y, ahead)  # where x is no number, the start is exact
    return y.exp().clamp_min(tiny)
