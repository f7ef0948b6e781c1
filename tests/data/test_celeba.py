"""CelebA: small files in the publisher's format."""

import numpy as np
import pytest
import torch
from PIL import Image

from pstn.data import celeba, celeba_attributes, celeba_images
from pstn.data.celeba import find_celeba

NAMES = ("Bald", "Eyeglasses", "Smiling")
#: File, part, attributes.
FACES = [(1, 0, "+-+"), (2, 1, "--+"), (3, 0, "-++"), (4, 2, "+++"), (5, 0, "---"), (6, 1, "+--")]


@pytest.fixture
def root(tmp_path):
    """Faces whose brightness is their number."""
    folder = tmp_path / "CelebA"
    (folder / "img_align_celeba").mkdir(parents=True)
    lines, parts = [f"{len(FACES)}", " ".join(NAMES) + " "], []
    for number, part, has in FACES:
        file = f"{number:06d}.jpg"
        # The publisher sets values apart by one or two spaces.
        lines.append(f"{file} " + " ".join({"+": " 1", "-": "-1"}[sign] for sign in has))
        parts.append(f"{file} {part}")
        Image.fromarray(np.full((218, 178, 3), 40 * number, np.uint8)).save(folder / "img_align_celeba" / file)
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return tmp_path


def numbers(x):
    return (x.mean((1, 2, 3)) * 255 / 40).round().int().tolist()


def test_attributes_of_each_part(root):
    names, files, table = celeba_attributes("train", root)
    assert names == NAMES
    assert files == ("000001.jpg", "000003.jpg", "000005.jpg")
    assert table.tolist() == [[True, False, True], [False, True, True], [False, False, False]]
    assert [len(celeba_attributes(split, root)[1]) for split in ("train", "valid", "test")] == [3, 2, 1]


def test_images_stand_in_the_order_of_the_files(root):
    x = celeba_images("valid", root, size=(10, 6))
    assert x.shape == (2, 3, 10, 6)
    assert numbers(x) == [2, 6]
    assert numbers(celeba_images("train", root, count=2)) == [1, 3]


@pytest.mark.parametrize(("attribute", "labels"), [("Bald", [1, 0, 0]), ("Smiling", [1, 1, 0])])
def test_an_attribute_as_the_label(root, attribute, labels):
    data = celeba(attribute, "train", root, size=8)
    assert data.y.tolist() == labels
    assert data.classes == (f"not {attribute}", attribute)
    assert numbers(data.x) == [1, 3, 5]


def test_images_that_are_loaded_are_shared(root):
    x = celeba_images("train", root, size=8)
    one, other = (celeba(name, "train", root, images=x) for name in NAMES[:2])
    assert one.x is x
    assert other.x is x
    assert celeba("Bald", "train", root, images=x[:2]).y.tolist() == [1, 0]
    with pytest.raises(ValueError, match="4 images are given; train has 3 files"):
        celeba("Bald", "train", root, images=torch.rand(4, 3, 8, 8))


def test_what_is_missing_or_broken_is_named(root, tmp_path):
    assert find_celeba(root) == root / "CelebA"
    with pytest.raises(FileNotFoundError, match=r"img_align_celeba, list_attr_celeba\.txt.*mmlab"):
        celeba("Bald", "train", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no attribute 'Tall'; it has Bald, Eyeglasses, Smiling"):
        celeba("Tall", "train", root)
    attributes, partition = root / "CelebA/list_attr_celeba.txt", root / "CelebA/list_eval_partition.txt"
    partition.write_text(partition.read_text() + "000009.jpg 0\n")
    with pytest.raises(ValueError, match="names 4 files of train, 1 of them without attributes"):
        celeba_attributes("train", root)
    attributes.write_text(attributes.read_text().replace("000001.jpg  1", "000001.jpg  7"))
    with pytest.raises(ValueError, match="no list of attributes; expected a count, the names"):
        celeba_attributes("valid", root)
