"""Images in folders: classes, sizes, depths, and broken files."""

import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from pstn.data import read_folder, read_image


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array)).save(path, **options)
    return path


@pytest.fixture
def pets(tmp_path):
    root = tmp_path / "pets"
    for label, name in enumerate(("cat", "dog")):
        for i in range(3):
            save(root / name / f"{i}.png", np.full((6, 8, 3), (100 * label + i, 0, 255), np.uint8))
    save(root / "dog" / "more" / "3.PNG", np.full((6, 8), 51, np.uint8))
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / "cat" / ".hidden.png").write_text("not an image either")
    (root / ".git").mkdir()
    save(root / "loose.png", np.zeros((3, 3), np.uint8))
    return root


def test_folder(pets):
    data = read_folder(pets)
    assert (data.name, data.classes, data.counts) == ("pets", ("cat", "dog"), (3, 4))
    assert data.x.shape == (7, 3, 6, 8)
    assert (data.x[:6, 0, 0, 0] * 255).round().tolist() == [0, 1, 2, 100, 101, 102]
    assert torch.allclose(data.x[6], torch.full((3, 6, 8), 0.2))
    assert data.x[0, 2].eq(1).all()


def test_folder_grey_resized_and_with_given_classes(pets):
    data = read_folder(pets, size=(4, 5), colour=False, classes=("dog", "mouse", "cat"), name="small")
    assert (data.x.shape, data.counts, data.name) == ((7, 1, 4, 5), (4, 0, 3), "small")
    with pytest.raises(ValueError, match=r"holds the folders \['cat', 'dog'\]; expected one a class: \['cat'\]"):
        read_folder(pets, classes=("cat",))


def test_folder_in_an_archive_is_the_same(pets, tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for file in sorted(pets.rglob("*")):
            archive.write(file, file.relative_to(pets.parent))
    inside = read_folder(zipfile.Path(tmp_path / "pets.zip", "pets/"))
    outside = read_folder(pets)
    assert torch.equal(inside.x, outside.x)
    assert torch.equal(inside.y, outside.y)
    assert inside.classes == outside.classes


def test_sixteen_bits_keep_their_range(tmp_path):
    ramp = np.linspace(0, 65535, 12).astype(np.uint16).reshape(3, 4)
    path = save(tmp_path / "deep.png", ramp)
    expected = torch.from_numpy(ramp.astype(np.float32) / 65535)
    assert torch.allclose(read_image(path, colour=False)[0], expected, atol=1e-6)
    assert torch.allclose(read_image(path), expected.expand(3, -1, -1), atol=1e-6)


def test_floating_point_pixels_are_refused(tmp_path):
    path = save(tmp_path / "deep.tif", np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4))
    with pytest.raises(ValueError, match=r"deep\.tif cannot be read .* floating-point .* expected 8 or 16 bits"):
        read_image(path)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, mode):
    shape = np.zeros((4, 6), np.uint8)
    shape[1:3, 1:4] = 255
    black = Image.new("L", (6, 4))
    black.putalpha(Image.fromarray(shape))  # black on nothing, as symbols are
    (black.convert("RGBA").quantize() if mode == "P" else black.convert(mode)).save(tmp_path / "symbol.png")
    expected = 1 - torch.from_numpy(shape).float() / 255
    assert torch.equal(read_image(tmp_path / "symbol.png", colour=False)[0], expected)
    assert torch.equal(read_image(tmp_path / "symbol.png"), expected.expand(3, -1, -1))


def test_photographs_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    path = save(tmp_path / "photo.jpg", np.zeros((6, 10, 3), np.uint8), exif=exif)
    assert read_image(path).shape == (3, 10, 6)


def test_a_constant_image_stays_constant_when_resized(tmp_path):
    path = save(tmp_path / "a.png", np.full((31, 17), 128, np.uint8))
    assert torch.allclose(read_image(path, size=8), torch.tensor(128 / 255))
    with pytest.raises(ValueError, match="at least one pixel"):
        read_image(path, size=0)


@pytest.mark.parametrize("ending", [".png", ".jpg", ".bmp"])
@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_a_broken_image_is_named(pets, ending, damage):
    whole = save(pets / "dog" / f"broken{ending}", np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8))
    raw = whole.read_bytes()
    whole.write_bytes({"truncated": raw[: len(raw) - 60], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(ValueError, match=rf"broken\{ending} cannot be read as an image"):
        read_folder(pets)


def test_sizes_that_differ(pets):
    save(pets / "dog" / "large.png", np.zeros((9, 9), np.uint8))
    with pytest.raises(ValueError, match=r"large\.png is 9 x 9 pixels and .*0\.png 6 x 8; .*size=\(height, width\)"):
        read_folder(pets)
    assert read_folder(pets, size=6).x.shape == (8, 3, 6, 6)


def test_folders_without_images(pets, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        read_folder(pets / "loose.png")
    with pytest.raises(ValueError, match=r"holds the folders \[\]; expected one a class"):
        read_folder(pets / "cat")
    (pets / "newt").mkdir()
    with pytest.raises(ValueError, match="newt holds no images"):
        read_folder(pets)
    with pytest.raises(FileNotFoundError, match=r"nothing\.png does not exist"):
        read_image(tmp_path / "nothing.png")


def test_without_pillow_the_extra_is_named(pets, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'pstn\[images\]'"):
        read_folder(pets)
