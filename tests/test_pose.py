"""What is left of poses after alignment: units, signs, deviations class by class, lines and boxes."""

import math

import pytest
import torch

from pstn.families import Affine, Crop, Rotation, Similarity
from pstn.metrics import overlap
from pstn.pose import (
    box_iou,
    final_pose,
    localised,
    middle_run,
    orthogonal_line,
    pixel_unit,
    pose_spread,
    similarity_angle,
    window_box,
)


def test_the_angle_is_that_of_the_nearest_similarity():
    matrix = torch.eye(2, dtype=torch.float64) + 0.5 * torch.randn(40, 2, 2, dtype=torch.float64)
    angle = similarity_angle(matrix)
    tried = torch.linspace(-math.pi, math.pi, 20001, dtype=torch.float64)
    turns = torch.stack([tried.cos(), -tried.sin(), tried.sin(), tried.cos()], -1).unflatten(-1, (2, 2))
    # for each angle, the best scale is the projection; the least distance is the largest projection
    fit = torch.einsum("nij,tij->nt", matrix, turns)
    gap = torch.remainder(angle - tried[fit.argmax(1)] + math.pi, 2 * math.pi) - math.pi
    assert gap.abs().max() < 1e-3
    whole = Similarity().matrix(torch.tensor([[2.5, 0.3, 0.1, 0.2]]))  # beyond what an arctangent sees
    torch.testing.assert_close(similarity_angle(whole), torch.tensor([2.5]))


def test_units_of_both_conventions():
    assert [pixel_unit(60, corners=True), pixel_unit(26, 2, corners=True)] == [29.5, 25.0]
    # Here, a shift by the unit's inverse is a shift by one pixel.
    from pstn.families import Translation
    from pstn.warp import warp

    x = torch.rand(1, 1, 1, 60)
    moved = warp(x, Translation(), torch.tensor([[1 / pixel_unit(60), 0.0]]))
    torch.testing.assert_close(moved[..., :-1], x[..., 1:], atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="size is 0"):
        pixel_unit(0)


def test_a_perfect_network_leaves_the_same_pose_for_all():
    true = Similarity().matrix(torch.cat([torch.rand(30, 2) - 0.5, torch.rand(30, 2) - 0.5], 1).double())
    own = Affine().matrix(torch.tensor([0.3, 0.2, 0.2, 0.0, 0.0, 0.0], dtype=torch.float64))
    found = true @ own  # aligned, to a pose of the network's own choice
    y = torch.zeros(30, dtype=torch.long)
    for measure, constant in (("angle", math.degrees(0.3)), ("scale", 0.4 / math.log(2)), ("shift", 0.0)):
        rest = final_pose(found, true, measure, unit=30.0)
        torch.testing.assert_close(rest, torch.full_like(rest, constant), atol=1e-6, rtol=0)
        assert pose_spread(rest, y).mean == pytest.approx(0, abs=1e-6)


def test_a_network_that_does_nothing_leaves_all_of_the_pose():
    angle = (torch.rand(20000, 1) - 0.5) * math.pi
    true, nothing = Rotation().matrix(angle), torch.eye(3).expand(20000, 3, 3)
    y = torch.arange(20000) % 10
    spread = pose_spread(final_pose(nothing, true, "angle"), y, circular=True)
    # ±90° uniform: 180/√12; the paper's STN-C1, which barely turns anything, has 47.2
    assert spread.mean == pytest.approx(180 / math.sqrt(12), rel=0.03)
    assert spread.per_class.shape == (10,)
    corner = torch.randint(0, 33, (20000, 2)).float()
    true = Crop().matrix(torch.cat([torch.zeros(20000, 1), (2 * corner + 28) / 60 - 1], 1))
    spread = pose_spread(final_pose(nothing, true, "shift", unit=30.0), y)
    assert spread.mean == pytest.approx(math.sqrt(2 * (33**2 - 1) / 12), rel=0.03), "in pixels, both axes"
    scale = torch.rand(20000, 1) * math.log(8)
    true = Crop().matrix(torch.cat([scale, torch.zeros(20000, 2)], 1))
    spread = pose_spread(final_pose(nothing, true, "scale"), y)
    assert spread.mean == pytest.approx(2 * 3 / math.sqrt(12), rel=0.03), "log2 of an area is twice that of a scale"


def test_the_spread_is_a_standard_deviation_and_does_not_grow_with_the_number():
    rest, y = torch.randn(50, 2), torch.arange(50) % 2
    spread = pose_spread(rest, y).per_class
    for label in (0, 1):
        own = rest[y == label].double()
        torch.testing.assert_close(spread[label], own.var(0, correction=0).sum().sqrt())
    torch.testing.assert_close(pose_spread(rest.repeat(9, 1), y.repeat(9)).per_class, spread)
    shifted = rest + torch.tensor([[100.0, 0.0], [0.0, 7.0]])[y]
    torch.testing.assert_close(pose_spread(shifted, y).per_class, spread, atol=1e-5, rtol=0)
    missing = pose_spread(rest, 2 * y, classes=4)
    assert missing.per_class.isnan().tolist() == [False, True, False, True]
    assert missing.mean == pytest.approx(float(spread.mean()))


def test_whole_turns_do_not_count():
    rest = torch.tensor([[179.0], [-179.0], [178.0], [-178.0]])
    y = torch.zeros(4, dtype=torch.long)
    assert pose_spread(rest, y, circular=True).mean == pytest.approx(math.sqrt(2.5))
    assert pose_spread(rest, y).mean > 170


def test_features_have_a_unit_of_their_own():
    true = Crop().matrix(torch.tensor([[0.0, 0.4, -0.2]]))
    found = Crop().matrix(torch.tensor([[0.0, 0.4 * 30 / 26, -0.2 * 30 / 26]]))
    rest = final_pose(found, true, "shift", unit=pixel_unit(26, 2), true_unit=pixel_unit(60))
    torch.testing.assert_close(rest, torch.zeros(1, 2), atol=1e-5, rtol=0)


def test_the_middle_of_ten_is_the_fifth_best():
    values = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0, 0.0]
    assert values[middle_run(values)] == 4.0
    with pytest.raises(ValueError, match="no network"):
        middle_run([])


@pytest.mark.parametrize("slope", [-1.0, 0.3, 4.0])
def test_orthogonal_regression_has_the_least_distances(slope):
    x = torch.randn(300, dtype=torch.float64)
    y = slope * x + 0.5 + 0.3 * torch.randn(300, dtype=torch.float64)
    x = x + 0.3 * torch.randn(300, dtype=torch.float64)
    line = orthogonal_line(x, y)

    def distances(slope, intercept):
        return float((y - slope * x - intercept).square().sum()) / (1 + slope**2)

    best = distances(line.slope, line.intercept)
    for a in (-0.01, 0.0, 0.01):
        for b in (-0.01, 0.0, 0.01):
            assert distances(line.slope + a, line.intercept + b) >= best - 1e-9
    assert best < 0.9 * distances(slope, 0.0)
    back = orthogonal_line(y, x)  # neither coordinate comes first
    assert back.slope == pytest.approx(1 / line.slope, rel=1e-6)


def test_lines_without_slope():
    flat = torch.tensor([0.0, 1.0, 2.0])
    assert orthogonal_line(flat, torch.ones(3)).slope == 0
    assert orthogonal_line(torch.ones(3), flat).slope == math.inf
    assert math.isnan(orthogonal_line(torch.ones(3), torch.ones(3)).slope)


def test_boxes_overlap_as_windows_do():
    a, b = torch.rand(50, 3) - 0.5, torch.rand(50, 3) - 0.5
    boxes = [window_box(Crop().matrix(theta)) for theta in (a, b)]
    torch.testing.assert_close(box_iou(*boxes), overlap(Crop(), a, b, points=256), atol=0.01, rtol=0)
    assert localised(boxes[0], boxes[1]) == pytest.approx(float((box_iou(*boxes) > 0.5).float().mean()))
    box = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    assert localised(box, torch.tensor([[0.0, 0.0, 1.0, 2.0]])) == 0.0, "one half is not more than one half"
    assert box_iou(box, box + 5).item() == 0


def test_shapes_that_do_not_fit_are_refused():
    eye = torch.eye(3).expand(4, 3, 3)
    with pytest.raises(ValueError, match=r"expected \(N, 3, 3\) twice"):
        final_pose(eye, eye[:2], "angle")
    with pytest.raises(ValueError, match="measure is 'size'"):
        final_pose(eye, eye, "size")
    with pytest.raises(ValueError, match=r"expected \(N, k\) and \(N,\)"):
        pose_spread(torch.rand(3, 1), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="an angle is one number"):
        pose_spread(torch.rand(3, 2), torch.zeros(3, dtype=torch.long), circular=True)
    with pytest.raises(ValueError, match="two lists of the same length"):
        orthogonal_line(torch.rand(3), torch.rand(4))
