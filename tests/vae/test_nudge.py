"""Nudged pictures: how far, how often, and back again."""

import math

import pytest
import torch

from pstn import warp
from pstn.data import Data
from pstn.vae import Nudge


def test_limits_and_chances():
    pose = Nudge((28, 28)).draw(20_000, generator=torch.Generator().manual_seed(0))
    angle, log_scale, x, _ = pose.unbind(1)
    assert math.radians(9.9) < angle.abs().max() <= math.radians(10)
    assert 0.8 <= log_scale.exp().min() < 0.81
    assert 1.19 < log_scale.exp().max() <= 1.2001
    assert 3.95 < x.abs().max() * 14 <= 4.0001
    happens = pose != 0
    torch.testing.assert_close(happens.double().mean(0), torch.full((4,), 0.5).double(), atol=0.02, rtol=0)
    assert torch.equal(happens[:, 2], happens[:, 3])  # one shift, along both axes
    both = (happens[:, 0] & happens[:, 1]).double().mean()  # independent
    assert both == pytest.approx(0.25, abs=0.02)
    assert (happens[:, :3].sum(1) == 0).double().mean() == pytest.approx(1 / 8, abs=0.02)


@pytest.mark.parametrize("size", [(40, 40), (32, 48)])
def test_poses_undo_it(size):
    height, width = size
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    picture = torch.exp(-((x - 0.1) ** 2 + 2 * y**2) / 0.1).expand(20, 1, -1, -1)
    nudge = Nudge(size)
    moved = nudge.data(Data(picture.contiguous(), torch.zeros(20, dtype=torch.int64), ("a",)), seed=3)
    assert (warp(moved.x, nudge.family, moved.pose) - picture).abs().max() < 0.05
    assert (moved.x - picture).abs().amax((1, 2, 3)).median() > 0.1


def test_it_is_fixed_by_its_seed():
    data = Data(torch.rand(8, 1, 10, 10), torch.zeros(8, dtype=torch.int64), ("a",))
    nudge = Nudge((10, 10), fill=-1.0)
    assert torch.equal(nudge.data(data, 5).x, nudge.data(data, 5).x)
    assert not torch.equal(nudge.data(data, 5).x, nudge.data(data, 6).x)


def test_a_shift_moves_content_by_pixels_and_fills_with_background():
    nudge = Nudge((8, 8), fill=-2.0)
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 3, 3] = 1.0
    moved = nudge.move(x, torch.tensor([[0.0, 0.0, 2 * 2 / 8, 0.0]]))  # two pixels to the right
    assert moved[0, 0, 3, 5] == pytest.approx(1.0)
    assert (moved[..., :2] == -2).all()


@pytest.mark.parametrize("options", [{"turn": -1}, {"scale": 1.0}, {"shift": -2}, {"chance": 1.5}, {"size": (3,)}])
def test_bad_settings_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        Nudge(**{"size": (8, 8), **options})
