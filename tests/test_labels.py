"""Labels travel with the picture, and back."""

import pytest
import torch

from pstn.families import TPS, Affine, Compose, Crop, Projective, Rotation, Similarity, Translation
from pstn.grid import from_pixels, to_pixels
from pstn.labels import unwarp_boxes, unwarp_masks, unwarp_points, warp_boxes, warp_masks, warp_points
from pstn.warp import warp

FAMILIES = [Translation(), Rotation(), Crop(), Similarity(), Affine(), Projective(), TPS(3), Compose(Crop(), TPS(3))]


def parameters(family, *shape, scale=0.1, seed=0):
    return scale * torch.randn(*shape, family.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_points_go_and_come_back(family):
    points = torch.rand(4, 6, 2, dtype=torch.float64) - 0.5
    theta = parameters(family, 4)
    assert torch.allclose(unwarp_points(warp_points(points, family, theta), family, theta), points, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_a_landmark_is_where_its_pixel_appears(family):
    size = (41, 41)
    theta = parameters(family, 1, scale=0.08)
    spot = torch.tensor([[26.0, 17.0]], dtype=torch.float64)  # column, row
    x = torch.zeros(1, 1, *size, dtype=torch.float64)
    rows, columns = torch.meshgrid(torch.arange(41.0), torch.arange(41.0), indexing="ij")
    x[0, 0] = torch.exp(-((columns - 26) ** 2 + (rows - 17) ** 2) / 8)
    out = warp(x, family, theta)[0, 0]
    found = torch.stack([(out * columns).sum(), (out * rows).sum()]) / out.sum()
    expected = to_pixels(warp_points(from_pixels(spot, size)[None], family, theta), size)[0, 0]
    assert (found - expected).abs().max() < 0.4


def test_boxes_hold_what_they_held():
    family = Similarity()
    boxes = torch.tensor([[[-0.4, -0.2, 0.1, 0.5]]], dtype=torch.float64)
    theta = parameters(family, 3, scale=0.3)
    warped = warp_boxes(boxes.expand(3, 1, 4), family, theta)
    inside = boxes[0, :, :2] + torch.rand(100, 2, dtype=torch.float64) * (boxes[0, :, 2:] - boxes[0, :, :2])
    points = warp_points(inside, family, theta)
    assert (points >= warped[..., :2] - 1e-9).all()
    assert (points <= warped[..., 2:] + 1e-9).all()


def test_boxes_without_rotation_come_back_exactly():
    family, theta = Crop(), parameters(Crop(), 2, scale=0.3)
    boxes = torch.tensor([[-0.4, -0.2, 0.1, 0.5], [0.0, 0.0, 0.3, 0.3]], dtype=torch.float64)
    there = warp_boxes(boxes, family, theta)
    assert torch.allclose(unwarp_boxes(there, family, theta), boxes.expand(2, 2, 4))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("family", [Similarity(), TPS(3)], ids=lambda f: type(f).__name__)
def test_masks_go_and_come_back(family, dtype):
    mask = torch.zeros(2, 1, 40, 50)
    mask[:, :, 10:25, 15:35] = 1
    mask = mask.to(dtype)
    theta = parameters(family, 2, scale=0.1).float()
    there = warp_masks(mask, family, theta)
    assert there.dtype == dtype
    assert set(there.float().unique().tolist()) <= {0.0, 1.0}
    back = unwarp_masks(there, family, theta)
    overlap = (back.bool() & mask.bool()).sum() / (back.bool() | mask.bool()).sum()
    assert overlap > 0.9


def test_masks_take_samples_and_a_label_for_outside():
    mask = torch.ones(2, 1, 6, 6, dtype=torch.long)
    out = warp_masks(mask, Translation(), torch.tensor([1.0, 0.0]).expand(3, 2, 2), fill=255)
    assert out.shape == (3, 2, 1, 6, 6)
    assert (out[..., :3] == 1).all()
    assert (out[..., 3:] == 255).all()


def test_masks_come_back_at_the_inputs_size():
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    window = torch.tensor([[torch.tensor(0.5).log(), 0.0, 0.0]])  # the middle half
    back = unwarp_masks(mask, Crop(), window, size=(16, 16))
    assert back.shape == (1, 1, 16, 16)
    assert back[0, 0, 4:12, 4:12].all()
    assert back.sum() == 64


def test_boxes_need_four_numbers_in_the_plane():
    with pytest.raises(ValueError, match=r"expected \(..., n, 4\) in 2-D"):
        warp_boxes(torch.zeros(1, 3), Similarity(), torch.zeros(4))
    with pytest.raises(ValueError, match="in 2-D"):
        warp_boxes(torch.zeros(1, 4), Crop(1), torch.zeros(2))
