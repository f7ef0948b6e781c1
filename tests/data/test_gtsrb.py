"""German traffic signs in the format of their file, and signs pasted on clutter."""

import numpy as np
import pytest
import torch

from pstn.data import Boxed, Data, gtsrb, on_clutter
from pstn.data.gtsrb import find_gtsrb, most_common, of_classes


@pytest.fixture
def root(tmp_path):
    (tmp_path / "GTSRB32").mkdir()
    pixels = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 12), ("test", 4)):
        arrays[f"x_{split}"] = pixels.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = (np.arange(n) // 3).astype(np.uint8)
        arrays[f"box_{split}"] = np.tile(np.array([64, 48, 8, 12, 55, 35], np.int16), (n, 1))
        arrays[f"name_{split}"] = np.array(
            [f"{i // 3:05d}/{i % 3 // 2:05d}_{i:05d}.ppm" if split == "train" else f"{i:05d}.ppm" for i in range(n)]
        )
    np.savez(tmp_path / "GTSRB32/gtsrb32_subset.npz", **arrays)
    return tmp_path


def test_images_boxes_and_tracks(root):
    signs = gtsrb("train", root)
    assert signs.data.x.shape == (12, 3, 32, 32)
    assert (signs.data.x.min(), signs.data.x.max()) == (0, 1)
    assert signs.data.classes == ("0", "1", "2", "3")
    # 8 of 64 from the left, 12 of 48 from the top; the last pixels, 55 and 35, are inside
    assert signs.boxes[0].tolist() == [-0.75, -0.5, 0.75, 0.5]
    same = signs.tracks[:, None] == signs.tracks
    expected = [(i // 3, i % 3 // 2) for i in range(12)]
    assert same.tolist() == [[a == b for b in expected] for a in expected]
    assert gtsrb("test", root).tracks.unique().numel() == 4


def test_without_the_file_its_origin_is_named(tmp_path):
    assert find_gtsrb(tmp_path) is None
    with pytest.raises(FileNotFoundError, match=r"gtsrb32_subset\.npz.*benchmark\.ini\.rub\.de"):
        gtsrb("train", tmp_path)


def test_a_file_without_boxes_is_refused(root):
    path = root / "GTSRB32/gtsrb32_subset.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "box_test"}
    np.savez(path, **arrays)
    assert len(gtsrb("train", root).data) == 12
    with pytest.raises(ValueError, match=r"gtsrb32_subset\.npz lacks box_test; expected the boxes"):
        gtsrb("test", root)


def test_the_most_common_classes_in_order(root):
    signs = gtsrb("train", root).subset(torch.tensor([0, 3, 4, 6, 7, 8, 9]))
    assert most_common(signs.data, 3) == ("2", "1", "0")
    chosen = of_classes(signs, ("2", "1"))
    assert chosen.data.classes == ("2", "1")
    assert chosen.data.y.tolist() == [1, 1, 0, 0, 0]
    assert torch.equal(chosen.data.x, signs.data.x[1:6])
    assert torch.equal(chosen.tracks, signs.tracks[1:6])


def smooth(n):
    """Signs that are planes of colour: any resizing of a part of one is known."""
    across = (torch.arange(32) + 0.5) / 16 - 1
    x = torch.stack([across.expand(32, 32), across[:, None].expand(32, 32), torch.zeros(32, 32)])
    data = Data((x / 4 + 0.5).expand(n, -1, -1, -1).clone(), torch.arange(n) % 2, ("a", "b"), "planes")
    return Boxed(data, torch.tensor([-0.5, -0.25, 0.75, 0.5]).expand(n, 4), torch.arange(n))


def test_what_is_in_a_box():
    found = smooth(2).crops(10).x
    steps = (torch.arange(10) + 0.5) / 10
    torch.testing.assert_close(found[0, 0], ((-0.5 + 1.25 * steps) / 4 + 0.5).expand(10, 10))
    torch.testing.assert_close(found[0, 1], ((-0.25 + 0.75 * steps) / 4 + 0.5)[:, None].expand(10, 10))


def test_room_around_a_box():
    signs = on_clutter(smooth(3), size=48, sides=(12, 14), seed=1)
    wide, narrow = signs.crops(30, room=3).x, signs.crops(10).x
    torch.testing.assert_close(wide[..., 10:20, 10:20], narrow)
    steps = (torch.arange(30) + 0.5) / 30
    found = smooth(1).crops(30, room=1.2).x[0, 0, 0]
    torch.testing.assert_close(found, (0.125 - 0.75 + 1.5 * steps) / 4 + 0.5)


def test_on_clutter_the_box_has_the_sign_and_the_rest_does_not():
    signs = smooth(40)
    pasted = on_clutter(signs, size=48, sides=(12, 24), patches=3, seed=1)
    assert pasted.data.x.shape == (40, 3, 48, 48)
    assert torch.equal(pasted.data.y, signs.data.y)
    found = (pasted.boxes + 1) * 24
    pixels = found.round()
    torch.testing.assert_close(found, pixels)
    sides = pixels[:, 2:] - pixels[:, :2]
    assert torch.equal(sides[:, 0], sides[:, 1])
    assert 12 <= sides.min() < 15
    assert 22 < sides.max() <= 24
    assert pixels.min() >= 0
    assert pixels.max() <= 48
    assert len(pixels[:, 0].unique()) > 15
    for i in range(40):
        x1, y1, x2, y2 = pixels[i].long().tolist()
        sign = signs.subset(torch.tensor([i])).crops(x2 - x1).x[0]
        torch.testing.assert_close(pasted.data.x[i, :, y1:y2, x1:x2], sign)
    assert not torch.allclose(pasted.data.x[0], pasted.data.x[1])
    assert pasted.data.x.min() >= 0
    assert pasted.data.x.max() <= 1


def test_cutting_the_box_out_again_gives_the_sign_back():
    signs = smooth(20)
    found, expected = on_clutter(signs, size=48, sides=(12, 24), seed=1).crops(8).x, signs.crops(8).x
    assert (found - expected)[..., 1:-1, 1:-1].abs().max() < 0.01, "but at the very edge, where clutter shines in"


def test_seeds():
    signs = smooth(5)
    one, same, other = (on_clutter(signs, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.data.x, same.data.x)
    assert torch.equal(one.boxes, same.boxes)
    assert not torch.equal(one.boxes, other.boxes)


@pytest.mark.parametrize("sides", [(0, 8), (9, 8), (8, 80)])
def test_sides_that_make_no_sense_are_refused(sides):
    with pytest.raises(ValueError, match="expected 1 <= least <= greatest <= 64"):
        on_clutter(smooth(1), sides=sides)
