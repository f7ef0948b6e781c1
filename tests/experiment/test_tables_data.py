"""Tables of series, pairs, signs and faces: parameters, states, and a few steps on small files in the same formats."""

import gzip
import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pstn.data import Data
from pstn.experiment import compare, find, run

IDS = ("pstn20/table2", "pstn20/table3", "pstn20/table4", "pstn22/table1", "pstn22/table3")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A folder of data that holds nothing yet; what was loaded from another is forgotten."""
    for table in IDS:
        find(table)
    monkeypatch.setenv("PSTN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    series, signs = (importlib.import_module(f"experiments.{name}") for name in ("series", "signs"))
    faces, digits = (importlib.import_module(f"experiments.pstn20.{name}") for name in ("table4", "table2"))
    loaded = (series._parts, signs._pasted, signs._photographs, faces._images, faces._attribute, digits._part)
    for cached in loaded:
        cached.cache_clear()
    yield tmp_path
    for cached in loaded:
        cached.cache_clear()


def short(row, **options):
    """The row with two steps, of one setting and one fold."""
    train = replace(row.train, steps=2, epochs=1, batch_size=4, samples=min(row.train.samples, 2))
    grid = {name: values[:1] for name, values in row.grid.items()}
    needs = None if row.needs is None else short(row.needs)
    return replace(
        row, **{"train": train, "grid": grid, "folds": 1, "tuning_folds": 1, "needs": needs, "samples": 2, **options}
    )


def trained(id, names, folder, **options):
    """The records of some rows of a table after a run of two steps."""
    table = find(id)
    rows = [short(table.row(name), **options) for name in names]
    small = replace(table, rows=rows, claims=(), quick=())
    records = run(small, device="cpu", runs=folder / "runs", results=folder / "results").records.values()
    found = {record["row"]: record for record in records}
    assert all(record["failure"] is None for record in found.values())
    assert all(np.isfinite(found[name]["test"]["nll"]) for name in names)
    return found


@pytest.mark.parametrize(
    ("id", "row", "count"),
    [
        ("pstn22/table3", "cnn-faceall", 1_196_314),
        ("pstn22/table3", "stn-faceall", 1_197_423),
        ("pstn22/table3", "pstn-faceall", 1_198_008),
        ("pstn20/table3", "pstn-starlightcurves", 1_197_293),
        ("pstn20/table2", "cnn", 173_620),
        ("pstn20/table2", "stn", 671_292),
        ("pstn20/table2", "pstn", 722_996),
        ("pstn20/table2", "stn-close", 545_380),
        ("pstn20/table2", "pstn-close", 597_084),
        ("pstn20/table4", "cnn", 154_422),
        ("pstn20/table4", "stn", 223_560),
        ("pstn20/table4", "pstn", 275_466),
        ("pstn22/table1", "mtsd-cnn", 11_181_642),
        ("pstn22/table1", "gtsrb-cnn", 701_466),
    ],
)
def test_numbers_of_parameters(id, row, count):
    row = find(id).row(row)
    assert sum(p.numel() for p in row.build(row.settings()[0]).parameters()) == count


@pytest.mark.parametrize("id", IDS[1:])  # what the first needs is downloaded
def test_without_data_every_row_says_which_file_and_from_where(id):
    for row in find(id).rows:
        assert row.state == "needs data"
        assert "https://" in row.lacks or "http://" in row.lacks


def write_series(root, name, classes, length, parts=("TRAIN", "TEST"), each=8):
    folder = root / "UCR" / name
    folder.mkdir(parents=True)
    values = np.random.default_rng(0)
    for part in parts:
        lines = [
            "\t".join([str(label + 1), *(f"{v:.4f}" for v in values.normal(label, 1, length))])
            for label in range(classes)
            for _ in range(each)
        ]
        (folder / f"{name}_{part}.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.mark.parametrize(("id", "pstn"), [("pstn22/table3", "pstn"), ("pstn20/table3", "pstn")])
def test_series(root, tmp_path, id, pstn):
    write_series(root, "PhalangesOutlinesCorrect", 2, 80)
    names = [f"{model}-phalangesoutlinescorrect" for model in ("stn", pstn)]
    found = trained(id, names, tmp_path)
    scores = found[names[1]]["test"]
    assert scores["spread_00"] == pytest.approx(0, abs=1e-6), "the ends stay where they are"
    assert scores["spread_16"] > 1e-4
    assert found[names[0]]["test"]["spread_16"] == 0, "a point has no spread"
    assert find(id).row("cnn-faceall").state == "needs data"


def test_series_without_a_test_file_are_split(root):
    write_series(root, "UWaveGestureLibraryX", 8, 40, parts=("TRAIN",), each=16)
    split = find("pstn22/table3").row("cnn-uwavegesturelibraryx").data(3)
    assert [len(part) for part in split] == [72, 24, 32]
    assert [set(part.counts) for part in split] == [{9}, {3}, {4}]
    rows = [tuple(x.flatten().tolist()) for part in split for x in part.x]
    assert len(set(rows)) == 128


def test_the_stand_in_is_said_where_it_is_one(root):
    series = importlib.import_module("experiments.series")
    write_series(root, "UWaveGestureLibraryX", 8, 40, parts=("TRAIN",))
    assert "a quarter of its train file" in series.stand_in("UWaveGestureLibraryX")
    (root / "UCR/UWaveGestureLibraryX/UWaveGestureLibraryX_TEST.tsv").write_text("1\t0.0\n")
    assert series.stand_in("UWaveGestureLibraryX") == ""
    assert "UCR/StarLightCurves/StarLightCurves_TRAIN.tsv" in series.missing("StarLightCurves")


@pytest.mark.parametrize(
    ("id", "words", "which"),
    [("pstn20/table2", "KMNIST-7k", "STN beats CNN"), ("pstn22/table3", "a quarter of its train", "UWaveGesture")],
)
def test_what_stood_in_is_said_where_no_data_is_at_hand(id, words, which):
    """By what the networks were trained on: a page is the same wherever it is written."""
    table = find(id)
    bare = replace(table, rows=[replace(row, stand_in="") for row in table.rows])
    found = compare(bare, results=Path(__file__).parents[2] / "results")
    assert any(words in sentence for sentence in found.sentences())
    claims = [claim for claim in table.claims if which in claim.words]
    assert claims
    assert [found.in_paper(claim) for claim in claims] == [None] * len(claims), "the paper has other data"


def test_the_figure_of_series_is_drawn_from_records(root, tmp_path):
    from pstn.experiment import Result

    row = find("pstn22/table3").row("pstn-faceall")
    test = {f"{what}_{n:02d}": size * n for what, size in (("shift", 0.01), ("spread", 0.03)) for n in range(33)}
    draw = find("pstn22/table3").figures["augmentations"]
    drawn = draw([Result(row, {}, [{"test": test}], [])])
    spread, shift = drawn.axes
    assert spread.get_title() == "FaceAll"
    assert [panel.get_ylabel() for panel in (spread, shift)] == ["spread, % of the series", "shift, % of the series"]
    assert [panel.lines[0].get_ydata()[16] for panel in (spread, shift)] == pytest.approx([48, 16])
    assert draw([]) is None


def images(n, classes):
    return Data(torch.rand(n, 1, 28, 28), torch.arange(n) % classes, tuple("0123456789"[:classes]), "small")


def test_pairs(tmp_path, monkeypatch):
    module = importlib.import_module("experiments.pstn20.table2")
    for name in ("mnist", "kmnist"):
        monkeypatch.setattr(module, name, lambda split: images(12, 10))
    found = trained("pstn20/table2", ["cnn", "stn", "pstn", "stn-close", "pstn-close"], tmp_path)
    assert {record["steps"] for record in found.values()} == {2}


def test_the_two_looks_start_side_by_side():
    module = importlib.import_module("experiments.pstn20.table2")
    model = module.stn().eval()
    x = torch.rand(2, 1, 64, 64)
    looks = model(x).warped[0]
    assert looks.shape == (2, 2, 1, 64, 64)
    for n in range(2):
        part = x[:, :, 16:48, 32 * n : 32 * (n + 1)]
        torch.testing.assert_close(looks[:, n].unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2)).mean(), part.mean(),
                                   atol=0.02, rtol=0)  # fmt: skip


def test_signs(root, tmp_path):
    (root / "GTSRB32").mkdir()
    values, arrays = np.random.default_rng(0), {}
    for split, n in (("train", 8), ("test", 1)):
        arrays[f"x_{split}"] = values.integers(0, 256, (12 * n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(12 * n, dtype=np.uint8) // n
        arrays[f"box_{split}"] = np.tile(np.array([32, 32, 4, 4, 27, 27], np.int16), (12 * n, 1))
        arrays[f"name_{split}"] = np.array([f"{i // n:05d}/{i // 2:05d}_{i:05d}.ppm" for i in range(12 * n)])
    np.savez(root / "GTSRB32/gtsrb32_subset.npz", **arrays)
    row = find("pstn22/table1").row("gtsrb-stn")
    assert row.state == "stand-in"
    one, other = row.data(0), row.data(1)
    assert one.train.num_classes == 10
    assert not torch.equal(one.train.x, other.train.x), "folds differ in their canvases"
    assert torch.equal(one.test.x, other.test.x), "but are tested on the same"
    found = trained("pstn22/table1", ["gtsrb-stn", "gtsrb-pstn-loose"], tmp_path)
    assert {"gtsrb-boxes", "gtsrb-loose"} <= found.keys(), "the classifiers that the others need"


def test_loose_boxes_show_a_sign_at_any_width_and_place():
    signs = importlib.import_module("experiments.signs")
    torch.manual_seed(0)
    side = signs.ROOM * signs.CROP
    x = torch.zeros(500, 1, side, side)
    start = (side - signs.CROP) // 2
    x[:, :, start : start + signs.CROP, start : start + signs.CROP] = 1
    seen = signs.Loosen()(x)
    assert seen.shape == (500, 1, signs.CROP, signs.CROP)
    share = seen.mean((1, 2, 3))  # of the view that the sign takes
    widest = signs.LOOSE[1]
    assert share.max() > 0.9, "near the narrow end the sign fills the view"
    assert 0.5 / widest**2 < share.min() < 0.8 / widest**2, "near the wide end half of it may stand in a corner"
    columns = seen.mean(2).squeeze(1)
    middle = (columns * torch.arange(signs.CROP)).sum(1) / columns.sum(1)
    assert middle.min() < signs.CROP / 4 < 3 * signs.CROP / 4 < middle.max()


def test_the_networks_for_photographs_read_and_answer():
    signs = importlib.import_module("experiments.signs")
    classifier = signs.large_cnn()
    model = signs.large_pstn(classifier).eval()
    with torch.no_grad():
        out = model(torch.rand(1, 3, 448, 448), samples=2)
    assert out.logits.shape == (2, 1, 10)
    assert out.warped.shape == (2, 1, 3, 224, 224)
    assert not any(p.requires_grad for p in model.body.parameters())


def test_faces(root, tmp_path):
    folder = root / "CelebA/img_align_celeba"
    folder.mkdir(parents=True)
    names = [f"attribute{n}" for n in range(40)]
    lines, parts = ["18", " ".join(names)], []
    for i in range(18):
        Image.fromarray(np.full((218, 178, 3), 10 * i, np.uint8)).save(folder / f"{i:06d}.jpg")
        lines.append(f"{i:06d}.jpg " + " ".join("1" if (i + n) % 2 else "-1" for n in range(40)))
        parts.append(f"{i:06d}.jpg {i % 3}")
    (folder.parent / "list_attr_celeba.txt").write_text("\n".join(lines))
    (folder.parent / "list_eval_partition.txt").write_text("\n".join(parts))
    row = find("pstn20/table4").row("pstn")
    assert (row.state, row.folds) == ("full", 40)
    first, last = row.data(0), row.data(39)
    assert first.train.x is last.train.x, "forty sets of labels, one of images"
    assert first.train.classes[1] == "attribute0"
    assert last.train.classes[1] == "attribute39"
    assert torch.equal(first.train.y, 1 - last.train.y)
    found = trained("pstn20/table4", ["cnn", "stn", "pstn"], tmp_path, folds=2)
    assert found.keys() == {"cnn", "stn", "pstn"}
