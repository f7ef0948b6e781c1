"""The tables with true poses, calibration and landscapes: their rows train, on stand-in pictures made here."""

import math
from dataclasses import replace

import pytest
import torch

from pstn.data import Data
from pstn.experiment import compare, find, names, render, run
from pstn.experiment.network import Network, plain, recipe
from pstn.metrics import Reliability

IDS = [
    "pstn20/appendixA",
    "pstn20/calibration",
    "pstn22/calibration",
    "pstn22/figure1",
    "pstn22/figure12",
    "pstn22/placement",
    "pstn22/rotated",
]
find("pstn22/rotated")  # puts the checkout on the path
from experiments import mnist, posed  # noqa: E402


def pictures(n, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 10
    x = torch.rand(n, 1, 28, 28, generator=generator) * 0.2
    for i, label in enumerate(y.tolist()):  # a bar a class
        x[i, 0, 2 * label + 4 : 2 * label + 7, 4:24] = 1.0
    return Data(x, y, tuple("0123456789"), f"pictures {seed}")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    """Sixty pictures in place of every data set; nothing is read from a disk."""
    for cached in (posed._upright, posed._moving):
        cached.cache_clear()
    monkeypatch.setattr(posed, "whole", lambda name, split: pictures(60, len(name) + len(split)))
    monkeypatch.setattr(mnist, "_part", lambda n, fold, split: pictures(40, fold + len(split)))
    monkeypatch.setattr(mnist, "_test", lambda: pictures(50, 9))
    for name, value in {"POSITIONS": 33, "DRAWS": 16, "COUNTED": 3, "SHOWN": 2}.items():
        monkeypatch.setattr(posed, name, value)
    yield
    for cached in (posed._upright, posed._moving):
        cached.cache_clear()


def short(row, **options):
    """A row that takes three steps."""
    train = replace(row.train, steps=3, epochs=1, batch_size=4)
    needs = row.needs and short(row.needs)
    data = replace(row.data, limit=20) if hasattr(row.data, "limit") else row.data
    grid = {name: values[:1] for name, values in row.grid.items()}
    cut = {"train": train, "folds": 1, "tuning_folds": 1, "needs": needs, "data": data, "grid": grid}
    return replace(row, **{**cut, **options})


def few(id, *wanted):
    """A table of short rows."""
    table = find(id)
    rows = [short(row) for row in table.rows if row.name in wanted]
    assert len(rows) == len(wanted)
    return replace(table, id=f"{id}-short", rows=rows, claims=(), quick=())


def go(table, folder):
    run(table, device="cpu", runs=folder / "runs", results=folder / "results")
    return compare(table, results=folder / "results")


def scores(comparison, name):
    (record,) = comparison.by_name[name].chosen
    return record["test"]


def test_all_tables_are_there():
    assert set(IDS) <= set(names())


@pytest.mark.parametrize("id", IDS)
def test_every_row_builds_and_says_what_it_shows(id):
    table = find(id)
    assert table.note
    assert table.figures
    for row in table.every():
        for setting in row.settings():
            blank = Network(row, setting, 0, None)._blank()
            assert any(p.requires_grad for p in blank.parameters())
    needed = {}
    for row in table.rows:  # two rows of one name would be taken for one
        if row.needs is not None:
            assert needed.setdefault(row.needs.name, row.needs) is row.needs


@pytest.mark.parametrize(
    ("id", "row", "count"),
    [
        ("pstn22/rotated", "upright", 28_086),
        ("pstn22/rotated", "stn", 72_617),
        ("pstn22/rotated", "pstn", 71_883),
        ("pstn22/rotated", "starts", 72_638),
        ("pstn22/placement", "starts-96-short", 46_405),
        ("pstn22/placement", "starts-56-short", 46_405),
        ("pstn22/placement", "stn-96", 193_079),
        ("pstn22/placement", "pstn-96", 193_962),
        ("pstn22/figure12", "nn-1", 7_850),
        ("pstn22/figure12", "nn-2", 101_770),
        ("pstn22/figure12", "nn-3", 235_146),
        ("pstn22/figure12", "nn-4", 300_938),
        ("pstn22/figure12", "upright-5", 317_450),
        ("pstn22/figure12", "stn-1", 7_850 + 72_617),
        ("pstn22/figure12", "pstn-1", 7_850 + 71_883),
    ],
)
def test_what_is_trained_has_the_papers_numbers_of_parameters(id, row, count):
    blank = Network(find(id).row(row), {}, 0, None)._blank()
    assert sum(p.numel() for p in blank.parameters() if p.requires_grad) == count


def test_rotated_digits_are_scored_with_their_angles(tmp_path):
    found = go(few("pstn22/rotated", "upright", "stn", "pstn"), tmp_path)
    assert 0 <= scores(found, "upright")["moved_accuracy"] <= 1
    point, student = scores(found, "stn"), scores(found, "pstn")
    for one in (point, student):
        # after three steps every angle is nearly 0: the errors are those of the true angles themselves
        error = torch.tensor([line[2] for line in one["angles"]])
        true = torch.tensor([line[0] for line in one["angles"]])
        torch.testing.assert_close(error, true.abs(), atol=0.2, rtol=0)
        assert one["pose_error"] == pytest.approx(error.mean().item(), abs=2e-3)
        assert one["half_turn_error"] <= min(one["pose_error"], math.pi / 2)
        assert len(one["landscape"]) == 1 + posed.SHOWN
    assert "spread" not in point
    assert student["spread"] == pytest.approx(math.sqrt(math.log1p(math.exp(-3))), rel=0.1)
    page = render(found, tmp_path / "docs")
    assert {p.name for p in page.parent.glob("*.svg")} == {
        f"pstn22-rotated-short-{name}.svg" for name in ("angles", "spread", "reliability")
    }


def test_several_starts_are_scored_by_the_most_probable(tmp_path):
    found = go(few("pstn22/rotated", "upright", "starts", "starts-centred"), tmp_path)
    for name in ("starts", "starts-centred"):
        one = scores(found, name)
        true, mu, error = torch.tensor(one["angles"]).T
        assert (mu.abs() <= math.pi + 1e-3).all()
        assert mu.round(decimals=1).unique().numel() > 1, "not all from one start"
        around = (true - mu).abs()
        torch.testing.assert_close(error, torch.minimum(around, 2 * math.pi - around), atol=2e-3, rtol=0)
        assert "spread" not in one


def test_the_best_rows_stand_beside_the_published_ones_with_no_more_steps_or_parameters():
    for id, wanted in (
        ("pstn22/rotated", ["starts"]),
        ("pstn22/placement", [f"starts-{n}-short" for n in (96, 56)]),
    ):
        table = find(id)
        best = [row for row in table.rows if row.column == "best"]
        assert [row.name for row in best] == wanted
        for row in best:
            (published,) = [r for r in table.rows if r.line == row.line and r.column == "published"]
            assert row.train.epochs <= published.train.epochs
            assert row.train.batch_size == published.train.batch_size
            assert row.data is published.data
            assert row.needs is published.needs
            counts = [
                sum(p.numel() for p in Network(r, {}, 0, None)._blank().parameters() if p.requires_grad)
                for r in (row, published)
            ]
            assert counts[0] <= 1.02 * counts[1]


def mass(x):
    """The centre of mass, in pixels from the middle."""
    at = torch.arange(28.0) - 13.5
    return torch.stack([x.sum((1, 2)) @ at, x.sum((1, 3)) @ at], dim=1) / x.sum((1, 2, 3))[:, None]


def test_centred_digits_do_not_show_their_angle():
    """Turned digits whose centre of mass is off the middle tell the angle by it; those of the control do not."""
    row = find("pstn22/rotated").row("starts-centred")
    whole = posed.whole("MNIST", "train")
    # blobs half a pixel off the middle, as MNIST's digits are
    at = torch.arange(28.0) - 13.5
    blob = torch.exp(-(((at - 0.5)[:, None] / 3) ** 2) - ((at - 0.5)[None] / 5) ** 2)
    off = replace(whole, x=blob.expand(60, 1, 28, 28).contiguous())
    torch.testing.assert_close(mass(off.x), torch.full((60, 2), 0.5), atol=1e-3, rtol=0)
    assert mass(posed.centred(off).x).abs().max() < 1e-3
    turned = posed.Turn().data(off, 1)
    told = torch.atan2(*mass(turned.x).flip(1).unbind(1)) - math.pi / 4
    assert posed.angle_distance(told, turned.pose[:, 0]).max() < 0.2
    assert mass(posed.Turn().data(posed.centred(off), 1).x).abs().max() < 0.02
    assert row.data.centred
    assert not find("pstn22/rotated").row("starts").data.centred


def test_placed_pictures_are_trained_on_from_the_pictures_themselves():
    split = posed._moving(find("pstn22/placement").row("pstn-96").data)
    assert split.train.x.shape[1:] == (1, 28, 28), "the move makes the canvas, at every step"
    assert split.test.x.shape[1:] == (1, 96, 96)


@pytest.mark.parametrize("canvas", [56, 96])
def test_wherever_a_picture_is_most_of_it_is_in_a_window_to_start_from(canvas):
    row = find("pstn22/placement").row(f"starts-{canvas}-short")
    model, data = Network(row, {}, 0, None)._blank(), posed._moving(row.data).test
    starts = model.starts[:, None].expand(-1, len(data), -1)
    seen = posed.warp(torch.ones_like(data.x), model.family, starts, size=model.size)
    assert (seen > 0.99).all(), "windows lie on the canvas"
    true = model.family.from_matrix(posed.Crop().matrix(data.pose))
    off = (true - starts)[..., 2:].abs() * canvas / 2  # pixels, of each start
    half = model.starts[0, 1].add(1).item() * canvas / 2
    shown = ((half + 14 - off) / 28).clamp(0, 1).prod(-1)  # the part of the picture that is in the window
    assert shown.max(0).values.min() > 0.4
    assert shown.max(0).values.mean() > 0.8


def test_placed_pictures_are_scored_with_their_places(tmp_path):
    found = go(few("pstn22/placement", "centred", "stn-56", "pstn-96"), tmp_path)
    # the window is nearly the whole canvas: it holds the picture, which is a known part of it
    assert scores(found, "stn-56")["iou"] == pytest.approx(1 / 4, abs=0.02)
    assert scores(found, "pstn-96")["iou"] == pytest.approx((28 / 96) ** 2, abs=0.02)
    assert 0 < scores(found, "pstn-96")["shift_error"] < 34 * math.sqrt(2)
    assert render(found, tmp_path / "docs").exists()


def test_landscapes_come_from_networks_that_are_trained_already(tmp_path, monkeypatch):
    table = few("pstn22/rotated", "upright", "pstn")
    go(table, tmp_path)
    before, after = (Network(row, {}, 0, tmp_path / "runs") for row in table.rows)
    for old, new in zip(before.load().body.parameters(), after.load().body.parameters(), strict=True):
        assert torch.equal(old, new), "a frozen classifier stays as it was trained"
    monkeypatch.setattr("pstn.experiment.work.fit_fleet", None)  # nothing is to be trained
    found = go(few("pstn22/figure1", "pstn"), tmp_path)
    assert [result.row.name for result in found.results] == ["pstn"]
    at, *lines = scores(found, "pstn")["landscape"]
    assert len(at) == posed.POSITIONS
    assert all(len(line) == posed.POSITIONS for line in lines)
    assert render(found, tmp_path / "docs").exists()


def test_depth_is_measured_by_the_variance_of_the_angle(tmp_path):
    found = go(few("pstn22/figure12", "upright-2", "nn-2", "stn-2", "pstn-2"), tmp_path)
    assert scores(found, "stn-2")["variance"] >= 0
    assert "variance" not in scores(found, "nn-2")
    assert render(found, tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("id", "rows"),
    [
        ("pstn22/calibration", ("cnn-100", "pstn-0.0003", "pstn-0.0001")),
        ("pstn20/calibration", ("cnn-100", "pstn-0.05", "pstn-0.4")),
    ],
)
def test_reliability_is_recorded_and_gives_the_ece_again(id, rows, tmp_path):
    found = go(few(id, *rows), tmp_path)
    for name in rows:
        count, confidence, accuracy = torch.tensor(scores(found, name)["reliability"]).T
        assert count.sum() == 50
        table = Reliability(torch.linspace(0, 1, 16), confidence, accuracy, count)
        assert table.ece == pytest.approx(scores(found, name)["ece"], abs=1e-4)
        (record,) = found.by_name[name].chosen
        assert set(record["validation"]) == {"accuracy", "nll", "brier", "ece"}, "curves are of test data alone"
    assert render(found, tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("id", "row", "other", "same"),
    [
        ("pstn22/calibration", "cnn-100", ("pstn22/table2", "cnn-100"), True),
        ("pstn22/calibration", "pstn-0.0003", ("pstn22/table2", "pstn-100"), True),
        ("pstn20/table1", "cnn-1000", ("pstn22/table2", "cnn-1000"), True),
        ("pstn20/table1", "cnn-augment-10000", ("pstn22/table2", "cnn-augment-10000"), True),
        ("pstn20/table1", "pstn-tuned-100", ("pstn22/table2", "gaussian-100"), True),
        ("pstn20/calibration", "pstn-0.1", ("pstn20/table1", "pstn-tuned-100"), True),
        ("pstn22/figure1", "pstn-96", ("pstn22/placement", "pstn-96"), True),
        ("pstn22/calibration", "pstn-0.0003", ("pstn22/table2", "pstn-30"), False),
    ],
)
def test_what_two_tables_have_in_common_has_one_recipe(id, row, other, same):
    def recipes(table, name):
        row = find(table).row(name)
        return {recipe(row, text) for text in map(plain, row.settings())}

    assert bool(recipes(id, row) & recipes(*other)) is same


def test_scales_and_linearity(tmp_path):
    found = scores(go(few("pstn20/appendixA", "pstn-0.05"), tmp_path), "pstn-0.05")
    assert len(found["scales"]) == 40 * 10
    assert found["scale_low"] < found["scale_median"] < found["scale_high"]
    assert found["residual_max"] < 1e-5


@pytest.mark.parametrize(("off", "circle", "half"), [(0.0, 0.0, 0.0), (2 * math.pi, 0.0, 0.0), (3.0, 3.0, 0.1416)])
def test_a_localizer_that_is_off_by_so_much_has_this_error(monkeypatch, off, circle, half):
    row = find("pstn22/rotated").row("stn")
    data = posed._moving(row.data).test
    monkeypatch.setattr(posed, "look", lambda model, data: (data.pose + off, None))
    found = posed.turned(Network(row, {}, 0, None)._blank(), data)
    assert found["pose_error"] == pytest.approx(circle, abs=1e-4)
    assert found["half_turn_error"] == pytest.approx(half, abs=1e-4)
    if off == 3.0:
        assert found["pose_error_mod"] == pytest.approx(3.0, abs=1e-4), "equation 18 as it stands"


@pytest.mark.parametrize(("name", "canvas"), [("stn-56", 56), ("stn-96", 96), ("stn-96-lit", 96)])
def test_a_window_at_the_truth_covers_the_picture(monkeypatch, name, canvas):
    row = find("pstn22/placement").row(name)
    data, model = posed._moving(row.data).test, Network(row, {}, 0, None)._blank()
    true = model.family.from_matrix(posed.Crop().matrix(data.pose))
    upright = posed.whole("FashionMNIST", "test")
    seen = posed.warp(data.x, model.family, true, size=model.size)
    known = upright.x if name != "stn-96-lit" else posed.NORMALISE(upright.x)
    torch.testing.assert_close(seen, known, atol=1e-3, rtol=0)
    # a hair smaller, so that rounding at the edges does not matter; and eight pixels to the right
    theta = true - torch.tensor([0.0, 1e-4, 0.0, 0.0])
    for shift, wanted in ((0.0, 1.0), (8.0, 20 / 36)):
        moved = theta + torch.tensor([0.0, 0.0, 2 * shift / canvas, 0.0])
        monkeypatch.setattr(posed, "look", lambda model, data, moved=moved: (moved, None))
        found = posed.placed(model, data)
        assert found["shift_error"] == pytest.approx(shift, abs=1e-3)
        assert found["iou"] == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("curve", "circular", "count"),
    [
        ([3, 0, 3], False, 1),
        ([0, 3, 0], False, 0),
        ([0, 3, 0], True, 1),
        ([3, 0, 3, 1, 2.95, 2.9, 3], False, 2),
        ([3, 2.95, 3, 2.95, 3], False, 0),
        ([1, 1, 1], True, 0),
    ],
)
def test_valleys_are_counted_if_they_are_deep(curve, circular, count):
    assert posed.minima(curve, circular=circular) == count


def test_a_spread_lowers_and_smooths_the_landscape():
    """The mean over draws cannot have a higher peak or a lower valley than what it is the mean of."""
    row = find("pstn22/rotated").row("pstn")
    torch.manual_seed(1)
    network = Network(row, {}, 0, None)._blank()
    data = posed._moving(row.data).test
    wide = torch.tensor(posed.landscape(network, data, data.pose, 0, math.pi, circular=True)["landscape"])
    sharp = torch.tensor(posed.landscape(point_like(network), data, data.pose, 0, math.pi, circular=True)["landscape"])
    assert wide[1:].max() <= sharp[1:].max() + 1e-3
    assert wide[1:].min() >= sharp[1:].min() - 1e-3
    assert (wide[1:].diff().abs().sum(1) < sharp[1:].diff().abs().sum(1)).all()


def point_like(network):
    """The same network with next to no spread."""
    with torch.no_grad():
        network.transformers[0].head.scale[-1].bias.fill_(-30.0)
    return network
