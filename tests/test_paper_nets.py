"""The networks of the STN paper and of the placement paper: counts, shapes, the identity start, fleets."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pstn import CNN, DL, SL, STN, C, StudentT, nets, param_groups
from pstn.data import Data, scene
from pstn.families import TPS, Affine, Projective
from pstn.nets import LOCALIZER_LR, TABLE_VI, named_placement
from pstn.train import Member, Train, fit, fit_fleet
from pstn.warp import warp

SIDES = {"R": 28, "T": 60, "S": 112}
NETWORKS = ("CNN", "C0", "C1", "DL1", "SL1")
SMALL = {"channels": (4,) * 8, "units": 16}
TINY = {"channels": (4,) * 10, "units": 8}


def count(module):
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


@pytest.mark.parametrize("data", "RTS")
@pytest.mark.parametrize("network", NETWORKS)
def test_table_vi(data, network):
    paper = {
        "R": (54122, 53744, 53984, 55296, 53984),
        "T": (66692, 67138, 67088, 66800, 65488),
        "S": (136674, 136448, 137072, 138384, 137072),
    }[data][NETWORKS.index(network)]
    assert count(nets.placed_digits(network, data)) == paper == TABLE_VI[data][network]


@pytest.mark.parametrize("network", ["C1", "DL1", "SL1"])
def test_where_table_vi_is_short_of_its_own_layers(network):
    """On T, the layers as listed, each with its bias, are 20 more than the figure: one bias is left out."""
    localizer = nets.placed_digits(network, "T").transformers[0].localizer
    without = [m for m in localizer if isinstance(m, nn.Conv2d | nn.Linear) and m.bias is None]
    assert [m.out_channels for m in without] == [20]


@pytest.mark.parametrize("data", "RTS")
@pytest.mark.parametrize("network", NETWORKS)
def test_digits_go_through_and_gradients_come_back(data, network):
    model = nets.placed_digits(network, data)
    x = torch.rand(3, 1, SIDES[data], SIDES[data])
    out = model(x)
    assert out.logits.shape == (1, 3, 10)
    nn.functional.cross_entropy(out.logits[0], torch.arange(3)).backward()
    assert all(p.grad is not None for p in model.parameters())
    if network == "CNN":
        assert model.placement == CNN
        return
    assert (out.theta == 0).all(), "the identity, to begin with"
    assert isinstance(model.family, Affine)
    assert model.options["padding"] == "border"
    side = {"R": 28, "T": 30, "S": 112}[data] if network != "C1" else {"R": 10, "T": 13, "S": 52}[data]
    assert out.warped.shape[-2:] == (side, side), "on T, half as wide"


def test_which_layers_are_copied_and_which_are_shared():
    deep, shared = (nets.placed_digits(network, "R") for network in ("DL1", "SL1"))
    assert deep.placement == DL(1)
    assert shared.placement == SL(1)
    assert count(deep) - count(shared) == count(deep.transformers[0].trunk) == 16 * 82
    assert shared.transformers[0].trunk is None
    # what the localizer shares learns as fast as the classifier; its own layers have a rate of their own
    groups = param_groups(shared, lr=1.0, localizer=0.01)
    assert sum(p.numel() for p in groups[0]["params"]) == count(shared.body)


def test_weight_decay_pulls_to_the_identity():
    for family in (nets.placed_digits("C0", "R").family, *map(nets.transformation, ("affine", "projective", "tps"))):
        x = torch.rand(2, 1, 12, 12)
        torch.testing.assert_close(warp(x, family, family.zeros(2)), x, atol=1e-5, rtol=0)


def test_names_of_placements():
    assert named_placement("C0") == C(0)
    assert named_placement("C0123").depths == (0, 1, 2, 3)
    assert named_placement("SL10") == SL(10)
    twice = named_placement("SL6", iterations=2, test_iterations=3)
    assert (twice.looks(True), twice.looks(False)) == (2, 3)
    with pytest.raises(ValueError, match="network is 'ST3'; expected CNN, or C, DL or SL"):
        named_placement("ST3")


def test_the_posterior_can_be_another():
    model = nets.placed_digits("SL1", "R", posterior=StudentT())
    assert model(torch.rand(2, 1, 28, 28), samples=3).logits.shape == (3, 2, 10)
    model = nets.distorted("ST-CNN", posterior=StudentT())
    assert abs(count(model) - 400_000) < 5_000, "under the same budget"


@pytest.mark.parametrize("network", ["DL1", "SL1", "C1", "C0"])
def test_two_networks_train_as_a_fleet(network):
    data = Data(torch.rand(12, 1, 28, 28), torch.arange(12) % 10, tuple("0123456789"))

    def member(seed):
        torch.manual_seed(seed)
        config = Train(
            steps=3,
            batch_size=4,
            lr=0.02,
            optimizer="sgd",
            momentum=0.0,
            localizer_lr=1.0,
            seed=seed,
            accelerator="cpu",
        )
        return Member(nets.placed_digits(network, "R"), data, config=config, augment=scene("placement20/R"))

    together = [run.model for run in fit_fleet([member(s) for s in (1, 2)], progress=False)]
    for seed, found in zip((1, 2), together, strict=True):
        m = member(seed)
        alone = fit(m.model, data, None, m.config, augment=m.augment, progress=False).model
        for a, b in zip(found.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 42, 42), (1, 60, 60)])
@pytest.mark.parametrize("network", ["FCN", "CNN", "ST-FCN", "ST-CNN"])
def test_distorted_digits_with_about_400k_parameters(shape, network):
    for kind, family in (("affine", Affine), ("projective", Projective), ("tps", TPS)):
        model = nets.distorted(network, shape, kind)
        assert abs(count(model) - 400_000) < 5_000
        if not network.startswith("ST"):
            return
        assert isinstance(model.family, family)
        out = model(torch.rand(2, *shape))
        assert out.logits.shape == (1, 2, 10)
        assert (out.theta == 0).all()
        first = model.body[0][0]
        assert isinstance(first, nn.AvgPool2d) == (shape[1] > 28), "RTS and TC are pooled behind the transformer"


def test_localizers_of_the_stn_paper():
    linear = nets.distorted("ST-FCN").transformers[0].localizer
    assert [m.out_features for m in linear if isinstance(m, nn.Linear)] == [32, 32, 32]
    conv = nets.distorted("ST-CNN").transformers[0].localizer
    kinds = [type(m).__name__ for m in conv]
    assert kinds == ["AvgPool2d", "Conv2d", "MaxPool2d", "ReLU", "Conv2d", "ReLU", "Flatten", "Linear", "ReLU"]
    assert [m.out_channels for m in conv if isinstance(m, nn.Conv2d)] == [20, 20]
    assert [m.kernel_size for m in conv if isinstance(m, nn.Conv2d)] == [(5, 5), (5, 5)]


def test_a_width_can_be_given_and_the_same_seed_is_the_same_network():
    assert nets.distorted("FCN", width=256).body[0][1].out_features == 256
    assert count(nets.distorted("CNN", width=64)) == 208_586
    for network in ("ST-FCN", "ST-CNN"):
        made = []
        for _ in range(2):
            torch.manual_seed(4)
            made.append(nets.distorted(network))
        for a, b in zip(made[0].parameters(), made[1].parameters(), strict=True):
            assert torch.equal(a, b)
        assert not torch.equal(made[0].body[0][-2 if network == "ST-FCN" else 0].weight.flatten()[:5], torch.zeros(5))


def test_two_localizers_apart_read_a_channel_each():
    model = nets.summing("2xST-FCN", apart=True)
    assert abs(sum(p.numel() for p in model.parameters()) - 400_000) < 5_000
    with torch.no_grad():
        looks = model.transformers[0].localizer
        x = torch.rand(2, 2, 42, 42)
        other = torch.cat([x[:, :1], torch.rand(2, 1, 42, 42)], dim=1)
        before, after = looks(x), looks(other)
    assert torch.equal(before[:, :32], after[:, :32])
    assert not torch.equal(before[:, 32:], after[:, 32:])


@pytest.mark.parametrize("network", ["FCN", "CNN", "ST-FCN", "2xST-FCN"])
def test_sums_of_two_digits(network):
    model = nets.summing(network, "projective")
    assert abs(count(model) - 400_000) < 5_000
    out = model(torch.rand(3, 2, 42, 42))
    assert out.logits.shape == (1, 3, 19)
    out.logits.sum().backward()
    if network == "2xST-FCN":
        assert out.theta.shape == (1, 3, 2, 8)
        assert out.warped.shape == (1, 3, 2, 2, 42, 42), "both warp both channels"
        first, second = model.transformers[0].localizer.each
        assert not torch.equal(first[1].weight, second[1].weight)


@pytest.mark.parametrize("network", ["FCN", "CNN"])
def test_a_network_without_a_transformer_can_read_pooled_pictures(network):
    model = nets.summing(network, shrink=2).eval()
    assert abs(count(model) - 400_000) < 5_000
    x = torch.rand(3, 2, 42, 42)
    same = torch.nn.functional.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.allclose(model(x).logits, model(same).logits, atol=1e-5)
    whole = nets.summing(network).eval()
    assert not torch.allclose(whole(x).logits, whole(same).logits, atol=1e-3)


def test_house_numbers_have_the_papers_layers():
    body = nets.number_classifier()
    convolutions = [m for m in body.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [48, 64, 128, 160, 192, 192, 192, 192]
    assert {m.kernel_size for m in convolutions} == {(5, 5)}
    assert [any(isinstance(m, nn.MaxPool2d) for m in layer) for layer in body[:8]] == [True, False] * 4
    drops = [any(isinstance(m, nn.Dropout) for m in layer) for layer in body[:11]]
    assert drops == [False] + [True] * 10
    assert [m.out_features for m in body.modules() if isinstance(m, nn.Linear)] == [3072, 3072, 3072, 55]
    assert count(body) == 32_820_951


@pytest.mark.parametrize(
    "network", ["CNN", "C0-large", "C0123", "SL0123", "C0", "C3", "DL3", "SL3", "C8", "DL6", "SL8"]
)
def test_house_numbers(network):
    model = nets.placed_numbers(network, size=32, **SMALL)
    out = model(torch.rand(2, 3, 32, 32))
    assert out.logits.shape == (1, 2, 5, 11)
    out.logits.sum().backward()
    digits = "".join(c for c in network if c.isdigit())
    assert model.placement.depths == tuple(map(int, digits))
    if network != "CNN":
        assert network in LOCALIZER_LR["SVHN", 1]
        widths = [[m.out_features for m in t.localizer if isinstance(m, nn.Linear)] for t in model.transformers]
        assert widths == [[32, 32]] * len(model.transformers)
        assert model.options["padding"] == "fill"


def test_two_looks_in_training_and_three_at_test():
    for model, x in (
        (nets.placed_numbers("SL3", size=32, iterations=2, test_iterations=3, **SMALL), torch.rand(2, 3, 32, 32)),
        (nets.placed_plankton("SL2", size=31, iterations=2, test_iterations=3, **TINY), torch.rand(2, 1, 31, 31)),
    ):
        assert len(model.train()(x).stages) == 2
        assert len(model.eval()(x).stages) == 3


@pytest.mark.parametrize("network", ["CNN", "C0", "C2", "C4", "C7", "C10", "DL2", "DL7", "SL2", "SL4", "SL7", "SL10"])
def test_plankton(network):
    model = nets.placed_plankton(network, size=31, **TINY)
    out = model(torch.rand(2, 1, 31, 31))
    assert out.logits.shape == (1, 2, 121)
    out.logits.sum().backward()
    if network != "CNN":
        assert network in LOCALIZER_LR["plankton", 1]
        assert model.options["padding"] == "border"


def test_plankton_has_the_papers_layers():
    body = nets.plankton_classifier()
    shapes, x = [], torch.zeros(1, 1, 95, 95)
    with torch.no_grad():
        for layer in body[:10]:
            x = layer(x)
            shapes.append(tuple(x.shape[1:3]))
    assert shapes == [
        (32, 95), (32, 47), (64, 47), (64, 23), (128, 23), (128, 23), (128, 11), (256, 11), (256, 11), (256, 5),
    ]  # fmt: skip
    slopes = {m.negative_slope for m in body.modules() if isinstance(m, nn.LeakyReLU)}
    assert slopes == {1 / 3}
    localizer = nets.placed_plankton("SL2", size=31, **TINY).transformers[0].localizer
    assert [type(m) for m in localizer if not isinstance(m, nn.Flatten | nn.Linear)] == [nn.ReLU, nn.ReLU]


def test_plankton_may_start_with_weights_that_let_the_image_through():
    x, spreads = torch.rand(6, 1, 95, 95), []
    for scaled in (False, True):
        torch.manual_seed(0)
        body = nets.plankton_classifier(scaled=scaled).eval()
        with torch.no_grad():
            features = body[:10](x)
            spreads.append(features.std(0).mean() / x.std(0).mean())
            assert body(x).std(0).mean() < 1, "no class is preferred by much"
    assert spreads[0] < 0.01
    assert 0.05 < spreads[1] < 5


def test_birds_are_looked_at_in_tiles():
    def trunk():
        return nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.ReLU())

    stream = nn.Sequential(trunk(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for parallel, centres in (
        (2, [[-0.5, 0.0], [0.5, 0.0]]),
        (4, [[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]),
    ):
        model = nets.attended(stream, trunk(), 6, 6, classes=7, parallel=parallel, size=16, shrink=2, side=4)
        x = torch.rand(3, 3, 32, 32)
        out = model(x)
        assert out.logits.shape == (1, 3, 7)
        assert out.theta.shape == (1, 3, parallel, 2), "only places are learned"
        assert model.windows[:, 1:].tolist() == centres
        if parallel == 4:
            torch.testing.assert_close(out.warped[0, :, 0], x[..., :16, :16], atol=1e-5, rtol=0)
            torch.testing.assert_close(out.warped[0, :, 3], x[..., 16:, 16:], atol=1e-5, rtol=0)
        streams = [branch[0][0].weight for branch in model.branches]
        assert all(torch.equal(streams[0], other) for other in streams[1:]), "all start as what was trained before"
        out.logits.sum().backward()
        assert model.branches[0][0][0].weight.grad is not model.branches[1][0][0].weight.grad


def test_birds_with_a_network_of_the_library():
    whole = nets.resnet18(width=8)
    trunk = nn.Sequential(
        whole.conv1, whole.bn1, nn.ReLU(), whole.maxpool, *(getattr(whole, f"layer{n}") for n in range(1, 5))
    )
    model = nets.attended(nets.resnet18(width=8), trunk, 64, 64, size=64, side=2, classes=5)
    assert model(torch.rand(2, 3, 64, 64)).logits.shape == (1, 2, 5)


def test_what_makes_no_sense_is_refused():
    for make, words in (
        (lambda: nets.placed_digits("C2", "R"), "network is 'C2'"),
        (lambda: nets.placed_digits("C0", "RTS"), "data is 'RTS'"),
        (lambda: nets.distorted("STN"), "network is 'STN'"),
        (lambda: nets.transformation("rigid"), "kind is 'rigid'"),
        (lambda: nets.distorted_cnn((1, 12, 12)), "too small for convolutions of 9×9"),
        (lambda: nets.convolutional_localizer((1, 8, 8)), "too small for two convolutions of 5×5"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_settings_of_placements_are_data():
    assert replace(named_placement("SL3"), iterations=2) == named_placement("SL3", iterations=2)
    assert isinstance(nets.placed_numbers("CNN", size=32, **SMALL), STN)
