"""Autoencoders: shapes of any picture, divergences, temperature, the transformer's laws, fleets, bad input."""

import copy
import math

import pytest
import torch
from torch.distributions import Independent, Normal, OneHotCategorical, kl_divergence

from pstn import CPAB, TPS, Affine, Gaussian, Point, Projective, Similarity, StudentT, nets, warp
from pstn.data import Data
from pstn.train import Member, Train, fit, fit_fleet
from pstn.vae import VAE, Bound, CategoricalVAE, Paired, front, paired_error, undo

SHAPE, HIDDEN = (1, 12, 12), (4, 6, 8)
POSTERIORS = [Point(), Gaussian(prior_scale=0.2, spread=0.05), StudentT(spread=0.05)]


def small_front(posterior=None, family=None, **options):
    localizer = nets.localizer(SHAPE, channels=(3, 4), kernel=3)
    return front(SHAPE, family or Similarity(), posterior, localizer=localizer, **options)


def small(kind, **options):
    return kind(SHAPE, 3, hidden=HIDDEN, **options)


def blobs(n, shape=SHAPE, seed=0):
    """Smooth pictures that are 0 towards the border."""
    generator = torch.Generator().manual_seed(seed)
    height, width = shape[1:]
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    at = 0.3 * torch.rand(n, shape[0], 2, 1, 1, generator=generator) - 0.15
    return torch.exp(-((x - at[:, :, 0]) ** 2 + 2 * (y - at[:, :, 1]) ** 2) / 0.08)


KINDS = [VAE, CategoricalVAE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 30), (2, 1, 5)])
def test_shapes_follow_the_picture(kind, shape):
    model = kind(shape, 4, hidden=HIDDEN)
    x = torch.randn(3, *shape)
    out = model(x, samples=2)
    assert out.drawn.shape == (2, 3, *shape)
    assert out.z.shape == (2, 3, model.width)
    assert out.kl.shape == out.error.shape == out.pose_kl.shape == (3,)
    assert model.encode(x).shape == model.features(x).shape == (3, model.width)
    assert model.reconstruct(x).shape == x.shape
    assert model.sample(5).shape == (5, *shape)
    assert model.interpolate(x, x.flip(0), steps=4).shape == (4, 3, *shape)
    lines = model.traverse(x[:1], steps=5)
    assert lines.shape == (4, 5, *shape)  # four numbers, or four variables


@pytest.mark.parametrize("kind", KINDS)
def test_networks_of_another_precision_draw_in_it(kind):
    model, x = small(kind).double(), blobs(2).double()
    for drawn in (model.sample(3), model.interpolate(x[:1], x[1:], 3), model.traverse(x[:1])):
        assert drawn.dtype == torch.float64


def test_three_hidden_layers_each_way():
    model = VAE((1, 28, 28))
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.encoder) == 3
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.decoder) == 3


def test_gaussian_divergence_and_draws():
    model, h = small(VAE), torch.randn(4, 6)
    q = Independent(Normal(h[:, :3], (h[:, 3:] / 2).exp()), 1)
    p = Independent(Normal(torch.zeros(4, 3), torch.ones(4, 3)), 1)
    torch.testing.assert_close(model.divergence(h), kl_divergence(q, p))
    z = model.draw(h.expand(20_000, 4, 6))
    torch.testing.assert_close(z.mean(0), q.mean, atol=0.08, rtol=0.05)
    torch.testing.assert_close(z.std(0), q.stddev, atol=0.05, rtol=0.05)


def test_categorical_divergence():
    model, h = CategoricalVAE(SHAPE, 3, 5, hidden=HIDDEN), 2 * torch.randn(4, 15)
    q = Independent(OneHotCategorical(logits=h.view(4, 3, 5)), 1)
    p = Independent(OneHotCategorical(logits=torch.zeros(4, 3, 5)), 1)
    torch.testing.assert_close(model.divergence(h), kl_divergence(q, p))
    sure = torch.tensor([[1e4] + [0.0] * 4] * 3).view(1, 15)  # probabilities of exactly 0
    torch.testing.assert_close(model.divergence(sure), torch.tensor([3 * math.log(5)]))
    assert model.draw(sure).isfinite().all()


def test_temperature_limits():
    h = torch.tensor([1.0, 0.0, -1.0, 0.5]).expand(20_000, 4)
    cold = CategoricalVAE(SHAPE, 1, 4, hidden=HIDDEN, temperature=1e-3, coldest=1e-3)
    hot = CategoricalVAE(SHAPE, 1, 4, hidden=HIDDEN, temperature=1e4, coldest=1e4)
    z = cold.draw(h)
    assert (z.max(-1).values > 0.99).float().mean() > 0.99  # one category
    torch.testing.assert_close(z.mean(0), h[0].softmax(0), atol=0.02, rtol=0)  # with the right probabilities
    torch.testing.assert_close(hot.draw(h), torch.full_like(h, 0.25), atol=2e-3, rtol=0)  # all the same


def test_temperature_falls_in_training_only():
    model = small(CategoricalVAE, temperature=1.0, coldest=0.9, rate=0.05)
    x = torch.rand(2, *SHAPE)
    assert float(model.temperature) == 1.0
    model(x)
    assert float(model.temperature) == pytest.approx(math.exp(-0.05))
    model.eval()(x)
    assert float(model.temperature) == pytest.approx(math.exp(-0.05))
    again = small(CategoricalVAE, temperature=1.0, coldest=0.9, rate=0.05)
    again.load_state_dict(model.state_dict())
    assert float(again.temperature) == float(model.temperature)
    model.train()
    for _ in range(5):
        model(x)
    assert float(model.temperature) == pytest.approx(0.9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compare", ["observed", "canonical"])
def test_an_identity_transformer_changes_nothing(kind, compare):
    plain = small(kind).eval()
    model = small(kind, front=small_front(), compare=compare).eval()  # heads start at the identity
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith("front.") for name in missing)
    x = torch.randn(3, *SHAPE)
    ours, theirs = model(x, samples=0), plain(x, samples=0)
    for name in ("drawn", "target", "canonical", "code", "z", "kl", "error"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)
def test_any_posterior(posterior):
    model = small(VAE, front=small_front(posterior))
    out = model(torch.rand(4, *SHAPE), samples=3)
    looks = 1 if isinstance(posterior, Point) else 3
    assert out.pose.theta.shape == (looks, 4, 4)
    assert out.drawn.shape == (3, 4, *SHAPE)
    assert (out.pose_kl > 0).all() != isinstance(posterior, Point)
    Bound()(out).backward()
    assert all(p.grad is not None for p in model.encoder.parameters())
    heads = [p.grad for t in model.transformers for p in t.head.loc.parameters()]
    assert any(g.abs().max() > 0 for g in heads), "the bound does not reach the transformer"


@pytest.mark.parametrize(
    "family", [Similarity(), Affine(), Affine(scale="linear"), Projective(), CPAB((2, 2))], ids=str
)
def test_undo_is_the_inverse(family):
    theta = 0.2 * torch.randn(5, family.dim, dtype=torch.float64)
    points = torch.rand(5, 9, 2, dtype=torch.float64) - 0.5
    back = undo(family, theta)
    torch.testing.assert_close(family(back, family(theta, points)), points, atol=1e-6, rtol=0)
    torch.testing.assert_close(back, family.inverse(theta))


def test_undo_stays_finite_where_there_is_no_inverse():
    theta = torch.tensor([[-1.0, 0.0, 0.0, -1.0, 0.0, 0.0]], requires_grad=True)  # the matrix of zeros
    back = undo(Affine(scale="linear"), theta)
    assert back.isfinite().all()


def test_canonical_to_observed_and_back():
    """A drawing that is the canonical picture itself lands on the observed one."""
    model = VAE((1, 40, 40), 3, hidden=HIDDEN, front=front((1, 40, 40), Similarity()))
    x = blobs(6, (1, 40, 40))
    theta = torch.tensor([0.17, 0.15, 0.1, -0.1]) * torch.randn(6, 4)
    canonical = warp(x, model.front.family, theta)
    back = model._back(canonical[None], theta[None], x.shape[2:])[0]
    error, moved = (back - x).abs().max(), (canonical - x).abs().max()
    assert error < 0.1 < 0.2 < moved


def test_a_known_pose_takes_pose_out_of_the_code():
    """With a front that finds the pose, codes of a picture and of its twin are alike."""
    x = blobs(4)
    model = small(VAE, front=small_front())
    plain = small(VAE)
    shift = torch.tensor([[0.0, 0.0, 2 * 2 / 12, 0.0]]).expand(4, 4)  # two pixels
    twin = warp(x, Similarity(), undo(Similarity(), shift))
    apart = (plain.encode(x) - plain.encode(twin)).norm()
    model.load_state_dict(plain.state_dict(), strict=False)
    (transformer,) = model.transformers
    with torch.no_grad():
        transformer.head.loc[-1].bias.copy_(shift[0])
    together = (plain.encode(x) - model.encode(twin)).norm()
    assert together < 0.2 * apart


def test_the_bound():
    model = small(VAE, front=small_front(Gaussian(prior_scale=0.2, spread=0.05)))
    out = model(torch.rand(4, *SHAPE), samples=2)
    expected = (out.drawn - out.target).square().mean((0, 2, 3, 4)) + 0.5 * out.kl + 0.25 * out.pose.kl
    torch.testing.assert_close(Bound(0.5, 0.25)(out), expected.mean())
    torch.testing.assert_close(Bound(0.5).each(out) - Bound(0.5, 0.0).each(out), 0.5 * out.pose_kl)


def test_the_gauge_holds_the_mean_pose_and_nothing_else():
    out = small(VAE, front=small_front())(torch.rand(4, *SHAPE))
    plain, held = Bound(), Bound(gauge=2.0)
    torch.testing.assert_close(held(out), plain(out))  # all at the identity
    apart = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]]).expand(4, 4)
    out.pose.theta = apart[None]  # far away, but not on average
    torch.testing.assert_close(held(out), plain(out))
    out.pose.theta = apart[None] + 0.5
    torch.testing.assert_close(held(out), plain(out) + 2 * 4 * 0.25)


def test_a_front_of_another_size():
    """The canonical picture may be larger or smaller than the observed one."""
    model = VAE((1, 8, 8), 3, hidden=HIDDEN, front=small_front(size=(8, 8)))
    out = model(torch.rand(2, *SHAPE))
    assert out.canonical.shape == (1, 2, 1, 8, 8)
    assert out.drawn.shape == out.target.shape == (1, 2, *SHAPE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("posterior", [None, *POSTERIORS[:2]], ids=["none", "Point", "Gaussian"])
def test_a_member_of_a_fleet_ends_as_if_alone(kind, posterior):
    data = Data(blobs(24) + 0.1 * torch.randn(24, *SHAPE), torch.arange(24) % 2, ("a", "b"))
    other = Data(data.x.flip(-1).contiguous(), data.y, data.classes)

    def member(seed, data):
        torch.manual_seed(seed)
        model = small(kind, front=None if posterior is None else small_front(posterior))
        config = Train(
            epochs=3, batch_size=8, lr=3e-3, localizer_lr=1.0, optimizer="adamw", seed=seed, accelerator="cpu"
        )
        return Member(model, data, None, config, loss=Bound())

    alone = [member(0, data), member(1, other)]
    runs = [fit(m.model, m.train, None, m.config, loss=m.loss, progress=False) for m in alone]
    together = [member(0, data), member(1, other)]
    start = copy.deepcopy(together[0].model.state_dict())
    fleet = fit_fleet(together, progress=False)
    for run, one in zip(runs, fleet, strict=True):
        for name, value in run.model.state_dict().items():
            torch.testing.assert_close(one.model.state_dict()[name], value, atol=2e-5, rtol=1e-4, msg=name)
        assert one.history[-1]["loss"] < one.history[0]["loss"]
    assert any(not torch.equal(value, start[name]) for name, value in fleet[0].model.state_dict().items())
    if kind is CategoricalVAE:
        assert [float(run.model.age) for run in fleet] == [9.0, 9.0]


def test_training_on_pairs_finds_the_pose():
    x = blobs(64)
    theta = torch.zeros(64, 4)
    theta[:, 2] = 0.4 * torch.rand(64) - 0.2
    moved = warp(x, Similarity(), theta)
    data = Data(torch.cat([moved, x], dim=1), torch.zeros(64, dtype=torch.int64), ("a",))
    model = Paired(small_front())
    before = paired_error(model(data.x)).item()
    config = Train(epochs=25, batch_size=16, lr=1e-2, localizer_lr=1.0, accelerator="cpu")
    fit(model, data, None, config, loss=paired_error, progress=False)
    assert paired_error(model(data.x)).item() < 0.6 * before
    with pytest.raises(ValueError, match="twin"):
        model(x)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_pictures_are_refused(kind):
    model = small(kind)
    with pytest.raises(ValueError, match=r"pictures have shape .* expected \(B, 1, 12, 12\)"):
        model(torch.rand(2, 1, 12, 11))
    with pytest.raises(ValueError, match="pictures have shape"):
        model.encode(torch.rand(2, 3, 12, 12))
    with pytest.raises((ValueError, TypeError)):
        model(torch.zeros(2, *SHAPE, dtype=torch.int64))
    with pytest.raises(ValueError, match="samples"):
        model(torch.rand(2, *SHAPE), samples=-1)
    with pytest.raises(ValueError, match="codes have shape"):
        model.decode(torch.rand(2, model.width + 1))
    bad = torch.rand(2, *SHAPE)
    bad[1, 0, 3, 3] = math.nan
    for call in (model.encode, model.features, model.reconstruct):
        with pytest.raises(ValueError, match="NaN"):
            call(bad)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: VAE(SHAPE, 0), "latent is 0"),
        (lambda: CategoricalVAE(SHAPE, -1), "latent is -1"),
        (lambda: CategoricalVAE(SHAPE, 3, 1), "categories is 1"),
        (lambda: CategoricalVAE(SHAPE, temperature=0.5, coldest=1.0), "temperature"),
        (lambda: CategoricalVAE(SHAPE, rate=-1.0), "rate"),
        (lambda: VAE((28, 28)), "shape is"),
        (lambda: VAE((1, 0, 28)), "shape is"),
        (lambda: VAE(SHAPE, hidden=()), "hidden is"),
        (lambda: VAE(SHAPE, compare="nowhere"), "compare"),
        (lambda: VAE(SHAPE, front=small_front(family=TPS())), "inverse"),
        (lambda: Bound(-1.0), "kl_weight"),
        (lambda: Bound(1.0, math.nan), "pose_weight"),
    ],
)
def test_bad_settings_are_refused(make, match):
    with pytest.raises((ValueError, TypeError), match=match):
        make()
