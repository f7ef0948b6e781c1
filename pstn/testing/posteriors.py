"""The laws of a posterior over transformations."""

from __future__ import annotations

import copy
import math
from typing import get_args

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, kl_divergence

from pstn.distributions import Delta, GammaNormal, Method, draw
from pstn.posterior import Head, Posterior


def assert_posterior(
    spec: Posterior, features: int = 6, dim: int = 4, *, samples: int = 40_000, seed: int = 0, compiles: bool = True
) -> None:
    r"""Check that a posterior keeps the laws: raises ``AssertionError`` with the law that it breaks.

    - start: whatever the features, the mode is 0 and the spread is the specification's;
    - shapes: features (*b, f) give batch shape (*b) and event shape (d,), in float32 and float64, and in float32 under
      autocast, the divergence too; features of the wrong width are refused;
    - draws, by every method and at every place s of S: they follow the density (:math:`E_q[r(\theta)/q(\theta)] = 1`
      for a narrow density r, which heavy tails do not disturb) and have the moments, where these are finite;
    - randomness: a generator fixes the draws, another seed changes them;
    - gradients of draws and KL against finite differences in float64, and one to every weight;
    - divergence: KL to the prior is not negative, equals its Monte Carlo estimate (of the joint with the precision, for
      a Student-t), and is finite for features far out;
    - ``vmap`` gives what a batch gives, and independent draws with ``randomness="different"``;
    - ``torch.compile`` without a graph break.

    Arguments:
        spec: The specification.
        features: How many features the head reads.
        dim: How many numbers θ has.
        samples: How many draws the Monte Carlo comparisons take.
        seed: The seed of everything random.
        compiles: Whether to check ``torch.compile``.

    Example:
        >>> from pstn.posterior import Point
        >>> assert_posterior(Point(hidden=(5,)))
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = spec.head(features, dim)
        _start(spec, head, features, dim)
        # The laws must hold wherever training leads: give every weight some value.
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        _shapes(head, features, dim)
        exact = copy.deepcopy(head).double()
        q = exact(torch.randn(1, features, dtype=torch.float64))
        for method in get_args(Method):
            _draws(q.expand((samples // 4,)), method)
            _randomness(q, method)
            _gradients(exact, features, method)
        _divergence(exact, q, features, samples)
        _vmap(exact, features)
        if compiles:
            torch.compiler.reset()
            run = torch.compile(lambda h: draw(head(h), 2), backend="eager", fullgraph=True)
            assert run(torch.randn(3, features)).shape == (2, 3, dim), f"{head}: compiled draws have another shape"


def _start(spec: Posterior, head: Head, features: int, dim: int) -> None:
    q = head(10 * torch.randn(5, features))
    assert torch.equal(q.mode, torch.zeros(5, dim)), f"{head}: the mode is not 0 at the start"
    spread = getattr(spec, "spread", None)
    if spread is not None:
        scale = q.scale if isinstance(q, GammaNormal) else q.stddev
        assert torch.allclose(scale, torch.tensor(float(spread)), rtol=1e-4), f"{head}: starts with spread {scale[0]}"


def _shapes(head: Head, features: int, dim: int) -> None:
    for batch in ((), (3,), (2, 3), (0,)):
        for dtype in (torch.float32, torch.float64):
            q = copy.deepcopy(head).to(dtype)(torch.randn(*batch, features, dtype=dtype))
            found = (tuple(q.batch_shape), tuple(q.event_shape))
            assert found == (batch, (dim,)), f"{head}: shapes {found} for features {(*batch, features)}"
            for method in get_args(Method):
                theta = draw(q, 3, method)
                assert theta.shape == (3, *batch, dim), f"{head}: {method} draws have shape {tuple(theta.shape)}"
                assert theta.dtype == dtype, f"{head}: {dtype} features give {theta.dtype} draws"
            prior = head.prior(q)
            if prior is not None:
                found = (tuple(prior.batch_shape), tuple(prior.event_shape))
                assert found == (batch, (dim,)), f"{head}: the prior has shapes {found}"
    rough = torch.randn(3, features).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = head(rough)
        prior = head.prior(q)
        kl = None if prior is None else kl_divergence(q, prior)
    assert q.mode.dtype == torch.float32, f"{head}: {q.mode.dtype} under autocast"
    assert torch.equal(q.mode, head(rough.float()).mode), f"{head}: loses precision under autocast"
    if kl is not None and prior is not None:
        assert torch.equal(kl, kl_divergence(q, prior)), f"{head}: the KL loses precision under autocast"
    try:
        head(torch.randn(3, features + 1))
    except ValueError:
        return
    raise AssertionError(f"{head}: features of the wrong width are accepted")


def _draws(q: Distribution, method: Method) -> None:
    """``q`` is one distribution many times over: each place s of S has a sample of its own."""
    for place, theta in enumerate(draw(q, 3, method)):
        what = f"{type(q).__name__}: {method} draw {place}"
        if isinstance(q, Delta):
            assert torch.equal(theta, q.value), f"{what} is not the point"
            continue
        scale = q.scale if isinstance(q, GammaNormal) else q.stddev
        for offset in (-0.4, 0.0, 0.4):
            narrow = Normal(q.mode + offset * scale, 0.6 * scale)
            weight = (narrow.log_prob(theta).sum(-1) - q.log_prob(theta)).exp()
            _agree(weight, torch.ones(()), f"{what} does not follow the density")
        if q.variance.isfinite().all():
            _agree(theta, q.mean[0], f"{what} has another mean")
        if not isinstance(q, GammaNormal) or q.concentration > 2:  # else the square has no variance to judge it by
            _agree((theta - q.mean).square(), q.variance[0], f"{what} has another variance")
        # Heavy tails: count the draws beyond a few scales, against independent ones.
        for far in (1, 5):
            beyond = [((t - q.mode).abs() > far * scale).double() for t in (theta, q.sample())]
            _agree(beyond[0] - beyond[1], torch.zeros(()), f"{what} has other tails than q.sample()")


def _randomness(q: Distribution, method: Method) -> None:
    first, again, other = (draw(q, 5, method, torch.Generator().manual_seed(n)) for n in (1, 1, 2))
    assert torch.equal(first, again), f"{type(q).__name__}: {method} draws differ with the same generator"
    assert isinstance(q, Delta) or not torch.equal(first, other), f"{type(q).__name__}: {method} draws ignore the seed"


def _gradients(head: Head, features: int, method: Method) -> None:
    def sampled(h: Tensor) -> Tensor:
        return draw(head(h), 3, method, torch.Generator().manual_seed(0))

    def divergence(h: Tensor) -> Tensor:
        q = head(h)
        prior = head.prior(q)
        return q.mean.sum() if prior is None else kl_divergence(q, prior)

    h = torch.randn(2, features, dtype=torch.float64, requires_grad=True)
    for function, what in ((sampled, f"{method} draws"), (divergence, "the KL")):
        ok = torch.autograd.gradcheck(function, (h,), raise_exception=False)
        assert ok, f"{head}: gradients of {what} differ from finite differences"
    gradients = torch.autograd.grad(sampled(h).square().sum(), tuple(head.parameters()), allow_unused=True)
    reached = [g is not None and bool(g.isfinite().all()) and bool(g.any()) for g in gradients]
    assert all(reached), f"{head}: a weight gets no gradient from {method} draws"


def _divergence(head: Head, q: Distribution, features: int, samples: int) -> None:
    prior = head.prior(q)
    if prior is None:
        return
    kl = kl_divergence(q, prior)
    assert kl.shape == q.batch_shape, f"{head}: the KL has shape {tuple(kl.shape)}, not {tuple(q.batch_shape)}"
    if isinstance(q, GammaNormal):
        assert isinstance(prior, GammaNormal), f"{head}: a Student-t needs a prior with a precision"
        precision = q.precision.sample((samples,))
        theta = q.loc + torch.randn(samples, *q.loc.shape, dtype=q.loc.dtype) / precision.sqrt()
        terms = _log_joint(q, theta, precision) - _log_joint(prior, theta, precision)
    else:
        theta = draw(q, samples)
        terms = q.log_prob(theta) - prior.log_prob(theta)
    _agree(terms, kl, f"{head}: the KL is {kl.tolist()}, Monte Carlo says {terms.mean(0).tolist()}")
    single = copy.deepcopy(head).float()
    for size in (0.0, 1.0, 1e2, 1e4):
        q = single(size * torch.randn(50, features))
        kl = kl_divergence(q, single.prior(q))  # type: ignore[arg-type]
        assert kl.isfinite().all(), f"{head}: the KL is not finite for features of size {size:g}"
        assert (kl > -1e-4).all(), f"{head}: the KL is negative, {kl.min().item()}"


def _log_joint(q: GammaNormal, theta: Tensor, precision: Tensor) -> Tensor:
    return Normal(q.loc, precision.rsqrt()).log_prob(theta).sum(-1) + q.precision.log_prob(precision).sum(-1)


def _vmap(head: Head, features: int) -> None:
    def divergence(h: Tensor) -> Tensor:
        q = head(h)
        prior = head.prior(q)
        return q.mode.sum(-1) if prior is None else kl_divergence(q, prior)

    h = torch.randn(1, features, dtype=torch.float64).expand(4, -1)
    assert torch.allclose(torch.func.vmap(divergence)(h), divergence(h)), f"{head}: vmap differs from a batch"
    theta = torch.func.vmap(lambda row: draw(head(row), 3), randomness="different")(h)
    assert theta.shape[:2] == (4, 3), f"{head}: vmapped draws have shape {tuple(theta.shape)}"
    alike = torch.equal(theta[0], theta[1])
    assert alike == isinstance(head(h), Delta), f"{head}: vmapped draws are the same for every input"


def _agree(terms: Tensor, expected: Tensor, message: str) -> None:
    """The mean over the first axis is what it should be, within five and a half of its standard errors."""
    terms = terms.detach()
    error = terms.std(0) / math.sqrt(terms.shape[0])
    far = (terms.mean(0) - expected.detach()).abs() > 5.5 * error + 1e-9
    assert not far.any(), message
