"""Plain units mean what they say: a shift of n pixels moves by n pixels, 100 % doubles, 90° is a quarter turn."""

import pytest
import torch

from pstn import TPS, Affine, Crop, Similarity, Translation, warp
from pstn.report import plain_units


def test_pixels_are_pixels():
    x = torch.arange(6.0 * 8).view(1, 1, 6, 8)
    theta = torch.tensor([[2 * 3 / 8, 2 * -1 / 6]])
    values, units = plain_units(Translation(), theta, (6, 8))
    assert units == ("px", "px")
    assert values.flatten().tolist() == pytest.approx([3, -1])
    moved = warp(x, Translation(), theta)
    torch.testing.assert_close(moved[..., 1:, :5], x[..., :-1, 3:], msg="looks 3 px to the right and 1 px up")


@pytest.mark.parametrize("scale", ["exp", "linear"])
def test_per_cent_is_how_much_more_one_sees(scale):
    family = Similarity(scale=scale)
    one = torch.tensor([0.0, 0.4, 0.0, 0.0])
    values, units = plain_units(family, one, (28, 28))
    assert units == ("°", "%", "px", "px")
    seen = family(one, torch.tensor([[1.0, 0.0]]))[0, 0]
    assert float(values[1]) == pytest.approx(100 * (float(seen) - 1), rel=1e-4)


def test_degrees_are_degrees():
    theta = torch.tensor([torch.pi / 2, 0, 0, 0])
    assert float(plain_units(Similarity(), theta, (9, 9))[0][0]) == pytest.approx(90)


def test_names_with_an_axis_and_foreign_parameters():
    assert plain_units(Affine(), torch.zeros(2, 6), (9, 9))[1] == ("°", "%", "%", "", "px", "px")
    assert plain_units(Crop(1), torch.zeros(5, 3, 2), (9,))[1] == ("%", "px")
    values, units = plain_units(TPS(2), torch.ones(8), (9, 9))
    assert set(units) == {""}
    assert values.tolist() == [1.0] * 8


def test_zero_is_zero():
    for family in (Translation(), Similarity(), Affine(), Affine(scale="linear"), Crop(3)):
        values, _ = plain_units(family, family.zeros(4), (7,) * family.ndim)
        assert not values.any()
