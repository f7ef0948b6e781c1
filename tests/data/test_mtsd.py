"""Mapillary's traffic signs: small files in the publisher's format."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from pstn.data import lone_signs, mtsd
from pstn.data.mtsd import common_labels, find_mtsd

WIDTH, HEIGHT = 900, 600


def thing(label, x1, y1, x2, y2, **more):
    return {
        "key": f"{label}-{x1}",
        "label": label,
        "bbox": {"xmin": x1, "ymin": y1, "xmax": x2, "ymax": y2, **more},
        "properties": {"ambiguous": False, "occluded": False},
    }


@pytest.fixture
def root(tmp_path):
    """Blue photographs in which signs are red, and their annotations."""
    photographs = {
        "alone": [thing("stop", 400, 300, 440, 330)],
        "corner": [thing("yield", 10, 20, 30, 50)],
        # 151 pixels apart and 149 apart
        "apart": [thing("stop", 200, 200, 220, 220), thing("yield", 371, 200, 391, 220)],
        "close": [thing("stop", 200, 200, 220, 220), thing("yield", 369, 200, 389, 220)],
        "other": [thing("other-sign", 300, 300, 320, 320)],
        "beside other": [thing("stop", 300, 300, 320, 320), thing("other-sign", 350, 300, 370, 320)],
        "panorama": [
            thing("yield", 880, 100, 10, 120, cross_boundary={
                "left": {"xmin": 880, "ymin": 100, "xmax": 900, "ymax": 120},
                "right": {"xmin": 0, "ymin": 100, "xmax": 10, "ymax": 120},
            }),
            thing("stop", 60, 100, 80, 120),
            thing("stop", 400, 100, 420, 120),
        ],
        "later": [thing("rare", 300, 300, 330, 330)],
        "tested": [thing("yield", 500, 300, 540, 340)],
        "unknown": [thing("never seen in training", 500, 300, 540, 340)],
    }  # fmt: skip
    folder = tmp_path / "MTSD"
    for name in ("annotations", "images", "splits"):
        (folder / name).mkdir(parents=True)
    for key, objects in photographs.items():
        key = key.replace(" ", "_")
        about = {"width": WIDTH, "height": HEIGHT, "ispano": key == "panorama", "objects": objects}
        (folder / f"annotations/{key}.json").write_text(json.dumps(about))
        pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        pixels[..., 2] = 255
        for each in objects:
            box = each["bbox"]
            pixels[box["ymin"] : box["ymax"], box["xmin"] : box["xmax"]] = (255, 0, 0)
        Image.fromarray(pixels).save(folder / f"images/{key}.jpg", quality=98, subsampling=0)
    keys = [key.replace(" ", "_") for key in photographs]
    (folder / "splits/train.txt").write_text("\n".join(keys[:-2]) + "\n")
    (folder / "splits/val.txt").write_text("\n".join(keys[-2:]) + "\n")
    return tmp_path


def test_signs_that_stand_alone(root):
    found = [(sign.key, sign.label) for sign in lone_signs("train", root)]
    assert found == [
        ("alone", "stop"), ("corner", "yield"), ("apart", "stop"), ("apart", "yield"), ("panorama", "stop"),
        ("later", "rare"),
    ]  # fmt: skip
    assert [sign.box[0] for sign in lone_signs("train", root) if sign.key == "panorama"] == [400]


def test_a_smaller_margin_finds_no_fewer(root):
    few, some, many = ({(s.key, s.box) for s in lone_signs("train", root, margin=m)} for m in (300, 150, 10))
    assert few < some < many


def test_the_view_is_the_box_with_its_margin_within_the_photograph(root):
    signs = {sign.key: sign for sign in lone_signs("train", root)}
    assert signs["alone"].view == (250, 150, 590, 480)
    assert signs["corner"].view == (0, 0, 180, 200)
    assert signs["alone"].place == pytest.approx((-20 / 170, -15 / 165, 20 / 170, 15 / 165))


def test_images_show_the_sign_where_the_box_is(root):
    data, boxes = mtsd("train", root, size=96)
    assert data.x.shape == (6, 3, 96, 96)
    assert data.classes == ("stop", "yield", "rare")
    assert data.y.tolist() == [0, 1, 0, 1, 0, 2]
    centres = (torch.arange(96) + 0.5) / 48 - 1
    for image, box in zip(data.x, boxes.tolist(), strict=True):
        inside = ((centres > box[1]) & (centres < box[3]))[:, None] & (centres > box[0]) & (centres < box[2])
        red = image[0] > 0.5
        assert (red == inside).float().mean() > 0.99
        assert red.any()


def test_images_may_lie_in_a_folder_of_their_split(root):
    whole = mtsd("val", root, size=8)[0]
    images = root / "MTSD/images"
    (images / "val").mkdir()
    (images / "tested.jpg").rename(images / "val/tested.jpg")
    assert torch.equal(mtsd("val", root, size=8)[0].x, whole.x)


def test_in_the_box_is_nothing_but_the_sign(root):
    data, boxes = mtsd("train", root, view="box", size=8)
    within = data.x[..., 1:-1, 1:-1]  # the pixels at the edge are smoothed with what is outside
    assert within[:, 0].min() > 0.9
    assert within[:, 2].max() < 0.1
    assert torch.equal(boxes, torch.tensor([-1.0, -1.0, 1.0, 1.0]).expand(6, 4))


def test_the_classes_are_those_of_training(root):
    data, _ = mtsd("val", root, size=8, classes=2)
    assert (data.classes, data.y.tolist()) == (("stop", "yield"), [1])
    given, _ = mtsd("val", root, size=8, classes=("never seen in training", "stop"))
    assert given.y.tolist() == [0]
    with pytest.raises(ValueError, match="has no lone sign of the classes"):
        mtsd("val", root, classes=("rare",))


def test_of_equals_the_first_by_the_alphabet(root):
    signs = lone_signs("train", root)
    assert common_labels(signs[:2]) == ("stop", "yield")
    assert common_labels(signs, 1) == ("stop",)


def test_what_is_missing_or_broken_is_named(root, tmp_path):
    assert find_mtsd(root) == root / "MTSD"
    with pytest.raises(FileNotFoundError, match=r"annotations, images and splits.*mapillary\.com"):
        mtsd("train", tmp_path / "nowhere")
    (root / "MTSD/images/alone.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"alone\.jpg does not exist; it is part of"):
        mtsd("train", root, size=8)
    (root / "MTSD/images/alone.jpg").write_text("not an image")
    with pytest.raises(ValueError, match=r"alone\.jpg cannot be read"):
        mtsd("train", root, size=8)
    box = {"xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2}
    unnamed = json.dumps({"width": 5, "height": 5, "objects": [{"bbox": box}]})
    for text in ("{", '{"width": 5}', '{"width": 5, "height": 5, "objects": [{"label": "a"}]}', unnamed):
        (root / "MTSD/annotations/alone.json").write_text(text)
        with pytest.raises(ValueError, match=r"alone\.json is not an annotation of MTSD"):
            lone_signs("train", root)
    with pytest.raises(ValueError, match="split"):
        lone_signs("test", root)
