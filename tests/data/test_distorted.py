"""Distortions: the drawn pose is the truth, draws are spread as stated, and a fleet can take them over."""

import math

import pytest
import torch
from scipy.stats import kstest
from torch import nn

from pstn import STN
from pstn.data import Data, Elastic, Projected, Similar
from pstn.data.distorted import Undone
from pstn.families import TPS, Compose, Crop
from pstn.train import Member, Train, fit, fit_fleet
from pstn.train.fleet.noise import Record
from pstn.warp import warp

MOVES = {
    "rts": Similar(28, 42, angle=math.pi / 4, scale=(0.7, 1.2)),
    "scaled": Similar(28, 112, scale=(0.5, 4.0), log=True, where="centre"),
    "projected": Projected(28),
    "stretched": Projected(28, along="diagonals"),
    "elastic": Elastic(28),
}
SIDE = {"rts": 42, "scaled": 112, "projected": 28, "stretched": 28, "elastic": 28}


def blobs(n, side=28):
    """Smooth pictures that are empty at their border, none like another, so that interpolating twice loses little."""
    y, x = torch.meshgrid(*[(2 * torch.arange(side) + 1) / side - 1] * 2, indexing="ij")
    place = torch.rand(n, 2, generator=torch.Generator().manual_seed(3)) * 0.5 - 0.25
    a, b = place[:, 0, None, None], place[:, 1, None, None]
    return torch.exp(-9 * ((x - a) ** 2 + 2 * (y - b) ** 2 + (x - a) * (y - b)))[:, None]


def pictures(n=12):
    return Data(blobs(n), torch.arange(n) % 3, ("a", "b", "c"), "pictures")


@pytest.fixture(params=MOVES, name="name")
def each_move(request):
    return request.param


def test_the_pose_brings_the_picture_back(name):
    move, x = MOVES[name], blobs(20)
    if name == "projected":  # at five pixels, much is pulled over the edge
        move = Projected(28, deviation=2.0)
    pose = move.draw(20, generator=torch.Generator().manual_seed(1))
    moved = move.move(x, pose)
    assert moved.shape == (20, 1, SIDE[name], SIDE[name])

    def error(pose):
        return (warp(moved, move.family, pose, size=(28, 28)) - x).abs().amax((1, 2, 3))

    # Interpolating twice loses a little, and some pictures are shrunk much.
    assert error(pose).median() < 0.08
    assert error(pose).quantile(0.9) < 0.15
    assert error(pose.roll(1, 0)).median() > 0.2, "another's pose does not"


def test_no_distortion_leaves_a_picture_as_it_is():
    x = torch.rand(3, 1, 28, 28)
    alone = Similar(28, 28)
    torch.testing.assert_close(alone(x), x, atol=1e-5, rtol=0)
    centred = Similar(28, 42, where="centre")(x)
    torch.testing.assert_close(centred[..., 7:35, 7:35], x, atol=1e-5, rtol=0)
    torch.testing.assert_close(centred.sum(), x.sum())
    torch.testing.assert_close(Projected(28, scale=(1, 1), deviation=0)(x), x, atol=1e-4, rtol=0)
    torch.testing.assert_close(Elastic(28, scale=(1, 1), deviation=0)(x), x, atol=1e-4, rtol=0)


def test_quarter_turns_are_exact():
    x = torch.rand(4, 1, 28, 28)
    pose = torch.tensor([[math.pi / 2, 0.0, 0.0, 0.0]]).expand(4, -1)
    # y points down: to look clockwise turns the picture anticlockwise, and the move turns it the other way
    torch.testing.assert_close(Similar(28, 28, angle=2.0).move(x, pose), x.rot90(-1, (2, 3)), atol=1e-5, rtol=0)


def uniform(values, low, high):
    """Whether the values are uniform from low to high, and fill that range."""
    values = values.double()
    assert low - 1e-6 <= values.min() < low + 0.02 * (high - low)
    assert high + 1e-6 >= values.max() > high - 0.02 * (high - low)
    return kstest(((values - low) / (high - low)).clamp(0, 1).numpy(), "uniform").pvalue > 1e-3


def test_draws_are_spread_as_the_papers_say():
    pose = MOVES["rts"].draw(4000)
    scale = pose[:, 1].exp() * 42 / 28
    assert uniform(pose[:, 0], -math.pi / 4, math.pi / 4)
    assert uniform(scale, 0.7, 1.2)
    room = 1 - 28 * scale / 42
    for axis in (2, 3):
        assert uniform(pose[:, axis] / room, -1, 1)
    pose = MOVES["scaled"].draw(4000)
    assert uniform((pose[:, 1].exp() * 4).log2(), -1, 2)
    assert (pose[:, [0, 2, 3]] == 0).all()


def test_corners_are_pulled_by_five_pixels():
    move = MOVES["projected"]
    pose = move.draw(20000)
    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    moved = move.family(pose, corners)
    usual = moved.abs().amax((1, 2)) < 3  # all that are in front of the horizon
    assert usual.float().mean() > 0.97
    pixels = 14 * (moved[usual] - 0.875 * corners)
    # the scale's own spread is 1/√12 of a quarter of 14 pixels
    expected = math.sqrt(25 + (14 * 0.25) ** 2 / 12)
    assert pixels.std().item() == pytest.approx(expected, rel=0.04)
    assert pixels.mean((0, 1)).abs().max() < 0.15


def test_corners_are_pulled_along_the_diagonals():
    move = Projected(28, scale=(1, 1), along="diagonals")
    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]], dtype=torch.float64)
    moved = move.family(move.draw(20000).double(), corners)
    usual = moved.abs().amax((1, 2)) < 3  # all that are in front of the horizon
    assert usual.double().mean() > 0.99
    factors = moved[usual] / corners
    torch.testing.assert_close(factors[..., 0], factors[..., 1], atol=2e-3, rtol=2e-3)  # on its diagonal still
    pixels = 14 * math.sqrt(2) * (factors[..., 0] - 1)
    assert pixels.std().item() == pytest.approx(5, rel=0.03)
    assert pixels.mean(0).abs().max() < 0.15


def test_control_points_are_moved_by_a_pixel_and_a_half():
    pose = MOVES["elastic"].draw(4000)
    assert uniform((-pose[:, 0]).exp(), 0.75, 1.0)
    assert (pose[:, 1:3] == 0).all()
    assert (14 * pose[:, 3:]).std().item() == pytest.approx(1.5, rel=0.02)
    assert pose.shape[1] == 3 + 2 * 16


def test_undone_maps_are_inverse():
    family = Compose(Crop(), TPS(4))
    theta = 0.05 * torch.randn(3, family.dim, dtype=torch.float64)
    points = torch.rand(3, 20, 2, dtype=torch.float64) - 0.5
    undone = Undone(family)
    torch.testing.assert_close(undone(theta, family(theta, points)), points, atol=1e-9, rtol=0)
    assert torch.equal(undone.invert(theta, points), family(theta, points))
    assert undone.names == family.names


def test_the_same_seed_is_the_same_data(name):
    move = MOVES[name]
    first, again, other = (move.data(pictures(), seed) for seed in (1, 1, 2))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.pose, again.pose)
    assert not torch.equal(first.pose, other.pose)
    torch.manual_seed(8)  # torch's own generator is not asked
    assert torch.equal(first.x, move.data(pictures(), 1).x)


def test_every_batch_is_moved_anew_in_its_own_dtype_and_on_its_own_device(name):
    move, x = MOVES[name], pictures().x
    assert not torch.equal(move(x), move(x))
    assert move(x.double()).dtype == torch.float64
    if name != "elastic":  # a spline turns off autocast, which this device has not
        assert move(x.to("meta")).device.type == "meta"


def test_a_fleet_can_take_over_what_is_drawn(name):
    with Record() as record:
        MOVES[name](pictures().x)
    kinds = {"rts": ["uniform"], "scaled": ["uniform"]}.get(name, ["uniform", "normal"])
    assert [request.kind for request in record.requests] == kinds


@pytest.mark.parametrize("name", ["rts", "projected", "stretched", "elastic"])
def test_in_a_fleet_every_network_sees_its_own_moves(name):
    data, side = pictures(), SIDE[name]

    def network(seed):
        torch.manual_seed(seed)
        return STN(nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(side * side // 4, 3)))

    def config(seed):
        return Train(steps=3, batch_size=4, lr=0.1, seed=seed, accelerator="cpu")

    members = [Member(network(s), data, config=config(s), augment=MOVES[name]) for s in (1, 2)]
    together = [run.model.body[2].weight for run in fit_fleet(members, progress=False)]
    for seed, found in zip((1, 2), together, strict=True):
        alone = fit(network(seed), data, None, config(seed), augment=MOVES[name], progress=False).model.body[2].weight
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Similar(28, 42, scale=(0.7, 2.0)), "scaled by 0.7 to 2.0 on a canvas of 42"),
        (lambda: Similar(28, 42, angle=4.0), "angle is 4.0; expected an angle from 0 to π"),
        (lambda: Similar(28, 42, where="left"), "where is 'left'"),
        (lambda: Projected(28, deviation=-1.0), "deviation -1.0; expected"),
        (lambda: Projected(28, along="edges"), "along is 'edges'; expected"),
        (lambda: Elastic(28, scale=(0.0, 1.0)), r"scale \(0.0, 1.0\)"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
