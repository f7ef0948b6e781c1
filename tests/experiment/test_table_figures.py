"""Figures of tables: what is drawn where, whatever the rows have."""

import math
from dataclasses import replace

import pytest

from pstn.experiment import against, curves, histograms, reliability_curves, scatter
from pstn.experiment.comparison import Result

matplotlib = pytest.importorskip("matplotlib")


def row_of(table, name, scores, **changes):
    """A row with so many folds of some scores."""
    records = [{"fold": fold, "test": dict(score)} for fold, score in enumerate(scores)]
    return Result(replace(table.row(name), name=changes.get("label", name), **changes), {}, records, [])


@pytest.fixture
def lines(table):
    """Two curves of two places each, the second worse by a hundred times at the first."""
    made = []
    for label, column, accuracies in (("ours", "best", (0.99, 0.999)), ("theirs", "published", (0.5, 0.9))):
        for n, accuracy in zip((10, 100), accuracies, strict=True):
            scores = [{"accuracy": accuracy + d, "nll": 1 - accuracy} for d in (-0.0005, 0.0005)]
            tags, paper = {"n": n, "model": label}, {"accuracy": (accuracy - 0.1, 0.01)}
            made.append(row_of(table, "cnn", scores, label=f"{label}-{n}", tags=tags, paper=paper, column=column))
    return made


def drawn(panel):
    """The lines of a panel with a name, by it."""
    return {
        label: mark.lines[0].get_xydata() if hasattr(mark, "lines") else mark.get_xydata()
        for mark, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }


def test_accuracies_are_errors_on_an_axis_that_tells_small_ones_apart(lines):
    figure = against("n", "model", ("accuracy", "nll"))(lines)
    error, nll = figure.axes
    found = drawn(error)
    assert found["ours"][:, 1] == pytest.approx([1.0, 0.1])
    assert found["theirs"][:, 1] == pytest.approx([50.0, 10.0])
    assert found["paper"][:, 1] == pytest.approx([60.0, 20.0]), "of the published row alone"
    assert (error.get_ylabel(), error.get_yscale(), error.get_xscale()) == ("error, %", "log", "log")
    assert [tick.get_text() for tick in error.get_xticklabels()] == ["10", "100"]
    assert "paper" not in drawn(nll)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["ours", "theirs", "paper"]


def test_bars_are_as_long_below_as_above_where_sizes_differ(lines):
    (panel,) = against("n", "model", ("accuracy",))(lines).axes
    bars = panel.containers[0].lines[2][0].get_segments()[1]
    (low, high), middle = bars[:, 1], 0.1
    assert middle / low == pytest.approx(high / middle)


def test_some_curves_under_other_names_within_limits(lines):
    figure = against(
        "n", "model", ("accuracy",), only={"theirs": "them", "lost": "nobody"}, limits={"accuracy": (1, 80)}
    )
    (panel,) = figure(lines).axes
    assert set(drawn(panel)) == {"them", "paper"}
    assert panel.get_ylim() == (1, 80)


@pytest.mark.parametrize("value", [0.0, 1.0, math.inf])
def test_scores_without_a_size_are_drawn_too(table, value):
    tags = {"n": 3, "model": "a"}
    rows = [row_of(table, "cnn", [{"accuracy": value, "nll": value}] * 2, tags=tags, paper={})]
    figure = against("n", "model", logarithmic=False)(rows)
    assert [panel.get_yscale() for panel in figure.axes] == ["linear", "linear"]
    assert not figure.legends, "one curve needs no name"
    figure.canvas.draw()


def test_ten_curves_look_different(table):
    rows = [
        row_of(table, "cnn", [{"accuracy": 0.5 + k / 100}], tags={"n": n, "model": str(k)}, label=f"{k}-{n}", paper={})
        for k in range(10)
        for n in (1, 2)
    ]
    (panel,) = against("n", "model", ("accuracy",))(rows).axes
    looks = [(c.lines[0].get_color(), c.lines[0].get_linestyle(), c.lines[0].get_marker()) for c in panel.containers]
    assert len(set(looks)) == 10


def test_bins_of_few_predictions_say_nothing(table):
    bins = [[3, 0.2, 1.0], [50, 0.6, 0.5], [10, 0.9, 0.9]]
    other = [[0, math.nan, math.nan], [150, 0.7, 0.7], [10, 0.9, 0.8]]
    scores = [{"ece": 0.1, "reliability": each} for each in (bins, other)]
    rows = [row_of(table, "cnn", scores), row_of(table, "pstn", [{"ece": 0.1}])]
    (panel,) = reliability_curves()(rows).axes
    ((at, height), last) = panel.containers[0].lines[0].get_xydata()
    assert (at, height) == pytest.approx(((50 * 0.6 + 150 * 0.7) / 200, (50 * 0.5 + 150 * 0.7) / 200))
    assert last == pytest.approx((0.9, 0.85))
    assert len(panel.containers) == 1, "the other row has no such list"


def test_points_of_some_rows(table):
    scores = [{"angles": [[0.0, 1.0], [1.0, 2.0]]}]
    rows = [row_of(table, name, scores, label=f"{name}, with so many words that they take two lines")
            for name in ("cnn", "pstn", "fast", "jitter")]  # fmt: skip
    labels = ("true", "found")
    figure = scatter("angles", (0, 1), labels, diagonal=True)(rows)
    assert [panel.axison for panel in figure.axes] == [True] * 4 + [False] * 2
    assert "\n" in figure.axes[0].get_title()
    assert [len(panel.lines) for panel in figure.axes[:4]] == [2] * 4
    assert len(scatter("angles", (0, 1), labels, rows[1].row.name)(rows).axes) == 1
    assert scatter("angles", (0, 2), labels)(rows) is None, "nobody has a third number"


def test_curves_of_one_kind_have_one_colour_and_one_name(table):
    scores = [{"landscape": [[0.0, 1.0, 2.0], [3.0, 1.0, 2.0], [4.0, 0.0, 1.0]]}]
    rows = [
        row_of(table, "cnn", scores, label=f"{kind}, {task}", tags={"task": task})
        for task in ("angle", "place")
        for kind in ("STN", "P-STN")
    ]
    figure = curves("landscape", "distance", "loss")(rows)
    assert len(figure.axes) == 4
    assert [text.get_text() for text in figure.legends[0].texts] == ["STN", "P-STN"]
    colours = [[line.get_color() for line in panel.lines[:2]] for panel in figure.axes]
    assert colours == [["C0", "C1"]] * 4
    assert figure.axes[2].get_ylabel() == "place: loss"


def test_histograms_hold_all_folds(table):
    (panel,) = histograms("scales", "scale")([row_of(table, "cnn", [{"scales": [1.0, 2.0]}, {"scales": [3.0]}])]).axes
    assert sum(bar.get_height() for bar in panel.patches) == 3


@pytest.mark.parametrize(
    "draw",
    [
        against("n", "model"),
        reliability_curves(),
        scatter("angles", (0, 1), ("a", "b")),
        curves("landscape", "distance", "loss"),
        histograms("scales", "scale"),
    ],
)
def test_nothing_to_draw_is_no_figure(draw, table):
    assert draw([]) is None
    assert draw([row_of(table, "cnn", [{"accuracy": 0.5}], tags={})]) is None
