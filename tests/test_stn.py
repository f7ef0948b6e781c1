"""The model: every family × posterior × placement that makes sense, and what each placement promises."""

import itertools

import pytest
import torch
from torch import nn

from pstn import CNN, DL, SL, STN, C, Gaussian, Placement, Point, StudentT, nets, param_groups, warp
from pstn.families import CPAB, TPS, Affine, Compose, Crop, Projective, Rotation, Similarity, Translation
from pstn.objectives import elbo

SHAPE = (1, 12, 12)
FAMILIES = [
    Translation(),
    Rotation(),
    Crop(),
    Similarity(),
    Affine(),
    Projective(),
    TPS(3),
    CPAB((2, 2)),
    Compose(Similarity(), CPAB((2, 1))),
]
POSTERIORS = [Point(), Gaussian(), StudentT(), StudentT(per="input"), Gaussian(image_noise=0.01, hidden=(16,))]
PLACEMENTS = {
    "C0": C(0),
    "C1": C(1),
    "DL1": DL(1),
    "SL1": SL(1),
    "SL2": SL(2),
    "C012": C(0, 1, 2),
    "SL01": SL(0, 1),
    "DL01": DL(0, 1),
    "C0x2": C(0, iterations=2),
    "C1x2": C(1, iterations=2),
    "SL1x2+1": SL(1, iterations=2, test_iterations=3),
    "2xC0": C(0, parallel=2, tile=0.5),
    "3 branches": C(0, parallel=3, merge="branches", tile=0.5),
}


class Pool(nn.Module):
    """A localizer for whatever it is given: the mean of each channel, and a hidden layer."""

    def __init__(self, channels, out=5):
        super().__init__()
        self.linear = nn.Linear(channels, out)

    def forward(self, x):
        return self.linear(x.flatten(2).mean(-1)).tanh()


def body(channels=1):
    layers = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in ((channels, 3), (3, 4))]
    return nn.Sequential(*layers, nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(16, 10))


def build(family, posterior, placement, **options):
    channels = {0: 1, 1: 3, 2: 4}
    localizers = [Pool(channels[d]) for d in placement.depths]
    if placement.parallel > 1 and placement.merge == "branches":
        branch = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        head = nn.Linear(8 * placement.parallel, 10)
        return STN(head, localizers, family, posterior, placement, branch=branch, **options)
    return STN(body(placement.parallel), localizers, family, posterior, placement, **options)


def sensible(family, placement):
    return not placement.composes or type(family).compose is not type(TPS()).compose


COMBINATIONS = [
    pytest.param(f, q, p, id=f"{type(f).__name__}-{type(q).__name__}-{n}")
    for f, q, (n, p) in itertools.product(FAMILIES, POSTERIORS, PLACEMENTS.items())
    if sensible(f, p)
]


@pytest.mark.parametrize(("family", "posterior", "placement"), COMBINATIONS)
def test_every_combination_trains(family, posterior, placement):
    torch.manual_seed(0)
    model = build(family, posterior, placement)
    x, y = torch.rand(4, *SHAPE), torch.arange(4)
    optimizer = torch.optim.Adam(param_groups(model, lr=1e-2))
    samples = 1 if isinstance(posterior, Point) else 2
    before = [p.clone() for p in model.parameters()]
    for _ in range(2):
        out = model(x, samples=2)
        assert out.logits.shape == (samples, 4, 10)
        assert out.theta.shape[:2] == (samples, 4)
        assert out.kl.shape == (4,)
        loss = elbo(out, y, kl_weight=1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite()
    # heads start at zero, so what stands before them moves from the second step on
    still = [n for (n, p), b in zip(model.named_parameters(), before, strict=True) if torch.equal(p, b)]
    assert not [n for n in still if "head" in n or "body" in n], still
    model.eval()
    assert model(x, samples=2).logits.isfinite().all()


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_at_the_start_every_look_is_the_identity(placement):
    model = build(Similarity(), Point(), placement).eval()
    x = torch.rand(3, *SHAPE)
    out = model(x)
    assert torch.equal(out.theta, torch.zeros_like(out.theta))
    if placement.parallel == 1:
        assert torch.allclose(out.logits[0], model.body(x), atol=1e-5)


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_an_empty_batch_has_empty_answers(placement):
    out = build(Similarity(), Gaussian(), placement)(torch.rand(0, *SHAPE), samples=2)
    assert out.logits.shape == (2, 0, 10)
    assert out.theta.shape[:2] == (2, 0)
    assert out.kl.shape == (0,)


@pytest.mark.parametrize("placement", [C(0), C(0, 1), C(0, parallel=2, tile=0.5)], ids=["C0", "C01", "tiles"])
def test_a_generator_fixes_everything_that_is_drawn(placement):
    model, x = build(Similarity(), Gaussian(image_noise=0.1), placement), torch.rand(3, *SHAPE)
    first, again, other = (model(x, 2, generator=torch.Generator().manual_seed(n)) for n in (1, 1, 2))
    assert torch.equal(first.logits, again.logits)
    assert not torch.equal(first.logits, other.logits)


def test_a_plain_network_is_an_stn_without_looks():
    net = body()
    x = torch.rand(3, *SHAPE)
    out = STN(net, placement=CNN)(x, samples=7)
    assert torch.equal(out.logits[0], net(x))
    assert out.theta is None
    assert out.posterior is None
    assert torch.equal(out.kl, torch.zeros(3))


def test_localizers_read_what_their_placement_says():
    x = torch.rand(2, *SHAPE)
    for placement, shared in ((SL(1), True), (DL(1), False), (C(1), None)):
        model = build(Similarity(), Gaussian(), placement)
        (transformer,) = model.transformers
        assert (transformer.trunk is not None) == (shared is False)
        nn.init.normal_(transformer.head.loc[-1].weight)
        out = model(x, samples=0)
        model.body.zero_grad()
        out.theta.sum().backward()
        reached = model.body[0][0].weight.grad is not None
        assert reached == (shared is not False)  # own copies keep the localizer's gradient away from the body
        assert out.warped.shape[2] == (3 if placement.warps == "features" else 1)


def test_own_layers_start_as_copies():
    model = build(Similarity(), Point(), DL(2))
    copied, original = model.transformers[0].trunk[0][0].weight, model.body[0][0].weight
    assert torch.equal(copied, original)
    assert copied is not original


def set_constant(model, *thetas):
    for transformer, theta in zip(model.transformers, thetas, strict=True):
        transformer.head.loc[-1].bias.data = torch.tensor(theta)


def test_iterations_compose_and_warp_the_original_once():
    turn = [0.2, 0.1, 0.05, 0.0]
    x = torch.rand(2, *SHAPE)
    model = build(Similarity(), Point(), C(0, iterations=2, test_iterations=3))
    set_constant(model, turn)
    one = torch.tensor(turn).expand(2, 4)
    two = Similarity().compose(one, one)
    out = model(x)
    assert len(out.stages) == 2
    assert torch.allclose(out.theta[0], two, atol=1e-6)
    assert torch.allclose(out.warped[0], warp(x, Similarity(), two), atol=1e-6)
    out = model.eval()(x)
    assert len(out.stages) == 3
    assert torch.allclose(out.theta[0], Similarity().compose(two, one), atol=1e-6)


def test_several_depths_compose_on_the_input_and_nest_on_features():
    a, b = [0.2, 0.0, 0.1, 0.0], [0.0, 0.3, 0.0, -0.1]
    x = torch.rand(2, *SHAPE)
    model = build(Similarity(), Point(), SL(0, 1))
    set_constant(model, a, b)
    expected = Similarity().compose(torch.tensor(a), torch.tensor(b)).expand(2, 4)
    out = model(x)
    assert torch.allclose(out.theta[0], expected, atol=1e-6)
    assert torch.allclose(out.warped[0], warp(x, Similarity(), expected), atol=1e-6)
    model = build(Similarity(), Point(), C(0, 1))
    set_constant(model, a, b)
    out = model(x)
    first = warp(x, Similarity(), torch.tensor(a).expand(2, 4))
    features = model.body[0](first)
    assert torch.allclose(out.warped[0], warp(features, Similarity(), torch.tensor(b).expand(2, 4)), atol=1e-5)


def test_later_looks_see_their_own_sample():
    torch.manual_seed(0)
    model = build(Rotation(), Gaussian(spread=0.5), SL(0, 1))
    nn.init.normal_(model.transformers[1].head.loc[-1].weight, std=5.0)
    out = model(torch.rand(2, *SHAPE), samples=4)
    assert out.stages[0].posterior.batch_shape == (2,)
    assert out.stages[1].posterior.batch_shape == (4, 2)
    means = out.stages[1].posterior.mean
    assert not torch.allclose(means[0], means[1])


def test_samples_of_one_input_do_not_depend_on_the_others():
    model = build(Similarity(), StudentT(), C(0)).eval()
    x = torch.rand(3, *SHAPE)
    out = model(x, samples=5, generator=torch.Generator().manual_seed(1))
    again = model(x, samples=5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(out.logits, again.logits)
    for s, b in itertools.product(range(5), range(3)):
        alone = model.body(warp(x[b : b + 1], Similarity(), out.theta[s, b : b + 1]))
        assert torch.allclose(alone[0], out.logits[s, b], atol=1e-5)


def test_zero_samples_is_the_posteriors_centre():
    model = build(Similarity(), StudentT(), C(0, iterations=2))
    set_constant(model, [0.1, 0.2, 0.3, 0.4])
    x = torch.rand(2, *SHAPE)
    out = model(x, samples=0)
    assert out.logits.shape[0] == 1
    assert torch.equal(out.logits, model(x, samples=0).logits)
    assert torch.allclose(out.stages[0].theta[0, 0], torch.tensor([0.1, 0.2, 0.3, 0.4]))


def test_parallel_looks_start_on_their_tiles():
    x = torch.rand(2, *SHAPE)
    model = build(Translation(), Point(), C(0, parallel=4, tile=0.5), size=(6, 6))
    looks = model(x).warped[0]
    quarters = [x[..., i : i + 6, j : j + 6] for i in (0, 6) for j in (0, 6)]
    assert looks.shape == (2, 4, 1, 6, 6)
    for n, quarter in enumerate(quarters):
        assert torch.allclose(looks[:, n], quarter, atol=1e-5)


def test_branches_start_apart():
    model = build(Translation(), Point(), PLACEMENTS["3 branches"])
    a, b, _ = (branch[0].weight for branch in model.branches)
    assert not torch.equal(a, b)


def test_a_frozen_body_stays_as_it_is():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(200, 3))
    model = STN(net, Pool(1), Similarity(), StudentT(), frozen=True)
    model.train()
    assert not net.training
    assert model.transformers.training
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x, y = torch.rand(4, *SHAPE), torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.SGD(param_groups(model), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        elbo(model(x), y).backward()
        optimizer.step()
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert model.transformers[0].head.loc[-1].bias.abs().sum() > 0


def test_the_localizer_has_its_own_learning_rate():
    model = build(Similarity(), StudentT(), SL(1))
    fast, slow = param_groups(model, lr=1e-2, localizer=0.1)
    assert fast["lr"] == 1e-2
    assert slow["lr"] == pytest.approx(1e-3)
    assert {id(p) for p in fast["params"]} == {id(p) for p in model.body.parameters()}
    assert {id(p) for p in slow["params"]} == {id(p) for p in model.transformers.parameters()}


def test_the_papers_parameter_budgets():
    def count(module):
        return sum(p.numel() for p in module.parameters())

    shape = (1, 28, 28)
    assert count(nets.classifier(shape, 10, channels=(12, 24), hidden=52)) == 28_086
    pstn = STN(nets.classifier(shape, 10), nets.localizer(shape), Similarity(), StudentT())
    assert count(pstn.transformers) == 4_822
    assert count(pstn) == 26_662
    stn = STN(nets.classifier(shape, 10), nets.localizer(shape, channels=(12, 18)), Similarity(), Point())
    assert count(stn.transformers) == 6_886
    assert count(stn) == 28_726


def test_series_and_volumes():
    for family, shape in ((Crop(1), (2, 40)), (Similarity(3), (1, 12, 13, 14))):
        net = nets.classifier(shape, 3, channels=(4,), kernel=3)
        model = STN(net, nets.localizer(shape, channels=(4,), kernel=3), family, StudentT())
        assert model(torch.rand(5, *shape), samples=2).logits.shape == (2, 5, 3)


def test_output_of_many_heads():
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 22), nn.Unflatten(1, (2, 11)))
    out = STN(net, Pool(1), Similarity(), StudentT())(torch.rand(3, *SHAPE), samples=2)
    assert out.logits.shape == (2, 3, 2, 11)


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda: STN(body(), Pool(1), None, Point()), "needs a localizer and a family"),
        (ValueError, lambda: STN(body(), Pool(1), Similarity(), Point(), CNN), "a localizer was given"),
        (ValueError, lambda: STN(body(), [Pool(1)], Similarity(), Point(), C(0, 1)), "1 localizers for the depths"),
        (ValueError, lambda: STN(body(), Pool(1), Similarity(), Point(), C(9)), "beyond the body's 4 layers"),
        (TypeError, lambda: STN(nn.Linear(3, 3), Pool(1), Similarity(), Point(), C(1)), "must be nn.Sequential"),
        (TypeError, lambda: STN(body(), Pool(1), TPS(), Point(), C(0, iterations=2)), "TPS does not compose"),
        (ValueError, lambda: STN(body(), nn.Flatten(), Similarity(), Point()), "give STN"),
        (
            ValueError,
            lambda: STN(body(), Pool(1), Similarity(), Point(), C(0, parallel=2, merge="branches")),
            "branch=",
        ),
        (ValueError, lambda: STN(body(), Pool(1), Similarity(), Point(), branch=nn.Identity()), "belongs to parallel"),
        (ValueError, lambda: build(Similarity(), Point(), C(0))(torch.rand(2, *SHAPE), samples=-1), "samples is -1"),
        (ValueError, lambda: build(Similarity(), Point(), C(0))(torch.rand(2, 12)), "expected series"),
        (ValueError, lambda: Placement(depths=(1, 0)), "increasing"),
        (ValueError, lambda: Placement(iterations=0), "at least 1"),
        (ValueError, lambda: Placement(warps="both"), "'features' or 'input'"),
        (ValueError, lambda: Placement(merge="sum"), "'channels' or 'branches'"),
        (ValueError, lambda: Placement(shared=True), "needs warps='input'"),
        (ValueError, lambda: Placement(parallel=0), "at least one"),
        (ValueError, lambda: C(0, 1, parallel=2), "look once"),
        (ValueError, lambda: C(1, parallel=2), "warp the input"),
        (ValueError, lambda: Placement(tile=2.0), "between 0 and 1"),
        (ValueError, lambda: nets.classifier((1, 8, 8), 10), "too small"),
        (ValueError, lambda: nets.normed_classifier((1, 7, 7), 10), "too small for 3 layers that halve them"),
        (ValueError, lambda: nets.classifier((8,), 10), r"expected \(C, L\)"),
    ],
)
def test_bad_input_is_named(error, call, message):
    with pytest.raises(error, match=message):
        call()
