"""The MNIST family: found, checked, downloaded; its subsets; and the list of what is at hand."""

import dataclasses
import gzip
import hashlib
import importlib
import struct

import numpy as np
import pytest
import torch

from pstn.data import Available, available, fashion_mnist, kmnist, mnist, mnist_subset

module = importlib.import_module("pstn.data.mnist")  # the function of that name hides it as an attribute
SETS = ("MNIST", "FASHION_MNIST", "KMNIST", "KMNIST_7K")


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def files(count, seed=0):
    """Published files in small: images of 4 x 4 whose first pixel is their index, the classes in turn."""
    made = {}
    for prefix, n in (("train", count), ("t10k", 20)):
        images = np.random.default_rng(seed).integers(0, 256, (n, 4, 4))
        images[:, 0, 0] = np.arange(n) // 256
        images[:, 0, 1] = np.arange(n) % 256
        made[f"{prefix}-images-idx3-ubyte.gz"] = idx(images)
        made[f"{prefix}-labels-idx1-ubyte.gz"] = idx(np.arange(n) % 10)
    return made


def index(data):
    return (data.x[:, 0, 0, :2] * 255).round().long() @ torch.tensor([256, 1])


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A mirror of small published sets, an empty root and an empty cache, with checksums to match."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "root"))
    for seed, name in enumerate(SETS):
        published = getattr(module, name)
        mirror = tmp_path / "mirror" / name
        mirror.mkdir(parents=True)
        md5 = {}
        for file, raw in files(700, seed).items():
            if file in published.md5:
                (mirror / file).write_bytes(raw)
                md5[file] = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        mirrors = (f"{mirror.as_uri()}/",) if published.mirrors else ()
        monkeypatch.setattr(module, name, dataclasses.replace(published, md5=md5, mirrors=mirrors))
    # The catalogue took its own references when it was imported.
    for name in SETS:
        monkeypatch.setattr(importlib.import_module("pstn.data.catalogue"), name, getattr(module, name))
    return tmp_path


def install(world, name, root="root"):
    folder = world / root / getattr(module, name).folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in (world / "mirror" / name).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(("name", "load"), [("MNIST", mnist), ("FASHION_MNIST", fashion_mnist), ("KMNIST", kmnist)])
def test_found_or_downloaded_the_data_are_the_same(world, name, load):
    downloaded = {split: load(split) for split in ("train", "test")}
    cached = world / "cache" / "pstn" / getattr(module, name).folder
    assert len(list(cached.iterdir())) == 4
    for file in (world / "mirror" / name).iterdir():
        file.rename(file.with_suffix(".moved"))
    again = load("train")
    for file in (world / "mirror" / name).iterdir():
        file.rename(file.with_suffix(".gz"))
    for file in cached.iterdir():
        file.unlink()
    install(world, name)
    for split, data in downloaded.items():
        found = load(split)
        assert torch.equal(found.x, data.x)
        assert torch.equal(found.y, data.y)
        assert found.name == f"{getattr(module, name).name} {split}"
    assert torch.equal(again.x, downloaded["train"].x)
    assert list(cached.iterdir()) == []
    assert (found.x.dtype, found.x.shape, float(found.x.max())) == (torch.float32, (20, 1, 4, 4), 1.0)
    assert len(load("train")) == 700


def test_root_goes_before_the_environment(world):
    install(world, "MNIST", "elsewhere")
    assert len(mnist("test", world / "elsewhere")) == 20
    assert not (world / "cache").exists()


def test_a_damaged_file_is_named(world):
    folder = install(world, "MNIST")
    file = folder / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz has md5 .* damaged or another file"):
        mnist("test")
    assert len(mnist("train")) == 700


def test_no_file_and_no_mirror(world):
    for file in (world / "mirror" / "MNIST").iterdir():
        file.unlink()
    with pytest.raises(ConnectionError, match=r"could not download train-images.*put the file at .*MNIST/raw"):
        mnist("train")
    with pytest.raises(ValueError, match="split is 'valid'; expected one of 'train', 'test'"):
        mnist("valid")
    with pytest.raises(ValueError, match="split is 'valid'; expected one of 'train', 'test'"):
        kmnist("valid")


def test_kmnist_in_part_says_so(world):
    install(world, "KMNIST_7K")
    part = kmnist("train")
    assert part.name == "KMNIST-7k train"
    assert kmnist("test").name == "KMNIST test"
    install(world, "KMNIST")
    whole = kmnist("train")
    assert whole.name == "KMNIST train"
    assert not torch.equal(whole.x, part.x)


def test_every_file_of_a_published_set_has_its_checksum():
    for name in ("MNIST", "FASHION_MNIST", "KMNIST"):
        published = getattr(module, name)
        assert set(published.md5) == {file for split in ("train", "test") for file in published.files(split)}
        assert all(len(bytes.fromhex(md5)) == 16 for md5 in published.md5.values())
        assert len(published.classes) == 10
        assert all(mirror.endswith("/") for mirror in published.mirrors)


def test_seeded_folds_are_balanced_and_disjoint(world):
    folds = [mnist_subset(100, fold) for fold in range(5)]
    assert torch.equal(mnist_subset(100, 1, whole=mnist("train")).x, folds[1].x)
    validation = mnist_subset(100, split="validation")
    assert all(fold.counts == (10,) * 10 for fold in folds)
    assert len(validation) == 200
    everything = torch.cat([index(data) for data in (*folds, validation)])
    assert sorted(everything.tolist()) == list(range(700))
    assert folds[3].name == "MNIST-100 fold 3 (folds by seed 0)"
    assert validation.name == "MNIST-100 validation (folds by seed 0)"
    whole = mnist("train")
    assert torch.equal(whole.y[index(folds[2])], folds[2].y)


def test_seeded_folds_repeat_and_differ_by_seed(world):
    assert torch.equal(index(mnist_subset(50, 1)), index(mnist_subset(50, 1, seed=0)))
    assert not torch.equal(index(mnist_subset(50, 1)), index(mnist_subset(50, 1, seed=1)))
    first, other = (index(mnist_subset(50, split="validation", fold=fold)) for fold in (0, 4))
    assert torch.equal(first, other)


def test_validation_is_limited(world, monkeypatch):
    monkeypatch.setattr(module, "_VALIDATION", 30)
    assert len(mnist_subset(100, split="validation")) == 30


def test_further_folds_are_balanced_and_of_digits_that_nobody_has(world, monkeypatch):
    monkeypatch.setattr(module, "_VALIDATION", 100)
    folds = [mnist_subset(50, fold) for fold in range(9)]
    assert all(fold.counts == (5,) * 10 for fold in folds)
    everything = torch.cat([index(data) for data in (*folds, mnist_subset(50, split="validation"))])
    assert len(everything.unique()) == 9 * 50 + 100
    assert torch.equal(mnist_subset(50, 7).x, folds[7].x)
    assert folds[5].name == "MNIST-50 fold 5 (beyond the folds by seed 0)"
    with pytest.raises(ValueError, match=r"fold is 20; there are \d+ folds of 50 digits, from 0"):
        mnist_subset(50, 20)


def test_papers_folds_where_there_are_any(world):
    install(world, "MNIST")
    np.savez(
        world / "root" / "MNIST" / "subset_folds.npz",
        train_10_fold_0=np.arange(20, 30, dtype=np.int32),
        validation_10=np.array([5, 699], dtype=np.int32),
    )
    train, validation = mnist_subset(10), mnist_subset(10, split="validation")
    assert (index(train).tolist(), train.name) == (list(range(20, 30)), "MNIST-10 fold 0 (papers' folds)")
    assert (index(validation).tolist(), validation.name) == ([5, 699], "MNIST-10 validation (papers' folds)")
    further = mnist_subset(10, 5)
    assert further.name == "MNIST-10 fold 5 (beyond the papers' folds)"
    assert not {5, 699, *range(20, 30)} & set(index(further).tolist())
    assert mnist_subset(10, seed=0).name == "MNIST-10 fold 0 (folds by seed 0)"
    assert mnist_subset(20).name == "MNIST-20 fold 0 (folds by seed 0)"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"n": 15}, "n is 15; 5 balanced folds need a multiple of 10, at most 140"),
        ({"n": 150}, "at most 140"),
        ({"n": 0}, "n is 0"),
        ({"n": 10, "fold": -1}, "fold is -1; expected 0 or more"),
        ({"n": 140, "fold": 5}, "fold is 5; there are 5 folds of 140 digits, from 0"),
        ({"n": 10, "split": "test"}, "split is 'test'; expected one of 'train', 'validation'"),
    ],
)
def test_bad_subsets(world, arguments, match):
    with pytest.raises(ValueError, match=match):
        mnist_subset(**arguments)


def test_available(world):
    def found():
        return {entry.name: entry for entry in available()}

    assert not {"MNIST", "KMNIST", "KMNIST-7k"} & set(found())
    assert found()["CBF (generated)"] == Available("CBF (generated)")
    folder = install(world, "MNIST")
    install(world, "KMNIST_7K")
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    series = world / "root" / "UCR" / "Made" / "Made_TEST.tsv"
    series.parent.mkdir(parents=True)
    series.write_text("1\t2\n")
    (world / "root" / "UCR" / "Empty").mkdir()
    assert found()["MNIST"] == Available("MNIST", ("train",), folder)
    assert found()["KMNIST-7k"].splits == ("train",)
    assert found()["UCR/Made"] == Available("UCR/Made", ("test",), series.parent)
    assert "UCR/Empty" not in found()
    assert {entry.name for entry in available(world / "nowhere")} < set(found())
