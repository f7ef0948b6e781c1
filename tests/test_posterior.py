import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

from pstn import STN, Translation, nets
from pstn.data import Data
from pstn.distributions import Delta, GammaNormal, draw
from pstn.posterior import FLOOR, Gaussian, Head, Learned, Point, Posterior, StudentT
from pstn.testing.posteriors import assert_posterior
from pstn.train import Train, fit, seeded

COVARIANCE = [[1.0, 0.5, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.3], [0.0, 0.0, 0.3, 0.5]]
POSTERIORS = [
    Point(),
    Point(hidden=(5,)),
    Gaussian(),
    Gaussian(prior_scale=(0.1, 0.2, 0.3, 0.4), spread=0.5, hidden=(7,)),
    Gaussian(prior_mean="posterior"),
    Gaussian(covariance=COVARIANCE),
    StudentT(),
    StudentT(per="input", hidden=(7, 5)),
    StudentT(alpha=2.5, beta0=0.2, spread=0.3),
    StudentT(alpha=0.4, per="input"),
    Learned(),
    Learned(prior_scale=0.5, spread=0.3, narrow=1.0, centred=False),
]


@pytest.mark.parametrize("spec", POSTERIORS, ids=str)
def test_laws(spec):
    assert isinstance(spec, Posterior)
    assert_posterior(spec)


@pytest.mark.parametrize("spec", POSTERIORS, ids=str)
def test_specifications_are_plain_data(spec):
    assert dataclasses.replace(spec) == spec
    assert hash(spec) == hash(dataclasses.replace(spec))
    assert type(spec)(**dataclasses.asdict(spec)) == spec
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.hidden = (3,)


# --- the laws can fail ---


@dataclasses.dataclass(frozen=True)
class Broken:
    """A Gaussian with one thing wrong."""

    fault: str
    hidden: tuple[int, ...] = ()
    spread: float = 0.1

    def head(self, features, dim):
        return BrokenHead(self, features, dim, scales=dim, start=self.spread, floor=FLOOR)


class LyingNormal(Normal):
    def log_prob(self, value):
        return Normal(self.loc, 1.3 * self.scale).log_prob(value)


class BrokenHead(Head):
    def __init__(self, spec, *args, **options):
        super().__init__(spec, *args, **options)
        if spec.fault == "start":
            nn.init.constant_(self.loc[-1].bias, 0.01)
        if spec.fault == "spread":
            nn.init.constant_(self.scale[-1].bias, -1.0)

    def distribution(self, loc, scale):
        kind = LyingNormal if self.spec.fault == "density" else Normal
        if self.spec.fault == "gradient":
            scale = scale.detach()
        if self.spec.fault == "shape":
            return Normal(loc, scale)
        return Independent(kind(loc, scale, validate_args=False), 1, validate_args=False)

    def prior(self, q):
        if self.spec.fault == "divergence":  # a prior that is not the same each time
            return Independent(Normal(torch.randn_like(q.mean), torch.ones_like(q.mean), validate_args=False), 1)
        return Independent(Normal(torch.zeros_like(q.mean), torch.ones_like(q.mean), validate_args=False), 1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("start", "mode is not 0"),
        ("spread", "starts with spread"),
        ("density", "follow the density"),
        ("gradient", "gradients of random draws|no gradient"),
        ("shape", "shapes"),
        ("divergence", "gradients of the KL|vmap"),
    ],
)
def test_the_laws_catch(fault, message):
    with pytest.raises(AssertionError, match=message):
        assert_posterior(Broken(fault))


def test_the_laws_accept_the_same_thing_without_fault():
    assert_posterior(Broken("none"))


# --- facts of the papers ---


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("spec", "features", "dim", "parameters"),
    [
        (Point(), 288, 4, 288 * 4 + 4),  # STN'22, MNIST subsets
        (StudentT(), 224, 4, 2 * (224 * 4 + 4)),  # P-STN'22, MNIST subsets: two linear layers
        (StudentT(hidden=(20,)), 848, 1, 2 * (848 * 20 + 20 + 20 * 1 + 1)),  # rotated MNIST
        (Gaussian(hidden=(38,)), 224, 34, 2 * (224 * 38 + 38 + 38 * 34 + 34)),  # P-STN'20, diffeomorphisms
        (StudentT(per="input"), 224, 4, 224 * 4 + 4 + 224 + 1),
    ],
)
def test_parameter_counts(spec, features, dim, parameters):
    assert count(spec.head(features, dim)) == parameters


def test_the_papers_initial_values():
    h = torch.randn(3, 6)
    beta = StudentT().head(6, 4)(h).rate
    torch.testing.assert_close(beta, torch.full((3, 4), 0.006715), rtol=1e-4, atol=0)  # softplus(-5)
    head = StudentT().head(6, 4)
    q = head(h)
    torch.testing.assert_close(kl_divergence(q, head.prior(q)) / 4, torch.full((3,), 142.9), rtol=1e-3, atol=0)
    sigma = Gaussian().head(6, 4)(h).stddev
    torch.testing.assert_close(sigma, torch.full((3, 4), 0.126928), rtol=1e-4, atol=0)  # softplus(-2)
    tiny = StudentT(spread=math.sqrt(2.06e-9)).head(6, 4)(h).rate  # softplus(-20)
    torch.testing.assert_close(tiny, torch.full((3, 4), 2.06e-9), rtol=2e-3, atol=0)


def test_the_spread_is_that_of_theta_whatever_alpha():
    q = StudentT(alpha=3.0, spread=0.2).head(6, 4)(torch.randn(2, 6))
    torch.testing.assert_close(q.scale, torch.full((2, 4), 0.2))
    assert q.concentration == 3.0


def test_kinds_of_distribution():
    h = torch.randn(2, 6)
    assert isinstance(Point().head(6, 4)(h), Delta)
    assert Point().head(6, 4).prior(Delta(torch.zeros(2, 4))) is None
    q = StudentT(per="input").head(6, 4)(h)
    assert isinstance(q, GammaNormal)
    assert q.rate.shape == (2, 1)


def test_priors():
    h = torch.randn(2, 6)

    def prior(spec, shift=1.0):
        head = spec.head(6, 4)
        nn.init.constant_(head.loc[-1].bias, shift)
        return head.prior(head(h))

    torch.testing.assert_close(prior(Gaussian(0.3)).stddev, torch.full((2, 4), 0.3))
    torch.testing.assert_close(prior(Gaussian((0.1, 0.2, 0.3, 0.4))).stddev[1], torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert torch.equal(prior(Gaussian()).mean, torch.zeros(2, 4))
    assert torch.equal(prior(Gaussian(prior_mean="posterior")).mean, torch.ones(2, 4))
    torch.testing.assert_close(prior(Gaussian(covariance=COVARIANCE)).covariance_matrix[0], torch.tensor(COVARIANCE))
    t = prior(StudentT(alpha=2.0, beta0=0.7))
    assert torch.equal(t.loc, torch.ones(2, 4))
    torch.testing.assert_close(t.rate, torch.full((2, 4), 0.7))


def test_a_prior_at_the_posteriors_mean_holds_only_the_spread():
    for spec in (Gaussian(prior_mean="posterior"), StudentT()):
        head = spec.head(6, 4)
        q = head(torch.randn(3, 6))
        kl_divergence(q, head.prior(q)).sum().backward()
        assert not head.loc[-1].bias.grad.any()
        assert head.scale[-1].bias.grad.all()


def test_the_prior_is_not_part_of_the_weights():
    assert set(Gaussian().head(6, 4).state_dict()) == {"loc.0.weight", "loc.0.bias", "scale.0.weight", "scale.0.bias"}


def test_covariance_may_be_a_tensor():
    assert Gaussian(covariance=torch.tensor(COVARIANCE, dtype=torch.float64)) == Gaussian(covariance=COVARIANCE)


@pytest.mark.parametrize("spec", POSTERIORS[:9:2], ids=str)
def test_export_of_a_head_and_its_draws(spec):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = spec.head(6, 4)

        def forward(self, h):
            q = self.head(h)
            return q.mode, draw(q, 3)

    exported = torch.export.export(Both(), (torch.randn(5, 6),), dynamic_shapes=({0: torch.export.Dim("b")},))
    mode, theta = exported.module()(torch.randn(7, 6))
    assert mode.shape == (7, 4)
    assert theta.shape == (3, 7, 4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gaussian(prior_scale=-0.1), "prior_scale is -0.1"),
        (lambda: Gaussian(prior_scale=(0.1, 0.0)), "prior_scale is 0.0"),
        (lambda: Gaussian(spread=0.0), "use Point"),
        (lambda: Gaussian(spread=math.nan), "spread is nan"),
        (lambda: Gaussian(prior_mean="zero"), "'identity', 'posterior'"),
        (lambda: Gaussian(image_noise=-1.0), "image_noise is -1"),
        (lambda: Gaussian(covariance=[[1.0, 0.5]]), "symmetric"),
        (lambda: Gaussian(covariance=[[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
        (lambda: Gaussian(prior_scale=0.3, covariance=COVARIANCE), "not both"),
        (lambda: Gaussian(prior_scale=(0.1, 0.2)).head(6, 4), "2 dimensions; θ has 4"),
        (lambda: Gaussian(covariance=COVARIANCE).head(6, 3), "4 dimensions; θ has 3"),
        (lambda: StudentT(alpha=0.0), "alpha is 0"),
        (lambda: StudentT(beta0=-1.0), "beta0 is -1"),
        (lambda: StudentT(per="image"), "'dimension', 'input'"),
        (lambda: Point(hidden=(0,)), "hidden is"),
        (lambda: Point().head(0, 4), "at least 1"),
        (lambda: Point().head(6, 4)(torch.zeros(2, 5)), "needs \\(..., 6\\)"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_what_does_not_matter_is_learned_to_vary():
    """The class is where a bar is along x; where it is along y says nothing. So y may vary, and x may not."""
    with seeded(0):
        y = torch.arange(24) % 2
        x = 0.1 * torch.randn(24, 1, 12, 12)
        x[torch.arange(24), 0, :, 3 + 4 * y] += 2.0
        body = nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
        model = STN(body, nets.blind(), Translation(2), Learned(spread=0.05))
    config = Train(epochs=150, batch_size=8, lr=1e-2, kl_weight=5.0, kl_per="dataset", accelerator="cpu")
    fit(model, Data(x, y, ("left", "right")), config=config, progress=False)
    across, along = model(x).posterior.stddev[0].tolist()
    assert along > 3 * across
    assert along > 0.3


def test_a_learned_spread_says_how_it_wants_to_be_trained():
    data = Data(torch.rand(8, 1, 6, 6), torch.arange(8) % 2, ("a", "b"))
    config = Train(epochs=1, batch_size=4, accelerator="cpu")

    def model():
        return STN(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), nets.blind(), Translation(2), Learned())

    with pytest.warns(UserWarning, match=r"kl_per='dataset', kl_weight=18"):
        fit(model(), data, config=config, progress=False)
    fit(model(), data, config=dataclasses.replace(config, kl_per="dataset"), progress=False)
    held = model()
    held.transformers[0].head.growth.requires_grad_(False)
    fit(held, data, config=config, progress=False)


def test_wrong_numbers_of_a_learned_spread_are_refused():
    for options, match in (
        ({"narrow": 0.0}, "narrow is 0"),
        ({"narrow": 1.5}, "narrow"),
        ({"prior_scale": -1.0}, "prior"),
    ):
        with pytest.raises(ValueError, match=match):
            Learned(**options)


def test_a_learned_spread_has_a_prior_for_each_parameter():
    head = Learned(prior_scale=(0.5, 2.0), spread=0.1).head(features=3, dim=2)
    q = head(torch.zeros(4, 3))
    assert torch.allclose(head.prior(q).stddev, torch.tensor([0.5, 2.0]).expand(4, 2))
    with pytest.raises(ValueError, match="2 dimensions; θ has 3"):
        Learned(prior_scale=(0.5, 2.0)).head(features=3, dim=3)


class Packed(nn.Module):
    """A linear layer as torch's dynamic quantisation leaves it: what it knows is no parameter."""

    def __init__(self, linear):
        super().__init__()
        self.packed = linear.weight.detach(), linear.bias.detach()

    def forward(self, x):
        return nn.functional.linear(x, *self.packed)


@pytest.mark.parametrize("spec", [Point(), Gaussian(hidden=(5,)), StudentT()], ids=str)
def test_heads_work_when_their_layers_are_packed(spec):
    head, h = spec.head(6, 4).eval(), torch.randn(3, 6)
    mode = head(h).mode
    for layers in filter(None, (head.loc, head.scale)):
        for i, layer in enumerate(layers):
            layers[i] = Packed(layer) if isinstance(layer, nn.Linear) else layer
    assert torch.equal(head(h).mode, mode)


@pytest.mark.parametrize("make", [Gaussian, Learned])
def test_prior_scales_may_be_arrays_and_become_plain_data(make):
    plain = make(prior_scale=(0.25, 0.5))
    for scale in ([0.25, 0.5], torch.tensor([0.25, 0.5]), np.array([0.25, 0.5], dtype=np.float32)):
        assert make(prior_scale=scale) == plain
    assert make(prior_scale=torch.tensor(0.25)) == make(prior_scale=np.float32(0.25)) == make(prior_scale=0.25)
    with pytest.raises(ValueError, match="expected a positive number"):
        make(prior_scale=torch.tensor([0.1, -0.1]))
