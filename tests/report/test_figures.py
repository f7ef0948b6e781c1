"""Every figure draws what it is given, tiny and odd data included, and leaves matplotlib's state alone."""

import io
import sys

import matplotlib as mpl
import pytest
import torch

from pstn.metrics import reliability
from pstn.report import figures
from pstn.report.page import theme

X = torch.linspace(0, 1, 2 * 6 * 5).view(2, 6, 5)  # two images that are not square
ONE = reliability(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), bins=4)
MANY = reliability(torch.rand(50, 3, generator=torch.Generator().manual_seed(0)).softmax(-1), torch.arange(50) % 3)

FIGURES = {
    "reliability": lambda: figures.reliability_diagram({"a": ONE, "b": MANY}),
    "samples": lambda: figures.posterior_samples(
        X, X.expand(3, -1, -1, -1), torch.tensor([[0.7, 0.3], [0.6, 0.4]]), torch.tensor([0, 1]), ("no", "yes")
    ),
    "one sample of one input": lambda: figures.posterior_samples(
        X[:1], X[None, :1], torch.ones(1, 1), torch.tensor([0]), ("a",)
    ),
    "spread": lambda: figures.parameter_spread(torch.randn(40, 2), torch.rand(40, 2), ("rotation", "a"), ("°", "")),
    "spread of nothing": lambda: figures.parameter_spread(torch.zeros(3, 1), torch.zeros(3, 1), ("x",), ("px",)),
    "curves": lambda: figures.training_curves(
        {
            "loss": {"a": ([1, 2, 3], [[3.0, 2, 1], [4, 3, 2]]), "b": ([1, 2], [[5.0, 4]])},
            "more": {"a": ([1], [[1.0]])},
        },
        log=["loss"],
    ),
    "choices": lambda: figures.choices({"w": {1e-4: [0.3, 0.4], 1e-3: [0.2]}, "σ": {0.1: [0.5]}}, "NLL"),
    "picture": lambda: figures.picture(X, X.expand(4, -1, -1, -1)),
    "picture of one": lambda: figures.picture(X[:1], X[None, :1], columns=1),
}


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_it_draws_without_a_trace(draw):
    before = dict(mpl.rcParams)
    with mpl.rc_context(theme()):
        figure = draw()
        for kind in ("svg", "png"):
            file = io.BytesIO()
            figure.savefig(file, format=kind)
            assert file.tell() > 500
    assert dict(mpl.rcParams) == before
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        assert not pyplot.get_fignums()


def test_reliability_bars_are_the_table():
    panel = figures.reliability_diagram({"a": MANY}).axes[0]
    heights = [bar.get_height() for bar in panel.patches]
    assert heights == pytest.approx(MANY.accuracy.nan_to_num(0.0).tolist())
    assert f"{MANY.ece:.3f}" in panel.get_title()


def test_bins_lie_below_their_bars():
    figure = figures.reliability_diagram({"a": MANY, "b": MANY})
    figure.draw_without_rendering()
    bars, share = (figure.axes[i].get_window_extent() for i in (0, 2))
    assert (share.x0, share.x1) == pytest.approx((bars.x0, bars.x1), abs=1.0)


def test_predictions_are_coloured_by_who_is_right():
    wrong = figures.posterior_samples(X[:1], X[None, :1], torch.tensor([[0.2, 0.7, 0.1]]), torch.tensor([0]), "abc")
    colours = [bar.get_facecolor() for bar in wrong.axes[1].patches]
    assert len(set(colours)) == 3, "the right class, the class named, and the rest"
    assert [bar.get_height() for bar in wrong.axes[1].patches] == pytest.approx([0.2, 0.7, 0.1])


def test_images_are_shown_as_they_are():
    canvas = figures.picture(X[:1], X[None, 1:], columns=1).axes[0].images[0].get_array()
    shown = canvas.compressed()
    assert sorted(shown) == pytest.approx(sorted((1 - X).flatten().tolist())), "ink is dark, and every pixel is there"


def test_curves_are_means_of_runs():
    line = figures.training_curves({"loss": {"a": ([1, 2], [[1.0, 2.0], [3.0, 6.0]])}}).axes[0].lines[0]
    assert line.get_ydata().tolist() == [2.0, 4.0]


def test_the_ring_is_at_the_least_mean():
    panel = figures.choices({"w": {1.0: [3.0, 1.0], 2.0: [1.5, 1.7], 3.0: [9.0]}}, "NLL").axes[0]
    ring = panel.lines[-1]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == pytest.approx((1, 1.6))
