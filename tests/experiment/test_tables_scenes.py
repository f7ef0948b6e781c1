"""Tables of STN'15 and of the placement paper: their rows train on stand-in pictures, and no two are taken for one."""

import importlib
import math
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from PIL import Image

from pstn.data import Cut, Data, Numbers
from pstn.data.moved import Turn
from pstn.data.svhn import labels
from pstn.experiment import compare, find, names, run
from pstn.experiment.network import Network, plain, recipe
from pstn.nets import TABLE_VI

IDS = (
    "placement20/table1", "placement20/table2", "placement20/table3", "placement20/table4", "placement20/table5",
    "pstn/rot12k", "stn15/addition", "stn15/colocalisation", "stn15/cub", "stn15/distorted",
)  # fmt: skip
LARGE = ("placement20/table3", "placement20/table4", "placement20/table5", "stn15/cub")
TABLES = {id: find(id) for id in IDS}  # puts the checkout on the path
scenes, numbers = (importlib.import_module(f"experiments.{name}") for name in ("scenes", "numbers"))


def pictures(n, seed):
    """Bars, one for each class."""
    y = torch.arange(n) % 10
    x = torch.rand(n, 1, 28, 28, generator=torch.Generator().manual_seed(seed)) * 0.2
    for i, label in enumerate(y.tolist()):
        x[i, 0, 2 * label + 4 : 2 * label + 7, 4:24] = 1.0
    return Data(x, y, tuple("0123456789"), f"pictures {seed}")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch, tmp_path):
    """Pictures made here in place of every data set; nothing is read from a disk."""
    loaded = (scenes._shown, scenes._summed, numbers._numbers)
    for cached in loaded:
        cached.cache_clear()
    monkeypatch.setattr(scenes, "whole", lambda name, split: pictures(40, len(name) + len(split)))
    monkeypatch.setenv("PSTN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    for cached in loaded:
        cached.cache_clear()


def small_table(id, names, **options):
    """Some rows of a table, of two steps."""
    table, rows = TABLES[id], []
    for name in names:
        row = table.row(name)
        train = replace(row.train, steps=2, epochs=1, batch_size=4)
        data = replace(row.data, limit=20, **({"repeats": 8} if hasattr(row.data, "repeats") else {}))
        rows.append(replace(row, **{"train": train, "folds": 1, "tuning_folds": 1, "data": data, **options}))
    return replace(table, rows=rows, claims=(), quick=())


def trained(id, names, folder, **options):
    """The test scores of some rows after two steps."""
    small = small_table(id, names, **options)
    records = run(small, device="cpu", runs=folder / "runs", results=folder / "results").records.values()
    assert all(record["failure"] is None for record in records)
    found = {record["row"]: record["test"] for record in records if record["test"]}
    assert set(found) == set(names)
    return found


@pytest.mark.parametrize("id", names())
def test_no_two_rows_are_taken_for_one(id):
    seen = {}
    for row in find(id).every():
        for setting in row.settings():
            with torch.device("meta") if id in LARGE else nullcontext():  # described, not filled
                key = recipe(row, plain(setting))
            # a row whose settings are tuned has the published or given one among them, trained once
            name = re.sub("-(tuned|given|accurate)", "", row.name)
            assert seen.setdefault(key, name) == name


def test_both_tables_of_digits_share_their_networks():
    first, second = (TABLES[f"placement20/table{n}"] for n in (1, 2))
    for row in first.rows:
        other = second.row(row.name)
        setting = plain(row.settings()[0])
        assert recipe(row, setting) == recipe(other, setting)


@pytest.mark.parametrize("data", "RTS")
def test_rows_have_table_vis_parameters(data):
    for network, count in TABLE_VI[data].items():
        row = TABLES["placement20/table2"].row(f"{data}-{network.lower()}")
        blank = Network(row, row.settings()[0], 0, None)._blank()
        assert sum(p.numel() for p in blank.parameters()) == count


def test_digits_are_scored_with_what_is_left_of_their_pose(tmp_path):
    found = trained("placement20/table2", ["R-cnn", "R-c1", "R-sl1", "R-pstn", "T-c1", "S-c0"], tmp_path)
    assert "pose_spread" not in found["R-cnn"]
    # after two steps nothing is aligned: what was drawn is left, in degrees, pixels and log2 of the area
    for name, width in (("R-c1", 180), ("R-sl1", 180), ("R-pstn", 180), ("S-c0", 6)):
        assert found[name]["pose_spread"] == pytest.approx(width / math.sqrt(12), rel=0.25)
        assert len(found[name]["spreads"]) == 10
    assert found["T-c1"]["pose_spread"] == pytest.approx(math.sqrt(2 * (33**2 - 1) / 12), rel=0.25)
    assert abs(found["R-sl1"]["slope"]) < 0.2
    heat = torch.tensor(found["R-sl1"]["heat"])
    assert heat.shape == (24, 48)
    assert heat.sum() == 160
    assert heat[:, 22:26].sum() == 160, "nothing is turned yet"
    shown, seen = found["R-sl1"]["examples"]
    first, second = (torch.tensor(scenes.pixels(text)) for text in (shown[0], seen[0]))
    assert (first - second).abs().mean() < 0.05, "nor is it seen otherwise"
    compared = compare(small_table("placement20/table2", list(found)), results=tmp_path / "results").results
    drawn = TABLES["placement20/table2"].figures["figure5-R"](compared)
    assert [panel.get_ylabel() for panel in drawn.axes if panel.get_ylabel()] == ["input", "STN-C1", "STN-SL1", "P-STN"]
    assert drawn.axes[0].images[0].get_array().tolist() == scenes.pixels(found["R-c1"]["examples"][0][0])
    drawn = TABLES["placement20/table1"].figures["figure6"](compared)
    assert [panel.get_title() for panel in drawn.axes] == ["STN-C1", "STN-SL1", "P-STN"]
    assert drawn.axes[1].images[0].get_array().shape == (48, 24)


def test_the_best_rows_train_within_the_budget(tmp_path):
    table = TABLES["placement20/table2"]
    found = trained("placement20/table2", ["R-learned", "R-starts"], tmp_path)
    assert all(math.isfinite(scores["pose_spread"]) and scores["examples"] for scores in found.values())
    for name, other in (("R-learned", "R-sl1"), ("R-starts", "R-c0"), ("S-learned", "S-sl1")):
        best, published = (sum(p.numel() for p in table.row(n).build({}).parameters()) for n in (name, other))
        assert best <= published + 6
        assert (table.row(name).line, table.row(name).column) == (table.row(other).line, "best")


def test_pictures_are_written_and_read():
    x = torch.rand(3, 1, 12, 12)
    texts = scenes.pictured(x, 12)
    for picture, text in zip(x, texts, strict=True):
        read = torch.tensor(scenes.pixels(text))
        low, high = picture.min(), picture.max()
        torch.testing.assert_close(read, (picture[0] - low) / (high - low), atol=0.5 / 9 + 1e-6, rtol=0)
    assert scenes.pixels(scenes.pictured(torch.zeros(1, 1, 4, 4), 2)[0]) == [[0.0, 0.0], [0.0, 0.0]]


def test_what_digits_have_in_common_is_looked_for(tmp_path):
    table = TABLES["stn15/colocalisation"]
    names = ["T-3", "TC-8-places", "TC-8-places-after-5"]
    needed = replace(
        table.row("encoder"), train=replace(table.row("encoder").train, steps=2, batch_size=4), data=common(limit=20)
    )
    rows = [
        replace(
            table.row(name), needs=needed, folds=1, data=replace(table.row(name).data, count=4),
            train=replace(table.row(name).train, steps=2, batch_size=4),
        )
        for name in names
    ]  # fmt: skip
    small = replace(table, rows=rows, claims=(), quick=())
    run(small, device="cpu", runs=tmp_path / "runs", results=tmp_path / "results")
    compared = compare(small, results=tmp_path / "results")
    for name in names:
        scores = compared.by_name[name].chosen[0]["test"]
        assert 0 <= scores["localised"] <= 1
        assert len(scores["boxes"]) == len(scores["pictures"]) == 3
    drawn = table.figures["search"](compared.results)
    assert len(drawn.axes) == 6
    assert {len(panel.lines) for panel in drawn.axes} == {2}


def common(limit):
    """The digits that the encoder of co-localisation learns from."""
    return type(TABLES["stn15/colocalisation"].row("encoder").data)(limit)


def test_birds_wait_for_their_files_and_train_once_they_are_there(tmp_path):
    table = TABLES["stn15/cub"]
    assert {row.state for row in table.rows} == {"needs data"}
    assert "CUB_200_2011" in table.rows[0].lacks
    folder = tmp_path / "CUB_200_2011"
    lists = {"classes.txt": "1 a\n2 b\n", "images.txt": "", "image_class_labels.txt": "", "train_test_split.txt": ""}
    for n in range(12):
        (folder / "images").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 36), (250, 20, 20) if n % 2 else (20, 20, 250)).save(folder / "images" / f"{n}.jpg")
        lists["images.txt"] += f"{n} {n}.jpg\n"
        lists["image_class_labels.txt"] += f"{n} {1 + n % 2}\n"
        lists["train_test_split.txt"] += f"{n} {int(n < 10)}\n"
    for name, text in lists.items():
        (folder / name).write_text(text)
    assert "ImageNet" in table.rows[0].lacks, "the birds are there, but not the weights"
    module = sys.modules[table.rows[0].model.func.__module__]

    def ten_of_32(model, data):
        return module.ten_times(model, data, 32)

    rows = [
        replace(
            table.row(name), data=module.Birds(36), model=partial(module.network, looks, 32, width=2, classes=2),
            augment=partial(Cut, 36, 32), measure=ten_of_32, missing=None,
            train=replace(table.row(name).train, steps=2, epochs=1, batch_size=4),
        )
        for name, looks in (("cnn", 0), ("2xst-224", 2), ("4xst-448", 4))
    ]  # fmt: skip
    records = run(
        replace(table, rows=rows, claims=()), device="cpu", runs=tmp_path / "a", results=tmp_path / "b"
    ).records
    assert {record["row"] for record in records.values()} == {"cnn", "2xst-224", "4xst-448"}
    for record in records.values():
        assert record["failure"] is None
        assert 0 <= record["test"]["accuracy"] <= 1


def test_distorted_digits_and_sums(tmp_path):
    names = ["R-fcn", "RTS-st-cnn-projective", "P-cnn", "E-st-fcn-tps", "TC-st-cnn-affine", "TC-pstn", "kmnist-st-cnn"]
    found = trained("stn15/distorted", names, tmp_path)
    assert all(0 <= scores["accuracy"] <= 1 for scores in found.values())
    found = trained("stn15/addition", ["cnn", "2xst-fcn-tps"], tmp_path)
    assert all(math.isfinite(scores["nll"]) for scores in found.values())


def test_turned_digits_at_seven_places(tmp_path, monkeypatch):
    rot12k = sys.modules[TABLES["pstn/rot12k"].rows[0].model.func.__module__]
    rot12k._split.cache_clear()
    monkeypatch.setattr(rot12k, "mnist_rot_12k", lambda split: Turn().data(pictures(40, len(split)), len(split)))
    found = trained("pstn/rot12k", ["cnn-point", "c0-twice-student", "c1-point", "sl01-student", "starts-normed"],
                    tmp_path)  # fmt: skip
    assert all(0 <= scores["accuracy"] <= 1 for scores in found.values())
    rot12k._split.cache_clear()
    assert len({row.tags["place"] for row in TABLES["pstn/rot12k"].rows}) == 7


def test_house_numbers_wait_for_their_files_and_train_once_they_are_there(tmp_path, monkeypatch):
    for id in ("placement20/table3", "placement20/table4", "placement20/table5"):
        assert {row.state for row in TABLES[id].rows} == {"needs data"}
    assert "digitStruct.mat" in TABLES["placement20/table3"].rows[0].lacks
    assert "ndsb_train_gray.zip" in TABLES["placement20/table5"].rows[0].lacks

    def made(split, count=None):
        y = labels([(1, 2), (3,), (4, 5, 6), (7,)] * 5)
        return Numbers(torch.rand(20, 3, 64, 64), y, (*"0123456789", "none"), split)

    monkeypatch.setattr(numbers, "svhn", made)
    data = numbers.HouseNumbers(count=20)
    table = TABLES["placement20/table3"]
    rows = [
        replace(
            table.row(name), data=data, missing=None, folds=1, tuning_folds=1,
            model=partial(table.row(name).model, channels=(4,) * 8, units=16),
            train=replace(table.row(name).train, steps=2, batch_size=4),
        )
        for name in ("c0-large", "sl0123")
    ]  # fmt: skip
    results = run(replace(table, rows=rows, claims=()), device="cpu", runs=tmp_path / "a", results=tmp_path / "b")
    assert {record["row"] for record in results.records.values()} == {"c0-large", "sl0123"}
    for record in results.records.values():
        assert record["failure"] is None
        assert 0 <= record["test"]["numbers"] <= record["test"]["accuracy"] <= 1


@pytest.mark.parametrize("id", IDS)
def test_tables_say_what_they_show(id):
    table = TABLES[id]
    assert table.note
    assert table.claims
    for row in table.rows:
        for mean, _ in row.paper.values():
            assert mean > 0
