"""Clutter and scenes: pieces are pieces of others, where and as large as stated; named scenes, sums, rot-12k."""

import math

import pytest
import torch
from torch import nn

from pstn import STN
from pstn.data import SCENES, Data, Fragments, Normalise, Scene, Separately, addition, colocalisation, scene, scenes
from pstn.data.moved import Place, Turn
from pstn.train import Member, Train, fit, fit_fleet
from pstn.train.fleet.noise import Record
from pstn.warp import warp

SIDES = {
    "stn15/R": 28, "stn15/RTS": 42, "stn15/P": 28, "stn15/P-diagonal": 28, "stn15/E": 28,
    "stn15/TC": 60, "stn15/addition": 42,
    "stn15/colocalise-T": 84, "stn15/colocalise-TC": 84, "placement20/R": 28, "placement20/T": 60, "placement20/S": 112,
}  # fmt: skip


def digits(n=12, channels=1):
    x = torch.rand(n, channels, 28, 28, generator=torch.Generator().manual_seed(3))
    return Data(x, torch.arange(n) % 3, tuple("012"), "digits")


@pytest.mark.parametrize("how", ["add", "insert"])
def test_clutter_covers_no_more_than_stated_and_is_cut_from_others(how):
    # picture n has the value n + 1 everywhere, so a piece says where it is from
    x = torch.arange(1.0, 9.0)[:, None, None, None].expand(8, 1, 28, 28)
    fragments = Fragments(6, 6, canvas=60, how=how, most=100.0)
    canvas = fragments(torch.zeros(8, 1, 60, 60), x)
    covered = (canvas > 0).flatten(1).sum(1)
    assert (covered <= 6 * 36).all()
    assert (covered >= 36).all()
    if how == "insert":
        for n in range(8):
            values = set(canvas[n].unique().tolist()) - {0.0}
            assert values <= set(map(float, range(1, 9))) - {n + 1.0}
    else:
        assert (canvas.flatten(1).sum(1) / 36 == (canvas.flatten(1).sum(1) / 36).round()).all()


def test_pieces_are_exact_copies_at_whole_pixels():
    x = torch.rand(2, 1, 28, 28)
    fragments = Fragments(1, 6, canvas=60, how="insert")
    canvas = fragments(torch.zeros(2, 1, 60, 60), x)
    for n in range(2):
        rows, columns = (canvas[n, 0] > 0).nonzero().unbind(1)
        piece = canvas[n, 0, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert piece.shape == (6, 6)
        windows = x[1 - n, 0].unfold(0, 6, 1).unfold(1, 6, 1)
        assert (windows - piece).abs().amax((2, 3)).min() < 1e-6


def test_inserted_pieces_replace_and_added_ones_saturate():
    ones, half = torch.ones(4, 1, 28, 28), torch.full((4, 1, 60, 60), 0.5)
    assert set(Fragments(6, 6, how="insert")(half, 0 * ones).unique().tolist()) == {0.0, 0.5}
    assert set(Fragments(6, 6, how="add")(half, ones).unique().tolist()) == {0.5, 1.0}
    assert torch.equal(Fragments(6, 6, how="add")(half, 0 * ones), half)


def test_scaled_pieces_have_the_stated_sizes():
    x = torch.ones(400, 1, 28, 28)
    canvas = Fragments(1, 6, canvas=112, scale=(0.5, 4.0))(torch.zeros(400, 1, 112, 112), x)
    area = canvas.flatten(1).sum(1)
    assert area.min() >= 4  # a piece of 3×3 covers the centres of 2 to 4 pixels along an axis
    assert area.max() <= 25**2
    sides = area.sqrt()
    # log-uniform from 3 to 24: half of them below the geometric mean
    assert sides.median().item() == pytest.approx(math.sqrt(3 * 24), rel=0.15)


def test_places_and_cuts_are_uniform():
    x = torch.zeros(3000, 1, 28, 28)
    x[:, :, 0, 0] = 1.0  # in a piece only if it is cut from the corner
    canvas = Fragments(1, 6, canvas=60)(torch.zeros(3000, 1, 60, 60), x)
    assert canvas.sum().item() == pytest.approx(3000 / 23**2, abs=3 * math.sqrt(3000) / 23)
    canvas = Fragments(1, 6, canvas=60)(torch.zeros(3000, 1, 60, 60), torch.ones_like(x))
    top = (canvas[:, 0].amax(2) > 0).float().argmax(1)
    assert top.min() == 0
    assert top.max() == 54
    assert top.float().mean().item() == pytest.approx(27, abs=1.2)


def test_clutter_can_come_from_other_pictures():
    source = torch.full((5, 1, 28, 28), 7.0)
    fragments = Fragments(2, 6, how="insert", source=source)
    assert set(fragments(torch.zeros(3, 1, 60, 60), torch.ones(3, 1, 28, 28)).unique().tolist()) == {0.0, 7.0}
    assert not fragments.state_dict(), "pictures are no part of a network's weights"


@pytest.mark.parametrize("name", SCENES)
def test_named_scenes(name):
    data = digits(channels=2 if name == "stn15/addition" else 1)
    made = scene(name)
    moved = made.data(data, seed=1, repeats=2)
    assert moved.x.shape == (24, data.x.shape[1], SIDES[name], SIDES[name])
    assert moved.x.dtype == torch.float32
    assert torch.equal(moved.y, data.y.repeat(2))
    assert not torch.equal(moved.x[:12], moved.x[12:]), "each repeat is a draw of its own"
    again, other = made.data(data, seed=1, repeats=2), made.data(data, seed=2, repeats=2)
    assert torch.equal(moved.x, again.x)
    assert not torch.equal(moved.x, other.x)
    assert not torch.equal(made(data.x), made(data.x))
    with Record() as record:
        made(data.x)
    assert {request.kind for request in record.requests} <= {"uniform", "normal"}


@pytest.mark.parametrize("name", ["stn15/TC", "placement20/T", "stn15/colocalise-TC"])
def test_the_pose_of_a_scene_is_the_window_of_its_picture(name):
    data, made = digits(), scene(name)
    pose = made.draw(12)
    back = warp(made.move(data.x, pose), made.family, pose, size=(28, 28))
    how = made.normalise or Normalise()
    torch.testing.assert_close(how.inverse(back), data.x, atol=1e-4, rtol=0)
    generator = torch.Generator()
    seen = how.inverse(made.show(data.x, pose, generator.manual_seed(1)))
    bare = how.inverse(made.move(data.x, pose))
    differs = (seen - bare).abs() > 1e-4
    assert differs.any()
    assert differs.flatten(1).sum(1).max() <= made.clutter.count * 36


def test_what_the_two_papers_say_of_clutter_differs_by_a_word():
    assert scene("stn15/TC").clutter.how == "insert"
    assert scene("placement20/T").clutter.how == scene("stn15/colocalise-TC").clutter.how == "add"
    assert scene("placement20/S").clutter.scale == scene("placement20/S").moves.scale == (0.5, 4.0)
    assert scene("stn15/colocalise-TC").clutter.count == 16
    assert scene("placement20/R").moves.limit == scene("stn15/R").moves.limit == math.pi / 2


def test_scenes_normalise_last():
    how = Normalise(0.25, 0.5)
    made = Scene(Place(28, 60), Fragments(6, 6), how)
    plain = Scene(Place(28, 60), Fragments(6, 6))
    x = digits().x
    a, b = (each(x, torch.Generator().manual_seed(5)) for each in (made, plain))
    torch.testing.assert_close(a, how(b))


def test_channels_are_moved_separately():
    x = digits(channels=2).x
    move = Separately(Turn(), 2)
    pose = move.draw(12)
    moved = move.move(x, pose)
    for channel in (0, 1):
        alone = Turn().move(x[:, channel : channel + 1], pose[:, channel : channel + 1])
        torch.testing.assert_close(moved[:, channel : channel + 1], alone)
    with pytest.raises(ValueError, match="x has 1 channels; expected 2"):
        move(digits().x)


def test_sums_of_two_digits():
    x = torch.arange(10.0)[:, None, None, None].expand(10, 1, 4, 4).contiguous()
    data = Data(x, torch.arange(10), tuple("0123456789"), "digits")
    pairs = addition(data, 500, seed=1)
    assert pairs.x.shape == (500, 2, 4, 4)
    assert pairs.num_classes == 19
    assert torch.equal(pairs.x[:, :, 0, 0].sum(1), pairs.y.float())
    assert sorted(pairs.x[:10, 0, 0, 0].tolist()) == list(range(10)), "every picture is first once a round"
    assert set(pairs.y.tolist()) == set(range(19))
    assert torch.equal(addition(data, 500, seed=1).x, pairs.x)
    assert not torch.equal(addition(data, 500, seed=2).x, pairs.x)
    with pytest.raises(ValueError, match="pictures with one channel"):
        addition(digits(channels=2))


def test_pictures_of_one_class_to_be_found():
    data = digits(60)
    plain, cluttered = (colocalisation(data, 2, clutter=clutter, count=20, seed=4) for clutter in (False, True))
    for found in (plain, cluttered):
        assert found.x.shape == (20, 1, 84, 84)
        assert set(found.y.tolist()) == {2}
    back = warp(plain.x, Place(28, 84).family, plain.pose, size=(28, 28))
    for picture in back:
        assert (data.x[data.y == 2] - picture).abs().amax((1, 2, 3)).min() < 1e-4
    assert torch.equal(plain.pose, cluttered.pose)
    assert ((cluttered.x - plain.x).abs() > 1e-4).flatten(1).sum(1).max() <= 16 * 36
    with pytest.raises(ValueError, match="30 pictures of class 2"):
        colocalisation(data, 2, clutter=False, count=30)


def test_rot_12k_is_two_disjoint_parts_of_all_digits(monkeypatch):
    def fake(split, root):
        n = 60 if split == "train" else 10
        value = torch.arange(n, dtype=torch.float32) + (1 if split == "train" else 61)
        y = torch.arange(n) % 10
        return Data(value[:, None, None, None].expand(n, 1, 9, 9).contiguous(), y, tuple("0123456789"), split)

    monkeypatch.setattr(scenes, "mnist", fake)
    monkeypatch.setattr(scenes, "_ROT_TRAIN", 12)
    monkeypatch.setattr(scenes, "_ROT_TEST", 50)
    train, test = (scenes.mnist_rot_12k(split) for split in ("train", "test"))
    assert (len(train), len(test)) == (12, 50)
    middle = [set(part.x[:, 0, 4, 4].round().int().tolist()) for part in (train, test)]
    assert len(middle[0] | middle[1]) == 62, "no digit twice"
    assert test.pose.abs().max() > math.pi / 2, "all angles"
    assert torch.equal(scenes.mnist_rot_12k("test").x, test.x)
    assert not torch.equal(scenes.mnist_rot_12k("test", seed=1).x, test.x)
    monkeypatch.setattr(scenes, "_ROT_TEST", 100)
    with pytest.raises(ValueError, match="needs 112"):
        scenes.mnist_rot_12k("test")


def test_the_usual_split_of_rot_12k():
    assert (scenes._ROT_TRAIN, scenes._ROT_TEST) == (12_000, 50_000)


@pytest.mark.parametrize("name", ["stn15/TC", "placement20/S"])
def test_in_a_fleet_every_network_sees_its_own_clutter(name):
    data, side = digits(), SIDES[name]

    def network(seed):
        torch.manual_seed(seed)
        return STN(nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear((side // 4) ** 2, 3)))

    def config(seed):
        return Train(steps=3, batch_size=4, lr=0.1, seed=seed, accelerator="cpu")

    for source in (None, torch.rand(5, 1, 28, 28)):
        members = [Member(network(s), data, config=config(s), augment=scene(name, source=source)) for s in (1, 2)]
        together = [run.model.body[2].weight for run in fit_fleet(members, progress=False)]
        for seed, found in zip((1, 2), together, strict=True):
            augment = scene(name, source=source)
            alone = fit(network(seed), data, None, config(seed), augment=augment, progress=False).model.body[2].weight
            torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fragments(0), "0 pieces of 6 pixels"),
        (lambda: Fragments(1, 30), "no larger than the pictures"),
        (lambda: Fragments(1, 6, canvas=20, scale=(1, 4)), "fits on the canvas"),
        (lambda: Fragments(how="over"), "how is 'over'"),
        (lambda: scene("stn15/X"), "name is 'stn15/X'; expected one of 'stn15/R'"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
