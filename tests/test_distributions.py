import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal, StudentT, kl_divergence

from pstn.distributions import Delta, GammaNormal, _sobol, draw, gamma_quantile

METHODS = ("random", "antithetic", "sobol")
f64 = {"dtype": torch.float64}


def diagonal(loc, scale):
    return Independent(Normal(loc, scale), 1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- Delta ---


def test_delta_is_its_value():
    value = torch.randn(5, 3, requires_grad=True)
    q = Delta(value)
    assert q.batch_shape == (5,)
    assert q.event_shape == (3,)
    assert torch.equal(q.rsample((2, 4)), value.expand(2, 4, 5, 3))
    assert torch.equal(q.mean, value)
    assert torch.equal(q.variance, torch.zeros(5, 3))
    q.rsample((2,)).sum().backward()
    assert torch.equal(value.grad, torch.full((5, 3), 2.0))
    assert torch.equal(q.expand((7, 5)).rsample(), value.expand(7, 5, 3))


def test_delta_has_all_its_probability_at_the_value():
    value = torch.randn(5, 3)
    elsewhere = value.clone()
    elsewhere[2, 1] += 1e-3
    expected = torch.tensor([0, 0, -math.inf, 0, 0])
    assert torch.equal(Delta(value).log_prob(elsewhere), expected)


@pytest.mark.parametrize("prior", [diagonal(torch.zeros(3), torch.ones(3)), Delta(torch.ones(3))])
def test_delta_has_no_divergence(prior):
    assert torch.equal(kl_divergence(Delta(torch.randn(5, 3)), prior), torch.zeros(5))


def test_delta_wants_a_vector():
    with pytest.raises(ValueError, match="needs a vector"):
        Delta(torch.tensor(1.0))


# --- GammaNormal ---


@pytest.mark.parametrize("alpha", [0.4, 1.0, 3.7])
def test_one_precision_a_dimension_is_independent_student_ts(alpha):
    loc, rate = torch.randn(5, 3, **f64), torch.rand(5, 3, **f64) + 0.1
    theta = torch.randn(7, 5, 3, **f64)
    peer = StudentT(2 * alpha, loc, (rate / alpha).sqrt())
    q = GammaNormal(loc, alpha, rate)
    torch.testing.assert_close(q.log_prob(theta), peer.log_prob(theta).sum(-1))
    torch.testing.assert_close(q.variance, peer.variance, equal_nan=True)
    torch.testing.assert_close(q.mean, peer.mean, equal_nan=True)
    torch.testing.assert_close(q.mode, loc)


@pytest.mark.parametrize("alpha", [0.4, 1.0, 3.7])
def test_one_precision_an_input_is_the_multivariate_t(alpha):
    loc, rate = torch.randn(3, **f64), torch.tensor([0.3], **f64)
    theta = torch.randn(7, 3, **f64)
    peer = scipy.stats.multivariate_t(loc.numpy(), np.eye(3) * rate.item() / alpha, df=2 * alpha)
    np.testing.assert_allclose(GammaNormal(loc, alpha, rate).log_prob(theta).numpy(), peer.logpdf(theta.numpy()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alpha", [0.6, 1.0, 2.5])
def test_draws_have_the_quantiles_of_the_student_t(method, alpha):
    q = GammaNormal(torch.full((20_000, 1), 0.3, **f64), alpha, torch.full((1, 1), 0.02, **f64))
    peer = scipy.stats.t(2 * alpha, 0.3, math.sqrt(0.02 / alpha))
    for theta in draw(q, 2, method, seeded()):  # each place of S by itself
        assert scipy.stats.kstest(theta.flatten().numpy(), peer.cdf).pvalue > 1e-4


@pytest.mark.parametrize(("precisions", "shared"), [(1, True), (2, False)])
def test_dimensions_share_a_precision_or_do_not(precisions, shared):
    theta = draw(GammaNormal(torch.zeros(20_000, 2), 1.0, torch.ones(1, precisions)), 1, generator=seeded())[0].abs()
    correlation = scipy.stats.spearmanr(theta[:, 0], theta[:, 1]).statistic
    assert (correlation > 0.2) if shared else (abs(correlation) < 0.05)


def test_rsample_has_any_sample_shape_and_a_gradient():
    rate = torch.ones(5, 1, requires_grad=True)
    q = GammaNormal(torch.zeros(3), 1.5, rate)
    assert q.batch_shape == (5,)
    theta = q.rsample((2, 4))
    assert theta.shape == (2, 4, 5, 3)
    theta.sum().backward()
    # θ - m is proportional to the root of the rate
    torch.testing.assert_close(rate.grad, theta.detach().sum((0, 1, 3))[:, None] / 2)
    assert q.sample().shape == (5, 3)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0067), (2.0, 3.0)])
def test_gamma_normal_divergence_is_the_formula_of_the_paper(alpha, beta):
    loc = torch.randn(5, 3, **f64)
    kl = kl_divergence(
        GammaNormal(loc, alpha, torch.full((5, 3), beta, **f64)), GammaNormal(loc, alpha, torch.ones(5, 3, **f64))
    )
    torch.testing.assert_close(kl, torch.full((5,), 3 * alpha * (math.log(beta) + 1 / beta - 1), **f64))


def test_gamma_normal_divergence_where_locations_and_shapes_differ():
    p = GammaNormal(torch.tensor([0.5, -1.0], **f64), 1.5, torch.tensor([0.7, 2.0], **f64))
    q = GammaNormal(torch.tensor([0.0, 0.2], **f64), 2.5, torch.tensor([1.0, 0.5], **f64))
    torch.manual_seed(0)
    precision = p.precision.sample((200_000,))
    theta = p.loc + torch.randn_like(precision) / precision.sqrt()
    terms = sum(
        sign * (Normal(d.loc, precision.rsqrt()).log_prob(theta) + d.precision.log_prob(precision)).sum(-1)
        for sign, d in ((1, p), (-1, q))
    )
    assert kl_divergence(p, q) == pytest.approx(terms.mean().item(), abs=6 * terms.std().item() / 200_000**0.5)


def test_gamma_normal_divergence_needs_the_same_precisions():
    loc = torch.zeros(3)
    with pytest.raises(ValueError, match="same precisions"):
        kl_divergence(GammaNormal(loc, 1.0, torch.ones(3)), GammaNormal(loc, 1.0, torch.ones(1)))


@pytest.mark.parametrize(
    ("concentration", "rate", "message"),
    [
        (0.0, torch.ones(3), "concentration is 0"),
        (math.inf, torch.ones(3), "concentration is inf"),
        (1.0, torch.ones(2), "last axis of rate must be 3"),
        (1.0, -torch.ones(3), "rate"),
    ],
)
def test_gamma_normal_refuses(concentration, rate, message):
    with pytest.raises(ValueError, match=message):
        GammaNormal(torch.zeros(3), concentration, rate, validate_args=True)  # dynamo turns the default off


# --- the diagonal against the full Gaussian ---


def test_divergence_of_a_diagonal_to_a_full_gaussian():
    root = torch.randn(4, 4, **f64)
    full = MultivariateNormal(torch.randn(5, 4, **f64), root @ root.T + torch.eye(4, **f64))
    loc, scale = torch.randn(5, 4, **f64), torch.rand(5, 4, **f64) + 0.1
    same = MultivariateNormal(loc, torch.diag_embed(scale**2))
    torch.testing.assert_close(kl_divergence(diagonal(loc, scale), full), kl_divergence(same, full))
    with pytest.raises(NotImplementedError):
        kl_divergence(Independent(Laplace(loc, scale), 1), full)


# --- draw ---


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_antithetic_draws_mirror_each_other_about_the_location(samples):
    loc = torch.randn(3, 2, **f64)
    for q in (GammaNormal(loc, 1.0, torch.ones(3, 2, **f64)), diagonal(loc, torch.ones(3, 2, **f64))):
        away = draw(q, samples, "antithetic", seeded()) - loc
        assert away.shape == (samples, 3, 2)
        pairs = samples // 2
        torch.testing.assert_close(away[0 : 2 * pairs : 2], -away[1 : 2 * pairs : 2])
        assert not torch.isclose(away[0].abs(), away[2::2].abs()).any()  # other pairs are other draws


def test_multivariate_normal_draws_have_its_covariance():
    covariance = torch.tensor([[2.0, 0.9], [0.9, 1.0]])
    q = MultivariateNormal(torch.tensor([1.0, -1.0]), covariance)
    for method in METHODS:
        theta = draw(q, 16_384, method, seeded())
        torch.testing.assert_close(theta.T.cov(), covariance, atol=0.08, rtol=0)
        torch.testing.assert_close(theta.mean(0), q.loc, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "q", [diagonal(torch.zeros(512, 2), torch.ones(1, 2)), GammaNormal(torch.zeros(512, 2), 1.0, torch.ones(1, 2))]
)
def test_sobol_averages_are_closer_than_random_ones(q):
    def error(method):
        average = torch.sigmoid(3 * draw(q, 64, method, seeded()).sum(-1) + 1).mean(0)  # over S, for each of 512 inputs
        return average.std().item(), average.mean().item()

    (random, mean), (sobol, other) = error("random"), error("sobol")
    assert sobol < random / 2
    assert other == pytest.approx(mean, abs=5 * random / 512**0.5)  # and no bias is paid for it


@pytest.mark.parametrize("method", METHODS)
def test_first_draws_may_be_transformed_and_exported(method):
    class Draws(torch.nn.Module):
        def forward(self, loc):
            return draw(GammaNormal(loc, 1.0, torch.ones_like(loc), validate_args=False), 3, method)

    _sobol.cache_clear()
    loc = torch.zeros(4, 2)
    mapped = torch.func.vmap(Draws(), randomness="different")(loc)
    assert mapped.unique().numel() == 24
    _sobol.cache_clear()
    assert torch.equal(torch.func.grad(lambda loc: Draws()(loc).sum())(loc), torch.full((4, 2), 3.0))
    _sobol.cache_clear()
    assert torch.export.export(Draws(), (loc,)).module()(loc).shape == (3, 4, 2)


@pytest.mark.parametrize("method", METHODS)
def test_inputs_of_a_batch_are_drawn_independently(method):
    theta = draw(GammaNormal(torch.zeros(2, 3, 1), 1.0, torch.ones(1)), 4, method, seeded())
    assert theta[0].unique().numel() == 6


@pytest.mark.parametrize("method", METHODS)
def test_heavy_tails_stay_finite(method):
    q = GammaNormal(torch.zeros(100_000, 1), 0.05, torch.ones(1, 1))  # a tenth of a degree of freedom
    theta = draw(q, 4, method, seeded())
    assert theta.isfinite().all()
    assert theta.abs().max() > 1e9


def test_a_generator_reaches_every_method_and_the_global_one_is_left_alone():
    q = diagonal(torch.zeros(4, 2), torch.ones(4, 2))
    before = torch.get_rng_state()
    for method in METHODS:
        assert torch.equal(draw(q, 3, method, seeded(1)), draw(q, 3, method, seeded(1)))
        assert not torch.equal(draw(q, 3, method, seeded(1)), draw(q, 3, method, seeded(2)))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(0)
    first = [draw(q, 3, method) for method in METHODS]
    torch.manual_seed(0)
    assert all(torch.equal(a, draw(q, 3, method)) for a, method in zip(first, METHODS, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_correlated_draws_keep_their_digits_under_autocast(method):
    q = MultivariateNormal(torch.zeros(4, 2), scale_tril=torch.tensor([[1.0, 0.0], [0.7, 0.3]]))
    exact = draw(q, 3, method, seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(draw(q, 3, method, seeded()), exact)


def test_other_distributions_are_drawn_from_as_they_can():
    q = Independent(Laplace(torch.zeros(4, 2), torch.ones(4, 2)), 1)
    assert draw(q, 3).shape == (3, 4, 2)
    with pytest.raises(TypeError, match="sobol draws"):
        draw(q, 3, "sobol")


def test_draw_refuses():
    q = Delta(torch.zeros(2))
    with pytest.raises(ValueError, match="at least one"):
        draw(q, 0)
    with pytest.raises(ValueError, match="'random', 'antithetic', 'sobol'"):
        draw(q, 1, "halton")


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from(METHODS),
    st.booleans(),
)
def test_shapes(batch, dim, samples, method, together):
    loc = torch.zeros(*batch, dim)
    q = GammaNormal(loc, 1.0, torch.ones(*batch, 1 if together else dim))
    for each in (
        Delta(loc),
        q,
        diagonal(loc, torch.ones_like(loc)),
        MultivariateNormal(loc, torch.eye(dim), validate_args=False),
    ):
        assert draw(each, samples, method).shape == (samples, *batch, dim)


# --- the Gamma quantile ---


@pytest.mark.parametrize("alpha", [0.001, 0.01, 0.05, 0.5, 0.9, 1.0, 1.5, 3.0, 40.0, 1000.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 3e-5)])
def test_gamma_quantile_is_scipys(alpha, dtype, tolerance):
    eps = torch.finfo(dtype).eps
    tail = torch.logspace(math.log10(eps), -2, 40, **f64)
    u = torch.cat([tail, torch.linspace(0.01, 0.99, 99, **f64), 1 - tail[1:]]).to(dtype)
    expected = scipy.stats.gamma.ppf(u.double().numpy(), alpha)
    expected = np.maximum(expected, torch.finfo(dtype).tiny)
    extra = 0.0 if alpha >= 0.05 else 1e-6 if dtype is torch.float64 else 1e-4
    np.testing.assert_allclose(gamma_quantile(u, alpha).double().numpy(), expected, rtol=tolerance + extra)
