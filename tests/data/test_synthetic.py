"""Generated series: what they promise about their shapes, checked on the series themselves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pstn.data import cbf, two_patterns

BOTH = pytest.mark.parametrize("make", [cbf, two_patterns])


@BOTH
@settings(max_examples=25)
@given(n=st.integers(1, 40), length=st.integers(16, 200), seed=st.integers(0, 9))
def test_any_size(make, n, length, seed):
    data = make(n, length, seed)
    assert (data.x.shape, data.x.dtype) == ((n, 1, length), torch.float32)
    assert max(data.counts) - min(data.counts) <= 1
    assert torch.allclose(data.x.mean(2), torch.zeros(n, 1), atol=1e-5)
    assert torch.allclose(data.x.std(2), torch.ones(n, 1), atol=1e-4)


@BOTH
def test_seeds(make):
    assert torch.equal(make(20, seed=4).x, make(20, seed=4).x)
    assert not torch.equal(make(20, seed=4).x, make(20, seed=5).x)
    before = torch.random.get_rng_state()
    make(20)
    assert torch.equal(before, torch.random.get_rng_state())


@BOTH
@pytest.mark.parametrize(("n", "length"), [(0, 128), (-1, 128), (5, 15)])
def test_bad_sizes(make, n, length):
    with pytest.raises(ValueError, match="at least 1 series of at least 16 points"):
        make(n, length)


def test_cbf_shapes():
    data = cbf(3000)
    mean = {name: data.x[data.y == k, 0].mean(0) for k, name in enumerate(data.classes)}
    # Every event starts between 16 and 32: nothing before, and then flat, rising or falling.
    assert all(shape[:15].std() < 0.1 for shape in mean.values())
    assert mean["funnel"][33] > mean["cylinder"][33] > mean["bell"][33]
    assert mean["bell"][60] > mean["bell"][40]
    assert mean["funnel"][60] < mean["funnel"][40]
    assert (mean["cylinder"][50] - mean["cylinder"][36]).abs() < 0.1


def test_two_patterns_are_two_steps_of_the_right_kind():
    data = two_patterns(400)
    for series, label in zip(data.x[:, 0], data.y.tolist(), strict=True):
        high, low = (series == series.max()), (series == series.min())
        assert high.sum() + low.sum() >= 32
        assert (high.sum() - low.sum()).abs() <= 2
        # The first flat point says the direction of the first step, the last that of the second.
        flat = (high | low).nonzero().squeeze(1)
        first = "up" if low[flat[0]] else "down"
        second = "up" if high[flat[-1]] else "down"
        assert data.classes[label] == f"{first}-{second}"
