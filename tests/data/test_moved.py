"""Moves: the pose undoes them, the same seed is the same data, and a fleet can take over their draws."""

import math

import pytest
import torch
from torch import nn

from pstn import STN
from pstn.data import Data
from pstn.data.moved import Moved, Place, Turn
from pstn.train import Member, Train, fit, fit_fleet
from pstn.train.fleet.noise import Record
from pstn.warp import warp

MOVES = {"turn": Turn(), "place": Place(8, 20), "near": Place(8, 20, reach=5)}


def pictures(n=12, side=8):
    x = torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(3))
    return Data(x, torch.arange(n) % 3, ("a", "b", "c"), "pictures")


@pytest.fixture(params=MOVES, name="move")
def each_move(request):
    return MOVES[request.param]


@pytest.mark.parametrize("place", [MOVES["place"], MOVES["near"]], ids=repr)
def test_the_pose_of_a_placed_picture_brings_it_back(place):
    data = pictures()
    moved = place.data(data)
    assert moved.x.shape == (12, 1, 20, 20)
    back = warp(moved.x, place.family, moved.pose, size=(8, 8))
    torch.testing.assert_close(back, data.x, atol=1e-5, rtol=0)
    # nothing else is on the canvas
    torch.testing.assert_close(moved.x.sum((1, 2, 3)), data.x.sum((1, 2, 3)))


def test_the_pose_of_a_turned_picture_brings_it_back():
    # a smooth picture that is empty at its border, so that turning twice loses little
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, 41)] * 2, indexing="ij")
    blob = torch.exp(-10 * ((x - 0.3) ** 2 + 2 * (y + 0.1) ** 2)).expand(6, 1, 41, 41)
    moved = Turn().data(Data(blob.contiguous(), torch.arange(6) % 2, ("a", "b")))
    back = warp(moved.x, Turn().family, moved.pose)
    assert (back - blob).abs().max() < 0.05
    assert (moved.x - blob).abs().amax((1, 2, 3)).median() > 0.5, "they were turned"
    assert (warp(moved.x, Turn().family, -moved.pose) - blob).abs().max() > 0.5, "the sign matters"


def test_quarter_turns_are_exact():
    x = pictures().x
    pose = torch.full((12, 1), math.pi / 2)
    # y points down: to look clockwise turns the picture anticlockwise, and the move turns it the other way
    torch.testing.assert_close(Turn().move(x, pose), x.rot90(-1, (2, 3)), atol=1e-5, rtol=0)


def test_the_same_seed_is_the_same_data(move):
    first, again, other = (move.data(pictures(), seed) for seed in (1, 1, 2))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.pose, again.pose)
    assert not torch.equal(first.pose, other.pose)
    torch.manual_seed(8)  # torch's own generator is not asked
    assert torch.equal(first.x, move.data(pictures(), 1).x)


def test_draws_fill_their_range_and_stay_in_it():
    angles = Turn(limit=1.0).draw(4000)
    assert angles.abs().max() <= 1
    assert angles.std().item() == pytest.approx(1 / math.sqrt(3), rel=0.05)
    for name, last in (("place", 12), ("near", 5)):
        pose = MOVES[name].draw(4000)
        corner = ((pose[:, 1:] + 1) * 20 - 8) / 2
        torch.testing.assert_close(corner, corner.round(), atol=1e-4, rtol=0)
        assert sorted(set(corner.round().flatten().int().tolist())) == list(range(last + 1))
        torch.testing.assert_close(pose[:, 0].exp(), torch.full((4000,), 0.4))


def test_every_batch_is_moved_anew_on_its_own_device(move):
    x = pictures().x
    assert not torch.equal(move(x), move(x))
    assert move(x.to("meta")).device.type == "meta"
    assert not torch.equal(move.eval()(x), move(x)), "moving is no matter of training"
    source = torch.Generator()
    assert torch.equal(move(x, source.manual_seed(4)), move(x, source.manual_seed(4)))


def test_of_a_larger_input_the_corner_is_placed():
    x = pictures().x
    wide = torch.nn.functional.pad(x, (0, 12, 0, 12))
    pose = MOVES["place"].draw(12)
    assert torch.equal(MOVES["place"].move(x, pose), MOVES["place"].move(wide, pose))


def test_poses_go_with_their_examples(move):
    moved = move.data(pictures())
    for indices in ([5, 0, -1], torch.arange(12) > 8):
        part = moved.subset(indices)
        assert isinstance(part, Moved)
        assert torch.equal(part.pose, moved.pose[torch.as_tensor(indices)])
        assert torch.equal(part.x, moved.x[torch.as_tensor(indices)])
    train, test = moved.split((8, 4))
    for part in (train, test):
        for x, pose in zip(part.x, part.pose, strict=True):
            (where,) = [i for i in range(12) if torch.equal(moved.x[i], x)]
            assert torch.equal(moved.pose[where], pose)
    assert moved.to("cpu").pose.device.type == "cpu"


def test_a_move_draws_nothing_that_a_fleet_cannot_take_over(move):
    with Record() as record:
        move(pictures().x)
    assert [request.kind for request in record.requests] == ["uniform"]


@pytest.mark.parametrize("name", ["turn", "place"])
def test_in_a_fleet_every_network_sees_its_own_moves(name):
    side = 8 if name == "turn" else 20
    data = pictures(side=side)

    def network(seed):
        torch.manual_seed(seed)
        return STN(nn.Sequential(nn.Flatten(), nn.Linear(side * side, 3)))

    def config(seed):
        return Train(steps=5, batch_size=4, lr=0.1, seed=seed, accelerator="cpu")

    members = [Member(network(s), data, config=config(s), augment=MOVES[name]) for s in (1, 2)]
    together = [run.model.body[1].weight for run in fit_fleet(members, progress=False)]
    for seed, found in zip((1, 2), together, strict=True):
        alone = fit(network(seed), data, None, config(seed), augment=MOVES[name], progress=False).model.body[1].weight
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Turn(4.0), "limit is 4.0; expected an angle from 0 to π"),
        (lambda: Place(9, 8), "a picture of 9 pixels on a canvas of 8"),
        (lambda: Place(4, 8, reach=5), "corners up to 5; expected a picture that fits"),
        (
            lambda: Moved(torch.rand(3, 1, 4), torch.tensor([0, 1, 0]), ("a", "b"), pose=torch.rand(2, 1)),
            r"\(2, 1\); 3",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
