"""How good poses are: distances on the circle, overlap of windows, rank correlation."""

import math

import pytest
import torch
from scipy.stats import spearmanr

from pstn.families import Affine, Crop, Similarity
from pstn.metrics import angle_distance, overlap, rank_correlation


def test_the_distance_of_angles_does_not_see_whole_turns():
    a, b = 10 * torch.randn(200, dtype=torch.float64), 10 * torch.randn(200, dtype=torch.float64)
    distance = angle_distance(a, b)
    torch.testing.assert_close(distance, torch.acos(torch.cos(a - b)), atol=1e-6, rtol=0)
    torch.testing.assert_close(distance, angle_distance(b, a + 6 * math.pi))
    assert distance.max() <= math.pi


def test_overlap_is_that_of_boxes():
    a, b = torch.rand(50, 3) - 0.5, torch.rand(50, 3) - 0.5
    low, high = (
        pick(*(sign * theta[:, :1].exp() + theta[:, 1:] for theta in (a, b)))
        for pick, sign in ((torch.maximum, -1), (torch.minimum, 1))
    )
    common = (high - low).clamp_min(0).prod(1)
    areas = sum(4 * (2 * theta[:, 0]).exp() for theta in (a, b))
    torch.testing.assert_close(overlap(Crop(), a, b, points=256), common / (areas - common), atol=0.01, rtol=0)


@pytest.mark.parametrize("family", [Crop(), Similarity(), Similarity(scale="linear"), Affine()], ids=repr)
def test_overlap_is_symmetric_and_one_with_itself(family):
    a, b = 0.2 * torch.randn(20, family.dim), 0.2 * torch.randn(20, family.dim)
    torch.testing.assert_close(overlap(family, a, b), overlap(family, b, a))
    torch.testing.assert_close(overlap(family, a, 0.999 * a), torch.ones(20), atol=0.15, rtol=0)
    assert ((overlap(family, a, b) > 0) & (overlap(family, a, b) < 1)).all()
    far = b.clone()
    far[:, -1] = 9.0
    assert (overlap(family, a, far) == 0).all()


def test_a_turned_square_overlaps_as_geometry_says():
    turned = torch.tensor([[math.pi / 4, 0.0, 0.0, 0.0]])
    octagon = 8 * (math.sqrt(2) - 1)  # the area that two squares of side 2 have in common
    wanted = octagon / (8 - octagon)
    assert overlap(Similarity(), turned, torch.zeros(1, 4), points=200).item() == pytest.approx(wanted, abs=0.01)


def test_rank_correlation_is_spearmans():
    a = torch.randn(60).round(decimals=1)  # with ties
    b = (a + torch.randn(60)).round(decimals=1)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a.numpy(), b.numpy()).statistic, abs=1e-9)
    assert rank_correlation(a, a.exp()) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    assert math.isnan(rank_correlation(a, torch.ones(60)))
    assert math.isnan(rank_correlation(a, b.index_fill(0, torch.tensor(3), math.nan)))
    with pytest.raises(ValueError, match="two lists of the same length"):
        rank_correlation(a, b[:5])
