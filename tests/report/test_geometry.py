"""Pictures of warps: what is drawn is what the family says, and nothing global changes."""

import io
import sys

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection

from pstn.families import Affine, Rotation, Translation
from pstn.families.cpab import CPAB
from pstn.report.geometry import plot_grid, plot_series, plot_tessellation, plot_velocity

FAMILIES = [
    CPAB(6),
    CPAB((3, 2)),
    CPAB((2, 2), zero_boundary=False),
    CPAB((3, 3), volume_preserving=True),
    CPAB((2, 2, 2)),
]


def drawn(figure):
    """The figure as a PNG: that it can be drawn at all."""
    file = io.BytesIO()
    figure.savefig(file, dpi=40)
    return len(file.getvalue())


def theta_of(family):
    torch.manual_seed(0)
    return 0.2 * torch.randn(family.dim)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_cells_and_velocities_can_be_drawn(family):
    for figure in (plot_tessellation(family), plot_velocity(family, theta_of(family))):
        assert drawn(figure) > 2000
    # a theta that wants a gradient is one too
    plot_velocity(family, theta_of(family).requires_grad_())


def test_no_pyplot():
    plot_tessellation(CPAB((2, 2)))
    plot_grid(Rotation(), torch.tensor([0.1]))
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_the_nodes_are_shown_as_what_they_are():
    panel = plot_tessellation(CPAB((3, 3))).axes[0]
    count = {line.get_label(): len(line.get_xdata()) for line in panel.lines}
    assert count == {"fixed": 4, "along the border": 8, "free": 13}  # 2 * 13 + 8 = 34 parameters
    (edges,) = (c for c in panel.collections if isinstance(c, LineCollection))
    assert len(edges.get_segments()) == 60  # 24 sides of squares and 4 half diagonals in each of 9
    free = plot_tessellation(CPAB((3, 3), zero_boundary=False)).axes[0]
    assert [line.get_label() for line in free.lines] == ["free"]


def test_the_velocity_in_one_dimension_is_the_curve():
    family = CPAB(4)
    theta = torch.tensor([0.3, -0.2, 0.1])
    curve = plot_velocity(family, theta).axes[0].lines[-1]
    np.testing.assert_allclose(curve.get_xdata(), [-1, -0.5, 0, 0.5, 1])
    np.testing.assert_allclose(curve.get_ydata(), [0, 0.3, -0.2, 0.1, 0], atol=1e-7)


def test_arrows_are_the_velocity_field():
    family = CPAB((2, 2))
    theta = theta_of(family)
    panel = plot_velocity(family, theta, density=5).axes[0]
    arrows = next(c for c in panel.collections if hasattr(c, "U"))
    points = torch.from_numpy(np.asarray(arrows.get_offsets()))
    expected = family.velocity(theta.double(), points)
    np.testing.assert_allclose(np.stack([arrows.U, arrows.V], axis=-1), expected, atol=1e-6)


@pytest.mark.parametrize("family", [Affine(), CPAB((2, 3))], ids=str)
def test_the_grid_lies_where_the_family_moves_it(family):
    theta = theta_of(family)
    panel = plot_grid(family, theta, lines=5).axes[0]
    straight, bent = (c.get_segments() for c in panel.collections)
    assert len(straight) == len(bent) == 10
    before, after = (torch.tensor(np.stack(lines), dtype=torch.float32) for lines in (straight, bent))
    torch.testing.assert_close(after, family(theta, before.flatten(0, 1)).view_as(after), atol=1e-5, rtol=0)
    assert panel.yaxis_inverted(), "y points down, as in images"


@pytest.mark.parametrize(
    "image", [torch.rand(8, 10), torch.rand(1, 8, 10), torch.rand(3, 8, 10)], ids=lambda x: str(x.ndim)
)
def test_an_image_lies_under_the_grid_beside_its_warp(image):
    figure = plot_grid(Translation(), torch.tensor([0.2, 0.0]), image)
    assert drawn(figure) > 2000
    shown, moved = (panel.images[0].get_array() for panel in figure.axes)
    assert shown.shape[:2] == moved.shape[:2] == (8, 10)
    np.testing.assert_allclose(moved[:, :-1], shown[:, 1:], atol=1e-5)  # a tenth of the width is one pixel


def test_series_before_and_after():
    t = torch.linspace(-1, 1, 40)
    before = torch.stack([torch.sin(3 * (t - s)) for s in (0.0, 0.1, 0.2)])[:, None].repeat(1, 2, 1)
    after, paths = before.flip(0), torch.stack([t, t, t])[..., None]
    figure = plot_series(before, after, paths, names=("left", "right"))
    assert drawn(figure) > 2000
    visible = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in visible] == ["before", "warping", "after", "", ""]
    assert [panel.get_ylabel() for panel in visible][::3] == ["left", "right"]
    lines = visible[0].lines
    assert len(lines) == 4
    np.testing.assert_allclose(lines[1].get_ydata(), before[1, 0])
    np.testing.assert_allclose(lines[3].get_ydata(), before[:, 0].mean(0), rtol=1e-5)
    np.testing.assert_allclose(visible[2].lines[0].get_ydata(), after[0, 0])
    assert len(visible[1].lines) == 4  # the diagonal and three paths


def test_one_series_has_no_mean_and_the_warping_is_optional():
    t = torch.linspace(-1, 1, 40)
    figure = plot_series(t, t**3)
    assert [panel.get_title() for panel in figure.axes] == ["before", "after"]
    assert [len(panel.lines) for panel in figure.axes] == [1, 1]


def test_bad_input_is_refused_in_words():
    with pytest.raises(ValueError, match="draws 2-D families"):
        plot_grid(CPAB(4), torch.zeros(3))
    with pytest.raises(ValueError, match=r"expected \(time\), \(n, time\)"):
        plot_series(torch.rand(1, 1, 4, 4), torch.rand(1, 1, 4, 4))
    with pytest.raises(ValueError, match="as many as before"):
        plot_series(torch.rand(3, 10), torch.rand(2, 10))
