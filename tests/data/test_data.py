"""Data and Normalise: laws of splitting, and every way to be bad input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pstn.data import Data, Normalise
from pstn.grid import sample


def make(n=60, classes=3, shape=(1, 4, 5), name="made"):
    """Examples that carry their own index, so that a subset shows where it is from."""
    x = torch.arange(float(n)).view(n, *[1] * len(shape)).expand(n, *shape)
    return Data(x, torch.arange(n) % classes, tuple("abcdefghij"[:classes]), name)


def origin(data):
    return data.x.flatten(1)[:, 0].long()


labels = st.lists(st.integers(0, 4), min_size=2, max_size=80)


@settings(max_examples=60)
@given(labels, st.floats(0.1, 0.9), st.integers(0, 5))
def test_split_is_disjoint_complete_and_repeatable(y, fraction, seed):
    y = torch.tensor(y)
    whole = Data(torch.arange(float(len(y))).view(-1, 1, 1), y, tuple("abcde"))
    first = round(fraction * len(y))
    if first in (0, len(y)):
        with pytest.raises(ValueError, match="at least one example"):
            whole.split((fraction, 1 - fraction), seed)
        return
    parts = whole.split((fraction, 1 - fraction), seed)
    assert sorted(torch.cat([origin(part) for part in parts]).tolist()) == list(range(len(y)))
    assert all(torch.equal(y[origin(part)], part.y) for part in parts)
    again = whole.split((fraction, 1 - fraction), seed)
    assert all(torch.equal(a.x, b.x) for a, b in zip(parts, again, strict=True))


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(0, 5))
def test_split_of_balanced_classes_is_balanced(first, second, classes, seed):
    whole = make((first + second) * classes, classes)
    parts = whole.split((first * classes, second * classes), seed)
    assert [set(part.counts) for part in parts] == [{first}, {second}]


def test_split_keeps_proportions_of_unequal_classes():
    y = torch.tensor([0] * 700 + [1] * 200 + [2] * 100)
    whole = Data(torch.zeros(1000, 1, 2), y, ("a", "b", "c"))
    for seed in range(20):
        for part, size in zip(whole.split((0.5, 0.3, 0.2), seed), (500, 300, 200), strict=True):
            assert len(part) == size
            shares = torch.tensor([0.7, 0.2, 0.1]) * size
            assert (torch.tensor(part.counts) - shares).abs().max() <= 2


def test_split_gives_rare_classes_their_share():
    # Fifty classes of one example: each part must take some, though no class can be divided.
    y = torch.cat([torch.zeros(950, dtype=torch.int64), torch.arange(1, 51)])
    train, rest = Data(torch.zeros(1000, 1, 2), y, tuple(map(str, range(51)))).split((0.6, 0.4), seed=0)
    assert 20 <= (train.y > 0).sum() <= 40
    assert (train.y > 0).sum() + (rest.y > 0).sum() == 50


def test_split_by_counts_may_leave_some_out_and_seeds_differ():
    a, b = make().split((12, 3), seed=0)
    assert (len(a), len(b)) == (12, 3)
    assert not torch.equal(origin(a), origin(make().split((12, 3), seed=1)[0]))


@pytest.mark.parametrize("parts", [(0.9, 0.2), (50, 11), (0, 5), (0.001, 0.5), (), (5, -1)])
def test_split_that_cannot_be(parts):
    with pytest.raises(ValueError, match=r"split 60 examples|sum to 1 or less"):
        make().split(parts)


def test_balanced_subset():
    y = torch.tensor([0] * 5 + [1] * 20 + [2] * 9)
    data = Data(torch.arange(34.0).view(-1, 1, 1), y, ("a", "b", "c"))
    chosen = data.balanced_subset(4, seed=3)
    assert chosen.counts == (4, 4, 4)
    assert len(set(origin(chosen).tolist())) == 12
    assert torch.equal(y[origin(chosen)], chosen.y)
    for per_class in (6, 0):
        with pytest.raises(ValueError, match="allows 1 to 5, as many as it has of 'a'"):
            data.balanced_subset(per_class)


def test_subset_takes_lists_tensors_and_masks():
    data = make()
    assert origin(data.subset([5, 1, -1])).tolist() == [5, 1, 59]
    assert origin(data.subset(torch.tensor([2], dtype=torch.int32).numpy())).tolist() == [2]
    assert torch.equal(data.subset(data.y == 2).y.unique(), torch.tensor([2]))
    assert data.subset([0]).name == "made"
    assert data.subset([0], "one").name == "one"


@pytest.mark.parametrize(
    ("indices", "error", "match"),
    [
        ([60], IndexError, "has 60 examples"),
        ([-61], IndexError, "run from -61"),
        ([], ValueError, "at least one"),
        ([0.5], TypeError, "list of integers"),
        ([[0, 1]], TypeError, "list of integers"),
        (torch.ones(3, dtype=torch.bool), ValueError, "mask has shape"),
    ],
)
def test_subset_bad_indices(indices, error, match):
    with pytest.raises(error, match=match):
        make().subset(indices)


X, Y = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("x", "y", "classes", "error", "match"),
    [
        (X[0, 0], Y, "ab", ValueError, r"expected series \(B, C, L\)"),
        ((X * 255).byte(), Y, "ab", TypeError, "expected floating point"),
        (X[:, :, :0], Y, "ab", ValueError, "at least one entry"),
        (X[:0], Y[:0], "ab", ValueError, "is empty"),
        (X, Y[:3], "ab", ValueError, r"y has shape \(3,\); 4 examples"),
        (X, Y[:, None], "ab", ValueError, r"y has shape \(4, 1\)"),
        (X, Y.int(), "ab", TypeError, "expected int64"),
        (X, Y.float(), "ab", TypeError, "expected int64"),
        (X, Y - 1, "ab", ValueError, "labels from -1 to 0; 2 classes need labels from 0 to 1"),
        (X, Y + 1, "ab", ValueError, "labels from 1 to 2"),
        (X, Y, "aa", ValueError, "a different name"),
        (X, Y.to("meta"), "ab", ValueError, "expected one device"),
    ],
)
def test_bad_data(x, y, classes, error, match):
    with pytest.raises(error, match=match):
        Data(x, y, tuple(classes), "bad")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_counted_and_located(value):
    x = X.clone()
    x[2, 0, 3, 4] = x[2, 0, 5, 5] = x[3, 0, 0, 0] = value
    with pytest.raises(ValueError, match=r"3 values .* in 2 of 4 examples, the first at index \(2, 0, 3, 4\)"):
        Data(x, Y, ("a", "b"))


def test_one_class_is_data_but_not_trainable():
    one = make().subset(make().y == 1)
    with pytest.raises(ValueError, match=r"'made' has one class only \('b'\)"):
        one.check_trainable()
    make().check_trainable()


def test_to_and_renamed():
    data = make().to("cpu").renamed("other")
    assert (data.name, len(data), data.num_classes) == ("other", 60, 3)
    assert repr(data) == "Data('other', 60 examples of (1, 4, 5), 3 classes)"


def test_normalised_of_itself_has_mean_zero_and_deviation_one():
    x = torch.rand(50, 3, 7, 5) * torch.tensor([1.0, 5.0, 9.0]).view(3, 1, 1) + 2
    data = Data(x, torch.arange(50) % 2, ("a", "b"))
    how = Normalise.of(x)
    channels = data.normalised(how).x.transpose(0, 1).flatten(1)
    assert torch.allclose(channels.mean(1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(channels.std(1), torch.ones(3), atol=1e-3)
    assert torch.allclose(how.inverse(how(x)), x, atol=1e-5)


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.5), ((0.3, 0.6), (0.5, 0.1)), (0.2, (0.5, 0.1))])
@pytest.mark.parametrize("background", [0.0, 1.0])
def test_fill_is_the_background_after_normalisation(mean, std, background):
    # Sampling outside and then normalising must be the same as normalising and then sampling outside with fill.
    how = Normalise(mean, std, background)
    x = torch.rand(1, 2, 4)
    points = torch.tensor([[[-0.9], [0.1], [3.0]]])
    before = how(sample(x, points, fill=background))
    after = sample(how(x), points, fill=how.fill)
    assert torch.allclose(before, after, atol=1e-5)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.0), (0.0, (1.0, -1.0)), (float("nan"), 1.0), (0.0, float("inf"))])
def test_bad_normalise(mean, std):
    with pytest.raises(ValueError, match="std above 0"):
        Normalise(mean, std)


def test_normalise_of_wrong_channels():
    with pytest.raises(ValueError, match="x has 1 channels"):
        Normalise((0.0, 1.0, 2.0))(torch.rand(2, 1, 4))


def test_whole_numbers_are_not_normalised():
    """The mean and the deviation would be rounded with them, to 0 at worst."""
    for function in (Normalise(0.5, 0.25), Normalise(0.5, 0.25).inverse):
        with pytest.raises(TypeError, match=r"x is torch.uint8; expected floating point: .* x.float\(\) / 255"):
            function(torch.zeros(2, 1, 4, dtype=torch.uint8))
