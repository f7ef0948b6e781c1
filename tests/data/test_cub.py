"""CUB-200-2011: small files in the publisher's format, windows and ten crops."""

import numpy as np
import pytest
import torch
from PIL import Image

from pstn.data import Cut, cub, cub_files, ten_crops
from pstn.data.cub import find_cub
from pstn.train.fleet.noise import Record

#: Species, file, for training, width and height.
BIRDS = [
    ("001.Black_footed_Albatross", "a_1.jpg", 1, 40, 20),
    ("001.Black_footed_Albatross", "a_2.jpg", 0, 20, 40),
    ("002.Laysan_Albatross", "l_1.jpg", 1, 24, 24),
    ("002.Laysan_Albatross", "l_2.jpg", 1, 30, 24),
]


@pytest.fixture
def root(tmp_path):
    """Photographs whose left half is red, the right half blue."""
    folder = tmp_path / "CUB_200_2011"
    names = sorted({bird[0] for bird in BIRDS})
    (folder / "classes.txt").parent.mkdir()
    (folder / "classes.txt").write_text("".join(f"{n} {name}\n" for n, name in enumerate(names, 1)))
    lists = {"images.txt": "", "image_class_labels.txt": "", "train_test_split.txt": ""}
    for n, (name, file, train, width, height) in enumerate(BIRDS, 1):
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[:, : width // 2, 0], pixels[:, width // 2 :, 2] = 255, 255
        Image.fromarray(pixels).save(folder / "images" / name / file, quality=98, subsampling=0)
        lists["images.txt"] += f"{n} {name}/{file}\n"
        lists["image_class_labels.txt"] += f"{n} {names.index(name) + 1}\n"
        lists["train_test_split.txt"] += f"{n} {train}\n"
    for name, text in lists.items():
        (folder / name).write_text(text)
    return tmp_path


def test_files_and_species_of_each_part(root):
    classes, files = cub_files("train", root)
    assert classes == ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    assert [(path.name, label) for path, label in files] == [("a_1.jpg", 0), ("l_1.jpg", 1), ("l_2.jpg", 1)]
    assert [path.name for path, _ in cub_files("test", root)[1]] == ["a_2.jpg"]


def test_images_are_resized_by_their_shorter_side(root):
    data = cub("train", root, size=32)
    assert data.x.shape == (3, 3, 32, 32)
    assert data.y.tolist() == [0, 1, 1]
    for image in data.x:  # the halves meet in the middle, whatever the shape was
        assert image[0, :, :12].min() > 0.9
        assert image[2, :, 20:].min() > 0.9
    wide = cub("train", root, size=16, wide=32)
    assert wide.x[0, 0, :8].max() == 0, "above and below a wide one it is black"
    assert wide.x[0, 0, 10:22, :12].min() > 0.9
    assert len(cub("train", root, size=8, per=1)) == 2


def test_what_is_missing_or_does_not_fit_is_named(root, tmp_path):
    assert find_cub(tmp_path / "elsewhere") is None
    with pytest.raises(FileNotFoundError, match=r"CUB-200-2011 is not at hand.*classes.txt.*caltech"):
        cub(root=tmp_path / "elsewhere")
    folder = root / "CUB_200_2011"
    (folder / "images" / "002.Laysan_Albatross" / "l_1.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"l_1.jpg does not exist; images.txt names it"):
        cub("train", root)
    (folder / "images" / "002.Laysan_Albatross" / "l_1.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        cub("train", root)
    (folder / "image_class_labels.txt").write_text("1 1\n")
    with pytest.raises(ValueError, match="the lists do not fit together, '3' is missing"):
        cub("train", root)
    (folder / "image_class_labels.txt").write_text("1\n")
    with pytest.raises(ValueError, match="expected a number and a word a line"):
        cub("train", root)


def test_windows_are_windows_one_in_two_mirrored():
    x = torch.rand(200, 3, 12, 12)
    cut = Cut(12, 8)
    source = torch.Generator()
    seen, drawn = cut(x, source.manual_seed(1)), cut.draw(200, generator=source.manual_seed(1))
    corner = ((drawn[:, 1:3] + 1) * 12 - 8) / 2
    assert set(corner.round().int().flatten().tolist()) == set(range(5))
    assert (drawn[:, 3] < 0).float().mean().item() == pytest.approx(0.5, abs=0.12)
    for image, window, (left, top), side in zip(x, seen, corner.round().int().tolist(), drawn[:, 3], strict=True):
        part = image[:, top : top + 8, left : left + 8]
        assert torch.equal(window, part if side > 0 else part.flip(-1))
    with Record() as record:
        cut(x)
    assert [request.kind for request in record.requests] == ["uniform"]
    with pytest.raises(ValueError, match="a window of 9 pixels in photographs of 8"):
        Cut(8, 9)


def test_ten_crops_are_the_corners_and_the_centre_and_mirrored():
    x = torch.rand(2, 3, 8, 10)
    crops = ten_crops(x, 6)
    assert torch.equal(crops[0], x[..., :6, :6])
    assert torch.equal(crops[3], x[..., 2:, 4:])
    assert torch.equal(crops[4], x[..., 1:7, 2:8])
    assert torch.equal(crops[5:], crops[:5].flip(-1))
    with pytest.raises(ValueError, match="windows of 9 pixels"):
        ten_crops(x, 9)
