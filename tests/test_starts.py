"""Looks from several starts: a mixture over them, indifferent to which of them the input was turned by."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from pstn import SL, STN, C, Gaussian, Point, Similarity, elbo, nets, predict, warp
from pstn.data import Data
from pstn.families import TPS, Crop, Rotation
from pstn.placement import Placement, turns
from pstn.train import Member, Train, fit, fit_fleet, seeded

SHAPE = (1, 14, 14)


def network(starts=4, seed=0, trained=True, **options):
    """A network that has left its beginning: every weight has some value."""
    with seeded(seed):
        body = nn.Sequential(nn.Conv2d(1, 3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(300, 5))
        localizer = nets.localizer(SHAPE, channels=(4,), hidden=6)
        placement = C(0, starts=turns(starts)) if starts else C(0)
        model = STN(body, localizer, Rotation(), Point(), placement, **options)
        if trained:
            for parameter in model.transformers.parameters():
                nn.init.normal_(parameter, std=0.3)
    return model


def pictures(count, seed=0):
    with seeded(seed):
        return torch.rand(count, *SHAPE)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_turns_go_round_the_circle_from_the_identity(count):
    angles = torch.tensor(turns(count), dtype=torch.float64)[:, 0]
    assert angles[0] == 0
    assert (angles.abs() <= math.pi).all()
    gaps = angles.remainder(2 * math.pi).sort().values.diff()
    torch.testing.assert_close(gaps, torch.full_like(gaps, 2 * math.pi / count))


def test_in_the_beginning_all_starts_count_the_same():
    model, x = network(trained=False).eval(), pictures(3)
    out = model(x, samples=7)
    each = torch.stack([model.body(x.rot90(k, (2, 3))).softmax(-1) for k in range(4)])
    torch.testing.assert_close(out.logits[0].exp(), each.mean(0))
    assert torch.equal(out.theta, torch.zeros(1, 3, 1))
    torch.testing.assert_close(out.weights, torch.full((4, 3), 0.25))
    assert torch.equal(out.kl, torch.zeros(3))


def test_answers_are_as_precise_as_the_network():
    model, x = network(4).double().eval(), pictures(3).double()
    assert model(x).logits.dtype == torch.float64
    assert model.bfloat16()(x.bfloat16()).logits.dtype == torch.float32


def test_one_start_is_none():
    one, none, x = network(1).eval(), network(0).eval(), pictures(3)
    none.load_state_dict(one.state_dict(), strict=False)
    torch.testing.assert_close(one(x).logits, none(x).logits.log_softmax(-1))
    torch.testing.assert_close(one(x).theta, none(x).theta)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_an_input_turned_from_start_to_start_is_answered_the_same(quarters):
    model, x = network(4).eval(), pictures(6)
    out, turned = model(x), model(x.rot90(quarters, (2, 3)))
    torch.testing.assert_close(turned.logits, out.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(turned.warped, out.warped, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(turned.weights, out.weights, atol=1e-3), "the starts have changed their places"
    torch.testing.assert_close(turned.weights.sort(0).values, out.weights.sort(0).values, atol=1e-4, rtol=1e-4)


def test_the_answer_is_the_mixture_and_the_pose_is_of_the_most_probable_start():
    model, x = network(8).eval(), pictures(6)
    out = model(x)
    torch.testing.assert_close(out.logits.exp().sum(-1), torch.ones(1, 6))
    torch.testing.assert_close(out.weights.sum(0), torch.ones(6))
    assert out.weights.argmax(0).unique().numel() > 1
    torch.testing.assert_close(out.warped, warp(x, model.family, out.theta))
    starts = torch.tensor(turns(8))[:, None]
    poses = model.family.compose(starts.expand(8, 6, 1), out.posterior.mode)
    body = model.body(warp(x, model.family, poses).flatten(0, 1)).unflatten(0, (8, 6)).softmax(-1)
    torch.testing.assert_close(out.logits[0].exp(), (out.weights[..., None] * body).sum(0))
    torch.testing.assert_close(out.theta[0], poses[out.weights.argmax(0), torch.arange(6)])
    torch.testing.assert_close(predict(model, x, samples=5).log_probs, out.logits[0])


def test_starts_are_windows_where_the_family_has_them():
    starts = ((math.log(0.5), -0.5, -0.5), (math.log(0.5), 0.5, 0.5))
    localizer = nets.localizer((1, 7, 7), channels=(2,))
    model = STN(nn.Sequential(nn.Flatten(), nn.Linear(49, 5)), localizer, Crop(), placement=C(0, starts=starts),
                size=(7, 7))  # fmt: skip
    x = pictures(2)
    assert torch.allclose(model(x).warped[0], x[..., :7, :7], atol=1e-5)
    assert not torch.allclose(model(x).warped[0], x[..., 7:, 7:], atol=1e-2)


def test_every_weight_of_the_localizer_is_reached():
    model, x, y = network(4, frozen=True), pictures(6), torch.arange(6) % 5
    elbo(model(x), y).backward()
    for name, parameter in model.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.any())
        assert reached == name.startswith("transformers"), name


def test_it_learns_which_way_is_up():
    """A frozen body that tells bars on the left from bars on the right, and pictures turned by any quarter."""
    x = 0.1 * pictures(64)
    y = torch.arange(64) % 2
    x[y == 0, :, :, 2:4] += 1.0
    x[y == 1, :, :, 10:12] += 1.0
    x[:, :, :2] += 1.0  # the top
    body = nn.Sequential(nn.Flatten(), nn.Linear(196, 2))
    with torch.no_grad():
        sides = torch.where(torch.arange(14) < 7, 1.0, -1.0).expand(14, 14).flatten()
        body[1].weight.copy_(torch.stack([sides, -sides]) / 10)
        body[1].bias.zero_()
    turned = torch.stack([x[i].rot90(i // 2 % 4, (1, 2)) for i in range(64)])
    with seeded(0):
        localizer = nets.localizer(SHAPE, channels=(6,), hidden=8)
        model = STN(body, localizer, Rotation(), Point(), C(0, starts=turns(4)), frozen=True)
    data = Data(turned, y, ("left", "right"))
    assert (predict(model, turned).labels == y).float().mean() < 0.8
    settings = Train(steps=60, batch_size=32, lr=1e-2, localizer_lr=1.0, accelerator="cpu", validate_every=0)
    fit(model, data, config=settings, progress=False)
    assert (predict(model, turned).labels == y).float().mean() > 0.95


def test_a_fleet_of_them_is_each_alone():
    data = Data(pictures(20), torch.arange(20) % 5, tuple("abcde"))
    config = Train(epochs=2, batch_size=10, lr=1e-2, accelerator="cpu", validate_every=0)
    configs = [replace(config, seed=seed) for seed in (0, 1)]
    together = [network(4, seed) for seed in (0, 1)]
    fit_fleet([Member(m, data, config=c) for m, c in zip(together, configs, strict=True)], progress=False)
    for seed, (model, config) in enumerate(zip(together, configs, strict=True)):
        alone = network(4, seed)
        fit(alone, data, config=config, progress=False)
        assert not torch.allclose(alone.transformers[0].judge.weight, network(4, seed).transformers[0].judge.weight)
        for (name, a), b in zip(alone.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: turns(0), "at least one"),
        (lambda: SL(1, starts=turns(2)), "looks once from each"),
        (lambda: C(0, iterations=2, starts=turns(2)), "looks once from each"),
        (lambda: C(0, parallel=2, starts=turns(2)), "looks once from each"),
        (lambda: C(0, test_iterations=2, starts=turns(2)), "there is one each"),
        (lambda: Placement(starts=((0.0,), (0.0, 1.0))), "as many parameters"),
        (
            lambda: STN(nn.Flatten(), nn.Linear(1, 1), Rotation(), Gaussian(), C(0, starts=turns(2))),
            "mixture of points",
        ),
        (lambda: STN(nn.Flatten(), nn.Linear(1, 1), Similarity(), placement=C(0, starts=turns(2))), "1 parameters"),
        (lambda: network(4, size=(14, 14)).requires_grad_(False)(torch.rand(2, 1, 14)), "2-D"),
    ],
)
def test_bad_starts_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_what_cannot_be_composed_has_no_starts():
    with pytest.raises(TypeError, match="does not compose"):
        STN(nn.Flatten(), nn.Linear(1, 1), TPS(), placement=C(0, starts=((0.0,) * TPS().dim,)))


def test_answers_to_several_questions_are_refused():
    model = network(2)
    model.body = nn.Sequential(model.body, nn.Unflatten(1, (1, 5)))
    with pytest.raises(ValueError, match="one question"):
        model(pictures(2))
