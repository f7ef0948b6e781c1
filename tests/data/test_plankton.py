"""PlanktonSet: folders and archives in the shared format, and the augmentation of the placement paper."""

import math
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import kstest
from torch import nn

from pstn import STN
from pstn.data import Data, Drift, plankton, read_folder
from pstn.data.plankton import find_plankton
from pstn.train import Member, Train, fit, fit_fleet
from pstn.train.fleet.noise import Record
from pstn.warp import warp

#: Class, file, width and height: one wide, one tall, one square.
IMAGES = [("acantharia", "7.jpg", 40, 20), ("acantharia", "8.jpg", 10, 30), ("shrimp", "9.jpg", 16, 16)]


@pytest.fixture(params=["folder", "archive"])
def root(tmp_path, request):
    """White images with a dark half on the left."""
    folder = tmp_path / "made" / "train"
    for kind, file, width, height in IMAGES:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        pixels = np.full((height, width), 255, np.uint8)
        pixels[:, : width // 2] = 0
        Image.fromarray(pixels).save(folder / kind / file, quality=95)
    target = tmp_path / "PlanktonSet"
    if request.param == "folder":
        (tmp_path / "made").rename(target)
        (target / "train" / ".ipynb_checkpoints").mkdir()  # no class
    else:
        target.mkdir()
        with zipfile.ZipFile(target / "ndsb_train_gray.zip", "w") as archive:
            for kind, file, _, _ in IMAGES:
                archive.write(folder / kind / file, f"train/{kind}/{file}")
    return tmp_path


def test_images_fill_the_frame_light_on_black(root):
    data = plankton(root, size=64)
    assert data.x.shape == (3, 1, 64, 64)
    assert data.classes == ("acantharia", "shrimp")
    assert data.y.tolist() == [0, 0, 1]
    wide, tall, square = data.x[:, 0]
    assert wide[:16].max() == wide[48:].max() == 0, "64 × 32, in the middle"
    assert tall[:, :21].max() == tall[:, 43:].max() == 0
    for image, rows, columns in ((wide, slice(18, 46), 64), (square, slice(0, 64), 64)):
        assert image[rows, : columns // 2 - 4].min() > 0.9, "what was dark is light"
        assert image[rows, columns // 2 + 4 :].max() < 0.1, "what was white is black"
    assert len(plankton(root, size=16, per_class=1)) == 2


@pytest.mark.parametrize("root", ["archive"], indirect=True)
def test_a_damaged_image_of_an_archive_is_named(root):
    archive = root / "PlanktonSet" / "ndsb_train_gray.zip"
    raw = bytearray(archive.read_bytes())
    raw[raw.index(b"train/acantharia/8.jpg") + 200] ^= 0xFF
    archive.write_bytes(raw)
    for read in (plankton, lambda _: read_folder(zipfile.Path(archive, "train/"), size=16)):
        with pytest.raises(ValueError, match=r"ndsb_train_gray\.zip/train/acantharia/8\.jpg cannot be read"):
            read(root)


def test_missing_and_damaged_files_are_named(tmp_path):
    assert find_plankton(tmp_path) is None
    with pytest.raises(FileNotFoundError, match=r"PlanktonSet is not at hand.*ndsb_train_gray.zip"):
        plankton(tmp_path)
    archive = tmp_path / "PlanktonSet" / "ndsb_train_gray.zip"
    archive.parent.mkdir()
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is not a zip archive"):
        plankton(tmp_path)
    archive.unlink()
    folder = tmp_path / "PlanktonSet" / "train" / "shrimp"
    folder.mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no images"):
        plankton(tmp_path)
    (folder / "1.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        plankton(tmp_path)


def test_draws_are_spread_as_the_paper_says():
    move = Drift()
    pose = move.draw(4000).double()
    a, b, c, d = (pose[:, :4] + torch.tensor([1, 0, 0, 1.0])).unbind(1)
    determinant = a * d - b * c
    assert (determinant < 0).double().mean().item() == pytest.approx(0.5, abs=0.04), "one in two is mirrored"
    scale = determinant.abs().sqrt()

    def uniform(values, limit):
        assert values.abs().max() <= limit * (1 + 1e-5)
        return kstest((values / limit).numpy(), "uniform", (-1, 2)).pvalue > 1e-3

    assert uniform(scale.log(), math.log(1.3))
    assert uniform(96 * pose[:, 4], 20)
    assert uniform(96 * pose[:, 5], 20)
    flip = determinant.sign()
    angle = torch.atan2(c * flip, a * flip)
    assert uniform(angle, math.pi)
    # of the turned-back second column, (lean, 1) times the scale
    lean = (b * angle.cos() + d * angle.sin()) / scale
    assert uniform(lean.atan(), math.radians(20))


def test_the_pose_brings_the_picture_back():
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, 96)] * 2, indexing="ij")
    blob = torch.exp(-20 * ((x - 0.1) ** 2 + 3 * (y + 0.1) ** 2 + x * y)).expand(8, 1, 96, 96)
    move = Drift(96, 96, shift=10.0)
    pose = move.draw(8)
    moved = move.move(blob, pose)
    back = warp(moved, move.family, pose)
    assert (back - blob).abs().max() < 0.08
    assert (moved - blob).abs().amax((1, 2, 3)).median() > 0.3


def test_what_is_not_moved_is_only_shrunk():
    x = torch.rand(2, 1, 190, 190)
    torch.testing.assert_close(Drift(190, 95).still(x), nn.functional.avg_pool2d(x, 2), atol=1e-5, rtol=0)
    assert Drift().still(torch.rand(1, 1, 192, 192)).shape == (1, 1, 95, 95)
    torch.testing.assert_close(Drift().still(torch.ones(1, 1, 192, 192)), torch.ones(1, 1, 95, 95))


def test_in_a_fleet_every_network_sees_its_own_drift():
    move = Drift(16, 8, shift=2.0)
    data = Data(torch.rand(12, 1, 16, 16), torch.arange(12) % 3, ("a", "b", "c"))
    with Record() as record:
        move(data.x)
    assert [request.kind for request in record.requests] == ["uniform"]

    def network(seed):
        torch.manual_seed(seed)
        return STN(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))

    def config(seed):
        return Train(steps=3, batch_size=4, lr=0.1, seed=seed, accelerator="cpu")

    members = [Member(network(s), data, config=config(s), augment=move) for s in (1, 2)]
    together = [run.model.body[1].weight for run in fit_fleet(members, progress=False)]
    for seed, found in zip((1, 2), together, strict=True):
        alone = fit(network(seed), data, None, config(seed), augment=move, progress=False).model.body[1].weight
        torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


def test_what_makes_no_sense_is_refused():
    for options in ({"scale": 0.5}, {"shear": 2.0}, {"shift": -1.0}, {"size": 0}):
        with pytest.raises(ValueError, match="expected positive sides"):
            Drift(**options)
