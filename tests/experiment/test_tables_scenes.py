"""Tables of STN'15 and of the placement paper: their rows train on stand-in pictures, and no two are taken for one."""

import importlib
import math
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from pstn import nets
from pstn.data import Data, Numbers
from pstn.data.moved import Turn
from pstn.data.svhn import labels
from pstn.experiment import find, run
from pstn.experiment.network import Network, plain, recipe
from pstn.nets import TABLE_VI

IDS = (
    "placement20/table1", "placement20/table2", "placement20/table3", "placement20/table4", "placement20/table5",
    "pstn/rot12k", "stn15/addition", "stn15/distorted",
)  # fmt: skip
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


def trained(id, names, folder, **options):
    """The test scores of some rows after two steps."""
    table, rows = TABLES[id], []
    for name in names:
        row = table.row(name)
        train = replace(row.train, steps=2, epochs=1, batch_size=4)
        data = replace(row.data, limit=20, **({"repeats": 8} if hasattr(row.data, "repeats") else {}))
        rows.append(replace(row, **{"train": train, "folds": 1, "tuning_folds": 1, "data": data, **options}))
    small = replace(table, rows=rows, claims=(), quick=())
    records = run(small, device="cpu", runs=folder / "runs", results=folder / "results").records.values()
    assert all(record["failure"] is None for record in records)
    found = {record["row"]: record["test"] for record in records if record["test"]}
    assert set(found) == set(names)
    return found


@pytest.mark.parametrize("id", IDS)
def test_no_two_rows_are_taken_for_one(id):
    seen = {}
    for row in TABLES[id].rows:
        for setting in row.settings():
            # networks for house numbers are large: their settings alone tell them apart
            large = isinstance(row.data, numbers.HouseNumbers)
            key = plain(setting) if large else recipe(row, plain(setting))
            assert seen.setdefault(key, row.name) == row.name


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
    assert len(found["R-sl1"]["angles"]) == 160
    assert abs(found["R-sl1"]["slope"]) < 0.2


def test_distorted_digits_and_sums(tmp_path):
    names = ["R-fcn", "RTS-st-cnn-projective", "P-cnn", "E-st-fcn-tps", "TC-st-cnn-affine", "TC-pstn", "kmnist-st-cnn"]
    found = trained("stn15/distorted", names, tmp_path)
    assert all(0 <= scores["accuracy"] <= 1 for scores in found.values())
    found = trained("stn15/addition", ["cnn", "2xst-fcn-tps"], tmp_path)
    assert all(math.isfinite(scores["nll"]) for scores in found.values())


def test_turned_digits_at_seven_places(tmp_path, monkeypatch):
    rot12k = sys.modules[TABLES["pstn/rot12k"].rows[0].model.__module__]
    rot12k._split.cache_clear()
    monkeypatch.setattr(rot12k, "mnist_rot_12k", lambda split: Turn().data(pictures(40, len(split)), len(split)))
    found = trained("pstn/rot12k", ["cnn-point", "c0-twice-student", "c1-point", "sl01-student"], tmp_path)
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
    small = partial(nets.placed_numbers, channels=(4,) * 8, units=16)
    data = numbers.HouseNumbers(count=20)
    table = TABLES["placement20/table3"]
    rows = [
        replace(
            table.row(name), data=data, model=small, missing=None, folds=1, tuning_folds=1,
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
