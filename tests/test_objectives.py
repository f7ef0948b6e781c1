import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence

from pstn.distributions import draw
from pstn.objectives import KLWeight, elbo, log_likelihood, log_mean_exp, nll
from pstn.posterior import Gaussian, Point, StudentT

CLASSES = 5


def output(spec, samples=4, batch=6, looks=1, dim=3, seed=0):
    """What a model would return, with heads that have left the identity."""
    torch.manual_seed(seed)
    stages = []
    for n in range(looks):
        head = spec.head(4, dim)
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        q = head(torch.randn(batch, 4) if n == 0 else torch.randn(samples, batch, 4))
        theta = draw(q, samples) if n == 0 else draw(q, 1)[0]
        stages.append(SimpleNamespace(theta=theta, posterior=q, prior=head.prior(q)))
    total = torch.zeros(batch)
    for stage in stages:
        if stage.prior is not None:
            kl = kl_divergence(stage.posterior, stage.prior)
            total = total + (kl.mean(0) if kl.ndim > 1 else kl)
    return SimpleNamespace(logits=torch.randn(samples, batch, CLASSES), stages=tuple(stages), kl=total)


def labels(*shape):
    return torch.randint(CLASSES, shape or (6,), generator=torch.Generator().manual_seed(3))


SPECS = [Point(), Gaussian(), StudentT(), StudentT(per="input")]


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_elbo_is_mean_log_likelihood_and_divergence(spec, looks):
    out, y = output(spec, looks=looks), labels()
    cross_entropy = torch.stack([F.cross_entropy(logits, y) for logits in out.logits]).mean()
    whole = elbo(out, y, 0.3, "input")
    torch.testing.assert_close(whole, cross_entropy + 0.3 * out.kl.mean())
    averaged = elbo(out, y, 0.3, "dimension")
    torch.testing.assert_close(averaged, cross_entropy + 0.3 * out.kl.mean() / (3 * looks))
    torch.testing.assert_close(elbo(out, y, 0.0), cross_entropy)


def test_nll_averages_probabilities():
    out, y = output(Point()), labels()
    expected = -out.logits.softmax(-1).mean(0)[torch.arange(6), y].log().mean()
    torch.testing.assert_close(nll(out, y), expected)
    assert nll(out, y) < elbo(out, y)  # Jensen


def test_both_are_the_cross_entropy_for_one_sample():
    out, y = output(Point(), samples=1), labels()
    expected = F.cross_entropy(out.logits[0], y)
    for loss in (elbo(out, y), nll(out, y), elbo(out, y, bound="iw")):
        torch.testing.assert_close(loss, expected)


def test_the_importance_weighted_bound_without_prior_is_nll():
    out, y = output(Point()), labels()
    torch.testing.assert_close(elbo(out, y, bound="iw"), nll(out, y))
    out = output(StudentT())
    torch.testing.assert_close(elbo(out, y, 0.0, bound="iw"), nll(out, y))


@pytest.mark.parametrize("spec", SPECS[1:], ids=str)
def test_the_importance_weighted_bound_of_one_sample(spec):
    """With S = 1 it is the log-likelihood and w times the log-ratio of that sample."""
    out, y = output(spec, samples=1), labels()
    ratio = out.stages[0].posterior.log_prob(out.stages[0].theta) - out.stages[0].prior.log_prob(out.stages[0].theta)
    torch.testing.assert_close(elbo(out, y, 0.4, "input", "iw"), nll(out, y) + 0.4 * ratio.mean())
    torch.testing.assert_close(elbo(out, y, 0.4, "dimension", "iw"), nll(out, y) + 0.4 * ratio.mean() / 3)


def test_the_importance_weighted_bound_closes_on_the_evidence():
    """A model with a known evidence: θ ~ N(0, 1), logits (θ, 0); q is wrong on purpose."""
    torch.manual_seed(0)
    q, prior = (
        Independent(Normal(torch.full((2000, 1), m), torch.full((2000, 1), s)), 1) for m, s in ((0.5, 1.5), (0.0, 1.0))
    )
    y = torch.zeros(2000, dtype=torch.int64)
    evidence = math.log(0.5)  # by symmetry

    def bound(samples, kind):
        theta = draw(q, samples)
        out = SimpleNamespace(
            logits=torch.cat([theta, torch.zeros_like(theta)], -1),
            stages=(SimpleNamespace(theta=theta, posterior=q, prior=prior),),
            kl=kl_divergence(q, prior),
        )
        return elbo(out, y, 1.0, "input", kind).item()

    one, few, many = (bound(s, "iw") for s in (1, 5, 200))
    assert one == pytest.approx(bound(200, "elbo"), abs=0.1)
    assert one > few + 0.05
    assert few > many
    assert many == pytest.approx(-evidence, abs=0.02)


@pytest.mark.parametrize("spec", SPECS[1:], ids=str)
@pytest.mark.parametrize("bound", ["elbo", "iw"])
def test_gradients_reach_the_posterior(spec, bound):
    head = spec.head(4, 3)
    q = head(torch.randn(6, 4))
    theta = draw(q, 4)
    stage = SimpleNamespace(theta=theta, posterior=q, prior=head.prior(q))
    logits = torch.randn(4, 6, CLASSES) * theta.sum(-1, keepdim=True)
    loss = elbo(
        SimpleNamespace(logits=logits, stages=(stage,), kl=kl_divergence(q, stage.prior)), labels(), bound=bound
    )
    loss.backward()
    for parameter in (head.loc[-1].bias, head.scale[-1].bias):
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 3), st.integers(2, 4), st.integers(0, 100))
def test_order_of_samples_and_heads_does_not_matter(samples, batch, heads, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads) if heads else (batch,)
    logits = torch.randn(samples, *shape, classes, generator=generator)
    y = torch.randint(classes, shape, generator=generator)
    out = SimpleNamespace(logits=logits, stages=(), kl=torch.zeros(batch))
    mixed = SimpleNamespace(logits=logits[torch.randperm(samples, generator=generator)], stages=(), kl=out.kl)
    each = log_likelihood(logits, y)
    assert each.shape == (samples, batch)
    for loss in (elbo, nll):
        torch.testing.assert_close(loss(out, y), loss(mixed, y))
    if heads:  # the labels of an input are independent given θ
        separate = sum(log_likelihood(logits[:, :, h], y[:, h]) for h in range(heads))
        torch.testing.assert_close(each, separate)


def test_class_weight_and_label_smoothing_are_torchs():
    out, y = output(Point(), samples=1), labels()
    weight = torch.rand(CLASSES)
    expected = F.cross_entropy(out.logits[0], y, weight=weight, label_smoothing=0.1, reduction="none").mean()
    torch.testing.assert_close(elbo(out, y, class_weight=weight, label_smoothing=0.1), expected)


def test_low_precision_logits_are_summed_in_float32():
    out, y = output(Point()), labels()
    out.logits = out.logits.bfloat16()
    assert elbo(out, y).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_class_weights_need_not_be_of_the_logits_precision(dtype):
    out, y = output(Point()), labels()
    weight = torch.tensor([0.5, 2.0]).repeat(CLASSES)[:CLASSES]
    expected = elbo(out, y, class_weight=weight)
    out.logits = out.logits.double()
    torch.testing.assert_close(elbo(out, y, class_weight=weight.to(dtype)).float(), expected)


def test_labels_of_other_integer_types():
    out, y = output(Point()), labels()
    torch.testing.assert_close(nll(out, y.to(torch.uint8)), nll(out, y))


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (labels().float(), TypeError, "labels are torch.float32"),
        (labels() > 2, TypeError, "labels are torch.bool"),
        (labels()[:3], ValueError, "labels have shape \\(3,\\)"),
        (labels()[:, None], ValueError, "labels have shape \\(6, 1\\)"),
        (labels() + 3, ValueError, "need 0 ... 4"),
        (labels() - 1, ValueError, "labels go from -1"),
        (labels() * 0 - 100, ValueError, "labels go from -100"),
    ],
)
def test_bad_labels(y, error, message):
    for loss in (elbo, nll):
        with pytest.raises(error, match=message):
            loss(output(Point()), y)


def test_bad_names():
    with pytest.raises(ValueError, match="'dimension', 'input'"):
        elbo(output(Point()), labels(), kl_per="batch")
    with pytest.raises(ValueError, match="'elbo', 'iw'"):
        elbo(output(Point()), labels(), bound="iwae")


def test_vmap_over_models():
    """A fleet of models is one call: logits and labels of each under vmap."""
    logits, y = torch.randn(3, 4, 6, CLASSES), labels(3, 6)

    def loss(one, target):
        return nll(SimpleNamespace(logits=one), target)

    expected = torch.stack([loss(a, b) for a, b in zip(logits, y, strict=True)])
    torch.testing.assert_close(torch.func.vmap(loss)(logits, y), expected)


def test_log_mean_exp_does_not_overflow():
    x = torch.tensor([1000.0, 1000.0 + math.log(3)])
    assert log_mean_exp(x) == pytest.approx(1000 + math.log(2))


def test_kl_weight():
    weight = KLWeight(0.5, warmup=4)
    assert [weight(n) for n in range(6)] == [0, 0.125, 0.25, 0.375, 0.5, 0.5]
    assert KLWeight(0.5)(0) == 0.5
    with pytest.raises(ValueError, match="KL weight is -1"):
        KLWeight(-1.0)
    with pytest.raises(ValueError, match="warmup is -1"):
        KLWeight(1.0, warmup=-1)
