"""Co-localisation: the loss, the frozen encoder, and pictures that are found, alone and in a fleet."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pstn import nets
from pstn.colocalise import Colocaliser, Expected, Layers, Places, found_loss, triplet_hinge
from pstn.data import Data
from pstn.data.moved import Place
from pstn.families import Crop
from pstn.pose import localised, window_box
from pstn.train import Member, Train, fit, fit_fleet


def test_the_hinge_of_a_triplet():
    a, o, r = torch.randn(3, 20, 7, dtype=torch.float64)
    hinges = triplet_hinge(a, o, r, margin=0.5)
    for x, y, z, hinge in zip(a, o, r, hinges, strict=True):
        assert hinge.item() == pytest.approx(max(0.0, float(((x - y) ** 2).sum() - ((x - z) ** 2).sum()) + 0.5))
    assert (hinges == 0).any()
    assert (hinges > 0).any()
    assert (triplet_hinge(a, a, a) == 1).all(), "the margin"


def test_the_encoder_is_frozen_and_says_all_layers():
    network = nets.distorted_cnn((1, 28, 28), filters=4)
    encoder = Layers(network, unit=False)
    x = torch.rand(3, 1, 28, 28)
    features = encoder(x)
    torch.testing.assert_close(Layers(network)(x), features / features.norm(dim=1, keepdim=True))
    assert features.shape == (3, 4 * 100 + 4 * 4 + 10)
    torch.testing.assert_close(features[:, -10:], network(x))
    assert not any(p.requires_grad for p in encoder.parameters())
    assert not encoder.train().training


def test_the_papers_localizer():
    model = Colocaliser(Layers(nn.Sequential(nn.Flatten())))
    assert sum(p.numel() for p in model.parameters()) == 5_947
    conv = model.looks.transformers[0].localizer[0]
    assert (conv.out_channels, conv.kernel_size, conv.stride) == (8, (9, 9), (4, 4))
    out = model(torch.rand(4, 1, 84, 84))
    assert (out.theta == 0).all(), "at the start, the whole picture"
    assert out.crops.shape == (4, 1, 28, 28)
    with pytest.raises(ValueError, match="batch of 1 has nothing in common"):
        model(torch.rand(1, 1, 84, 84))


def test_the_loss_moves_the_localizer_alone():
    encoder = Layers(nets.distorted_cnn((1, 28, 28), filters=4))
    model = Colocaliser(encoder)
    found_loss(model(torch.rand(5, 1, 84, 84))).backward()
    head = model.looks.transformers[0].head
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in head.parameters())
    assert all(p.grad is None for p in encoder.parameters())


def things(n, seed):
    """A bright cross somewhere on a dark canvas."""
    item = torch.zeros(1, 1, 28, 28)
    item[..., 11:17, 2:26] = item[..., 2:26, 11:17] = 1.0
    data = Data(item.repeat(n, 1, 1, 1), torch.zeros(n, dtype=torch.long), ("cross", "other"))
    return Place(28, 84).data(data, seed)


def test_in_a_fleet_every_network_finds_its_own():
    encoder = Layers(nn.Sequential(nn.AvgPool2d(4), nn.Flatten()))

    def network(seed):
        torch.manual_seed(seed)
        return Colocaliser(encoder)

    def config(seed):
        return Train(steps=4, batch_size=8, lr=1e-2, localizer_lr=1.0, seed=seed, accelerator="cpu")

    sets = {1: things(8, 1), 2: things(8, 2)}
    members = [Member(network(s), sets[s], config=config(s), loss=found_loss) for s in (1, 2)]
    for seed, run in zip((1, 2), fit_fleet(members, progress=False), strict=True):
        alone = fit(network(seed), sets[seed], None, config(seed), loss=found_loss, progress=False)
        for a, b in zip(run.model.looks.parameters(), alone.model.looks.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert run.history[-1]["loss"] > 0


def test_true_windows_have_less_loss_than_the_whole_picture():
    data = things(16, 3)
    encoder = Layers(nn.Sequential(nn.AvgPool2d(2), nn.Flatten()))
    model = Colocaliser(encoder)
    theta = torch.cat([torch.full((16, 1), 28 / 84 - 1), data.pose[:, 1:]], 1)
    boxes = [window_box(Crop().matrix(data.pose)), window_box(Crop(scale="linear").matrix(theta))]
    assert localised(*boxes) == 1.0
    at_start = found_loss(model(data.x))

    class Truth(nn.Module):
        def forward(self, x):
            return torch.cat([theta, torch.zeros(16, 5)], 1)

    transformer = model.looks.transformers[0]
    transformer.localizer = Truth()
    nn.init.eye_(transformer.head.loc[-1].weight)
    out = model(data.x)
    torch.testing.assert_close(out.theta, theta)
    assert found_loss(out) < at_start


def test_all_windows_at_once_are_the_windows_cut_out():
    network = nets.distorted_cnn((1, 28, 28), filters=4)
    x = torch.rand(2, 1, 40, 36)
    found = torch.cat(Layers(network).everywhere(x, 28, 4), -1)
    places = [(top, left) for top in range(0, 13, 4) for left in range(0, 9, 4)]
    assert found.shape[:2] == (2, len(places))
    for place, (top, left) in enumerate(places):
        cut = Layers(network, unit=False)(x[:, :, top : top + 28, left : left + 28])
        torch.testing.assert_close(found[:, place], cut, atol=1e-5, rtol=1e-4)


def test_networks_whose_windows_would_differ_are_refused():
    x = torch.rand(1, 1, 40, 40)
    padded = Layers(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)))
    with pytest.raises(ValueError, match="would end otherwise than in the picture"):
        padded.everywhere(x, 28, 4)
    with pytest.raises(ValueError, match="2 pixels apart; expected a multiple of the network's 4"):
        Layers(nets.distorted_cnn((1, 28, 28), filters=2)).everywhere(x, 28, 2)
    with pytest.raises(TypeError, match="may mix windows"):
        Layers(nn.Sequential(nn.InstanceNorm2d(1))).everywhere(x, 28, 4)
    with pytest.raises(TypeError, match=r"expected one nn\.Linear"):
        Layers(nn.Sequential(nn.Sequential(nn.Flatten(), nn.ReLU()))).everywhere(x, 28, 4)
    with pytest.raises(ValueError, match="steps that lead from one edge to the other"):
        Places(padded, (1, 85, 85))
    with pytest.raises(ValueError, match=r"\(1, 60, 84\); expected square ones"):
        Places(padded, (1, 60, 84))


def looking(seed, encoder, channels=8):
    torch.manual_seed(seed)
    return Places(encoder, channels=channels)


ENCODER = Layers(nn.Sequential(nn.AvgPool2d(4)))
SEARCH = Train(steps=60, batch_size=20, lr=1e-2, warmup=5, accelerator="cpu")


def share_found(model, data):
    model.eval()
    boxes = (window_box(Crop(scale="linear").matrix(model(data.x).theta)), window_box(Crop().matrix(data.pose)))
    return localised(*boxes)


def test_at_the_start_all_windows_are_as_probable():
    model = looking(0, ENCODER)
    out = model(things(5, 1).x)
    torch.testing.assert_close(out.kl, torch.zeros(5), atol=1e-5, rtol=0)
    assert out.hinge.requires_grad
    assert model.windows.shape == (225, 3)
    assert model.windows[:, 1:].abs().max() == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="batch of 1 has nothing in common"):
        model(torch.rand(1, 1, 84, 84))


def test_what_is_common_is_found_alone_and_in_a_fleet():
    sets = {seed: things(20, seed) for seed in (1, 2)}
    assert share_found(looking(1, ENCODER), sets[1]) < 0.3
    members = [Member(looking(s, ENCODER), sets[s], config=replace(SEARCH, seed=s), loss=Expected()) for s in (1, 2)]
    runs = fit_fleet(members, progress=False)
    alone = fit(looking(1, ENCODER), sets[1], None, replace(SEARCH, seed=1), loss=Expected(), progress=False)
    assert share_found(alone.model, sets[1]) == 1.0
    for seed, run in zip((1, 2), runs, strict=True):
        assert share_found(run.model, sets[seed]) == 1.0


def test_nothing_is_not_common():
    """Empty windows are alike in all pictures; but they have their like in the same picture."""
    data, model = things(12, 5), looking(0, ENCODER)
    corner = ((data.pose[:, 1:] + 1) * 42 - 14) / 4
    true = (corner[:, 1].round() * 15 + corner[:, 0].round()).long()
    ink = nn.functional.avg_pool2d(data.x, 28, 4).flatten(1)

    def loss(places):
        log_q = torch.full((12, 225), -30.0).scatter(1, places[:, None], 0.0)
        return model._hinges(data.x, log_q).gather(1, places[:, None]).mean()

    assert loss(true) < 0.8 * loss(ink.argmin(1))


def test_the_divergence_counts_by_its_weight():
    model = looking(0, ENCODER)
    nn.init.normal_(model.localizer[4].weight)
    out = model(things(6, 1).x)
    assert Expected(0.5)(out).item() == pytest.approx((out.hinge.mean() + 0.5 * out.kl.mean()).item())
    assert (out.kl > 0).all()
