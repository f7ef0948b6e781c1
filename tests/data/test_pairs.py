"""Pairs of images on one canvas: what is where, which class, the same by the same seed."""

import pytest
import torch

from pstn.data import Data, pair

LEFT = Data(torch.rand(9, 1, 5, 4) + 0.1, torch.arange(9) % 3, tuple("abc"), "L")
RIGHT = Data(torch.rand(7, 1, 6, 3) + 0.1, torch.arange(7) % 2, tuple("xy"), "R")


def made(**options):
    return pair(LEFT, RIGHT, **{"size": 12, "tops": 7, **options})


@pytest.mark.parametrize("room", [0, 2])
def test_each_image_lies_where_it_says_and_nothing_else(room):
    pairs = made(room=room)
    for i, (canvas, places) in enumerate(zip(pairs.data.x, pairs.places.tolist(), strict=True)):
        rest = canvas.clone()
        for image, (top, left) in zip((LEFT.x[i], RIGHT.x[2 * i % 7]), places, strict=True):
            where = (slice(None), slice(top, top + image.shape[1]), slice(left, left + image.shape[2]))
            assert torch.equal(canvas[where], image)
            rest[where] = 0
        assert not rest.any()
    tops, columns = pairs.places.unbind(-1)
    assert tops.min() >= 0
    assert tops.max() < 7
    assert set(columns[:, 0].tolist()) <= set(range(room + 1))
    assert set(columns[:, 1].tolist()) <= {9 - n for n in range(room + 1)}


def test_the_class_is_that_of_both():
    data = made().data
    assert data.num_classes == 6
    for i, label in enumerate(data.y.tolist()):
        assert data.classes[label] == f"{LEFT.classes[LEFT.y[i]]}-{RIGHT.classes[RIGHT.y[2 * i % 7]]}"


def test_a_shorter_set_is_the_beginning_of_a_longer_one():
    assert torch.equal(made(count=4).data.x, made().data.x[:4])
    assert torch.equal(made(count=4).places, made().places[:4])


def test_seeds():
    assert torch.equal(made(seed=5).data.x, made(seed=5).data.x)
    assert not torch.equal(made(seed=5).places, made(seed=6).places)


def test_all_heights_occur_and_the_two_are_drawn_apart():
    many = pair(LEFT.subset(torch.arange(600) % 9), RIGHT, size=12, tops=7).places[..., 0]
    assert torch.bincount(many.flatten(), minlength=7).min() > 100
    assert len({tuple(row) for row in many.tolist()}) == 49


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 10}, "expected 1 to 9"),
        ({"size": 6}, "do not fit side by side on a canvas of 6×6"),
        ({"tops": 8}, "at 8 heights"),
        ({"room": 3}, "with room 3"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        made(**options)
