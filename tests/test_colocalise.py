"""Co-localisation: the loss, the frozen encoder, and pictures that are found, alone and in a fleet."""

import pytest
import torch
from torch import nn

from pstn import nets
from pstn.colocalise import Colocaliser, Layers, found_loss, triplet_hinge
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
