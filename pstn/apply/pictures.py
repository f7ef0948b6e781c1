"""Where a model looked: frames on the inputs and what the classifier saw; confusion, and warps of series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.apply.files import Trained
from pstn.apply.measure import as_trained
from pstn.distributions import draw
from pstn.grid import to_pixels
from pstn.report.figures import WIDTH, _figure
from pstn.report.page import theme
from pstn.warp import warp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Warps shown beside each input.
WARPS = 6


@torch.no_grad()
def looked(trained: Trained, x: Float[Tensor, "n c *space"], titles: Sequence[str]) -> Figure:
    """A row an input: the input, with the frames that draws of the posterior look at, and what the classifier saw.

    The draws are as wide as in training; predictions may use narrower ones.

    Arguments:
        trained: The model.
        x: Inputs, not normalised.
        titles: What stands above each.
    """
    network = trained.network
    device = next((p.device for p in network.parameters()), x.device)
    out = as_trained(network, trained.prepare(x).to(device))
    images, plain = x.ndim == 4, out.posterior is None or network.family is None or network.placement.parallel > 1
    warps: Tensor | None = None
    theta: Tensor | None = None
    if not plain:
        assert out.posterior is not None
        assert network.family is not None
        theta = draw(out.posterior, WARPS, "sobol", torch.Generator().manual_seed(0)).cpu()
        options: dict[str, Any] = dict(network.options)
        options["fill"] = float(trained.normalise.background)
        warps = warp(x.cpu(), network.family, theta, **options)
    columns = 1 if warps is None else WARPS + 1
    if not images:
        return _series(x, warps, titles)
    height = WIDTH / (WARPS + 1) * x.shape[2] / x.shape[3] + 0.25
    figure = _figure(WIDTH, height * len(x), facecolor="white")
    figure.get_layout_engine().set(h_pad=0.1)  # room for the titles, which may be as wide as the row
    panels = figure.subplots(len(x), columns, squeeze=False)
    for i, row in enumerate(panels):
        _show(row[0], x[i])
        above = {"xycoords": "axes fraction", "xytext": (0, 4), "textcoords": "offset points"}
        row[0].annotate(titles[i], (0, 1), **above, fontsize=8, parse_math=False, in_layout=False)
        for s in range(columns - 1):
            assert warps is not None
            assert theta is not None
            _show(row[s + 1], warps[s, i])
            frame = to_pixels(network.family(theta[s, i], outline()), x.shape[2:])  # type: ignore[misc]
            row[0].plot(*torch.cat([frame, frame[:1]]).T.tolist(), color="C3", linewidth=0.7, alpha=0.7)
        row[0].set(
            xlim=(-0.5 - x.shape[3] / 6, x.shape[3] * 7 / 6 - 0.5),
            ylim=(x.shape[2] * 7 / 6 - 0.5, -0.5 - x.shape[2] / 6),
        )
    return figure


def confusion(counts: Float[Tensor, "k k"], classes: Sequence[str]) -> Figure:
    """How often each class (row) was taken for each (column).

    Example:
        >>> len(confusion(torch.eye(3), ("a", "b", "c")).axes)
        1
    """
    side = min(WIDTH, 1.6 + 0.42 * len(classes) + 0.08 * max(map(len, classes)))  # names stand upright below
    figure = _figure(WIDTH, side)
    panel = figure.subplots()
    share = counts / counts.sum(1, keepdim=True).clamp_min(1)
    panel.imshow(share.tolist(), cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(classes))
    panel.set(xticks=ticks, yticks=ticks, xlabel="named", ylabel="right class")
    panel.set_xticklabels(classes, rotation=90 if max(map(len, classes)) > 2 else 0, parse_math=False)
    panel.set_yticklabels(classes, parse_math=False)  # a name with dollars is no formula
    if len(classes) <= 20:
        for i, row in enumerate(counts.tolist()):
            for j, count in enumerate(row):
                if count:
                    dark = share[i, j] > 0.5
                    panel.text(j, i, f"{count:.0f}", ha="center", va="center", fontsize=7, color="w" if dark else "0.3")
    return figure


def check_drawing() -> None:
    """Say at once, and not after the work, that nothing can be drawn here."""
    if find_spec("matplotlib") is None:
        raise ImportError("pictures and reports need matplotlib: pip install 'pstn[plot]'")


def write_png(path: Path, draw: Callable[[], Figure]) -> Path:
    """Write a figure in the page's style to a file."""
    import matplotlib as mpl

    with mpl.rc_context(theme()):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw().savefig(path, dpi=150, format="png", facecolor="white")
    return path


def _series(x: Tensor, warps: Tensor | None, titles: Sequence[str]) -> Figure:
    figure = _figure(WIDTH, 1.3 * len(x) + 0.3)
    panels = figure.subplots(len(x), 1 if warps is None else 2, squeeze=False, sharex=True)
    for i, row in enumerate(panels):
        for c in range(x.shape[1]):
            row[0].plot(x[i, c].tolist(), color=f"C{c}", linewidth=1)
            for s in range(0 if warps is None else len(warps)):
                assert warps is not None
                row[1].plot(warps[s, i, c].tolist(), color=f"C{c}", linewidth=0.7, alpha=0.5)
        row[0].set_title(titles[i], fontsize=8, loc="left", parse_math=False)
    if warps is not None:
        panels[0][1].set_title("what it saw: draws of its warps", fontsize=8, loc="left")
    return figure


def _show(panel: Any, image: Tensor) -> None:
    pixels = image.clamp(0, 1).movedim(0, -1).cpu()
    if pixels.shape[-1] == 3:
        panel.imshow(pixels.tolist(), interpolation="nearest")
    else:
        panel.imshow(pixels[..., 0].tolist(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.axis("off")


def outline(points: int = 20) -> Float[Tensor, "n 2"]:
    """The edge of the frame [-1, 1]², from corner to corner in so many steps."""
    along = torch.linspace(-1, 1, points + 1)[:-1]
    ones = torch.ones_like(along)
    return torch.cat(
        [torch.stack(side, -1) for side in ((along, -ones), (ones, along), (-along, ones), (-ones, -along))]
    )
