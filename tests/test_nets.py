"""The papers' networks: their numbers of parameters, shapes, weights from elsewhere, and training in a fleet."""

import sys
import types
from dataclasses import replace

import pytest
import torch
from torch import nn

from pstn import STN, Point, Similarity, StudentT, nets
from pstn.data import Data
from pstn.families import CPAB
from pstn.train import Member, Train, fit, fit_fleet


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "parameters"),
    [
        (nets.classifier((1, 28, 28), 10), 21_840),
        (nets.classifier((1, 28, 28), 10, channels=(12, 24), hidden=52), 28_086),
        (nets.classifier((3, 64, 64), 2, channels=(10, 20, 40), hidden=200, channel_dropout=0.5), 154_422),
        (nets.pooled_classifier((1, 128), 14), 1_111_482),
        (nets.pooled_classifier((1, 128), 14, channels=(164, 256, 256, 256, 256)), 1_196_314),
        (nets.pooled_localizer((1, 128)), 85_356),
        (nets.resnet18(1000), 11_689_512),
        (nets.resnet18(), 11_176_512),
    ],
)
def test_numbers_of_parameters(module, parameters):
    assert count(module) == parameters


@pytest.mark.parametrize(("posterior", "parameters"), [(Point(), 85_941), (StudentT(), 86_526)])
def test_the_papers_localizers_of_series_with_their_heads(posterior, parameters):
    model = STN(nn.Identity(), nets.pooled_localizer((1, 128)), CPAB(10), posterior)
    assert count(model.transformers) == parameters


@pytest.mark.parametrize(("posterior", "parameters"), [(Point((100,)), 223_358), (StudentT(hidden=(100,)), 275_062)])
def test_the_papers_networks_for_faces(posterior, parameters):
    shape = (3, 64, 64)
    body = nets.classifier(shape, 2, channels=(10, 20, 40), hidden=200, channel_dropout=0.5)
    localizer = nets.features(shape, channels=(8, 16, 32), kernel=(7, 5, 5))
    assert count(STN(body, localizer, Similarity(), posterior)) == parameters


@pytest.mark.parametrize("shape", [(2, 30), (2, 9, 11), (1, 8, 9, 10)])
def test_pooled_networks_take_any_size(shape):
    body = nets.pooled_classifier(shape, 3, channels=(4, 5), kernels=(3, 2))
    localizer = nets.pooled_localizer(shape, channels=(4, 6), kernels=(3, 2))
    for more in (0, 3):
        x = torch.randn(2, shape[0], *(n + more for n in shape[1:]))
        assert body(x).shape == (2, 3)
        assert localizer(x).shape == (2, localizer.out_features) == (2, 6)


def test_the_mean_does_not_know_where():
    body = nets.pooled_classifier((1, 40), 3, channels=(4, 5), kernels=(3, 2)).eval()
    x = torch.zeros(2, 1, 40)
    x[0, 0, 10:15] = x[1, 0, 20:25] = torch.randn(5)
    one, other = body(x)
    torch.testing.assert_close(one, other)


def test_channels_are_dropped_whole_but_not_the_first_layers():
    body = nets.features((1, 28, 28), channels=(8, 200), channel_dropout=0.5)
    kinds = [[type(m) for m in layer] for layer in list(body)[:2]]
    assert [nn.Dropout2d in kind for kind in kinds] == [False, True]
    x = torch.rand(4, 1, 28, 28)
    kept = body.eval()(x).unflatten(1, (200, -1))
    assert torch.equal(body(x).unflatten(1, (200, -1)), kept)
    out = body.train()(x).unflatten(1, (200, -1))
    lit = kept.flatten(2).amax(-1) > 0
    gone = (out.flatten(2).amax(-1) == 0)[lit]
    assert 0.4 < gone.float().mean() < 0.6
    # Pooling and ReLU come behind the dropout, and both go through a factor of two.
    torch.testing.assert_close(out[lit][~gone], 2 * kept[lit][~gone])


def test_building_draws_for_the_weights_alone():
    torch.manual_seed(3)
    plain = nets.classifier((1, 28, 28), 10)
    torch.manual_seed(3)
    dropping = nets.classifier((1, 28, 28), 10, channel_dropout=0.5)
    for one, other in zip(plain.parameters(), dropping.parameters(), strict=True):
        assert torch.equal(one, other)


def test_too_small_and_ill_matched_are_refused():
    with pytest.raises(ValueError, match="too small; 5 layers need 25 points"):
        nets.pooled_classifier((1, 24), 2)
    for build in (nets.pooled_localizer, nets.localizer):
        with pytest.raises(ValueError, match="expected as many of each"):
            build((1, 40, 40), channels=(3, 4), **{"kernel" if build is nets.localizer else "kernels": (3, 3, 3)})


@pytest.mark.parametrize(("small", "side"), [(False, 64), (True, 32)])
def test_resnet_shapes(small, side):
    model = nets.resnet18(width=4, small=small)
    seen = []
    for n in range(1, 5):
        model.get_submodule(f"layer{n}").register_forward_hook(lambda m, i, o: seen.append(o.shape[-1]))
    assert model(torch.randn(2, 3, side, side)).shape == (2, 32)
    first = side if small else side // 4
    assert seen == [first, first // 2, first // 4, first // 8]


def test_resnet_takes_weights_but_for_the_last_layer(tmp_path, monkeypatch):
    trained = nets.resnet18(7, width=4)
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    vision = types.ModuleType("torchvision.models")
    vision.ResNet18_Weights = types.SimpleNamespace(
        IMAGENET1K_V1=types.SimpleNamespace(get_state_dict=lambda progress: trained.state_dict())
    )
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", vision)
    x = torch.randn(2, 3, 32, 32)
    trained.fc = nn.Identity()
    trained.eval()
    for weights in (tmp_path / "weights.pth", "torchvision", {**trained.state_dict()}):
        model = nets.resnet18(3, width=4, weights=weights).eval()
        assert model(x).shape == (2, 3)
        model.fc = nn.Identity()
        assert torch.equal(model(x), trained(x))


def test_resnet_says_what_is_wrong_with_weights(monkeypatch):
    with pytest.raises(ValueError, match=r"do not fit: \d+ of \d+ tensors .* the first is 'bn1"):
        nets.resnet18(3, width=4, weights=nets.resnet18(3, width=8).state_dict())
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match="needs torchvision: pip install torchvision"):
        nets.resnet18(3, weights="torchvision")


def series():
    body = nets.pooled_classifier((1, 20), 2, channels=(3,), kernels=(3,))
    return STN(body, nets.pooled_localizer((1, 20), channels=(4,), kernels=(3,)), CPAB(4), StudentT())


def images():
    body = nets.pooled_classifier((1, 12, 12), 2, channels=(3,), kernels=(3,))
    localizer = nets.pooled_localizer((1, 12, 12), channels=(3,), kernels=(3,))
    return STN(body, localizer, Similarity(), StudentT(), frozen=True)


@pytest.mark.parametrize(("build", "shape"), [(series, (1, 20)), (images, (1, 12, 12))])
def test_batch_statistics_in_a_fleet_are_those_of_each_network_alone(build, shape):
    config = Train(steps=4, batch_size=4, samples=2, lr=1e-2, kl_weight=1e-4, optimizer="sgd", accelerator="cpu")
    # Adam would make steps of the rounding in what batch normalisation leaves without gradient, a convolution's bias.
    members, alone = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        data = Data(torch.randn(8, *shape), torch.arange(8) % 2, ("a", "b"))
        model, twin = build(), build()
        twin.load_state_dict(model.state_dict())
        members.append(Member(model, data, config=replace(config, seed=seed)))
        alone.append(fit(twin, data, config=replace(config, seed=seed), progress=False).model)
    for run, expected in zip(fit_fleet(members, progress=False), alone, strict=True):
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], value, atol=2e-5, rtol=1e-4, msg=name)
    fresh = dict(build().named_buffers())
    moved = [n for n, b in run.model.named_buffers() if n.endswith("running_var") and not torch.equal(b, fresh[n])]
    assert moved
    assert all(name.startswith("transformers") for name in moved) or build is series, "a frozen body keeps its own"
