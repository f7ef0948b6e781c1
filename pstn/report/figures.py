"""Figures, each a function from data to a matplotlib ``Figure``; nothing global is touched.

Colours and fonts are the caller's: draw inside ``matplotlib.rc_context(pstn.report.page.theme())``, or hand the
function to :meth:`pstn.report.page.Page.figure`, which does.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pstn.metrics import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Of all figures, in inches, so that letters are of one size throughout a page.
WIDTH = 9.6

#: A curve: its steps, and for each of several runs the values there.
Curve = tuple[Sequence[float], Sequence[Sequence[float]]]


def reliability_diagram(tables: Mapping[str, Reliability]) -> Figure:
    """Accuracy against confidence, a panel a model; below, how many predictions each bin holds.

    Bars below the diagonal are overconfident, bars above it underconfident.

    Arguments:
        tables: The reliability table of each model.

    Example:
        >>> from pstn.metrics import reliability
        >>> table = reliability(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), bins=5)
        >>> len(reliability_diagram({"CNN": table}).axes)
        2
    """
    figure = _figure(WIDTH, 3.3)
    panels = figure.subplots(2, len(tables), sharex=True, squeeze=False, height_ratios=(4, 1))
    for i, (label, table) in enumerate(tables.items()):
        top, bottom = panels[0][i], panels[1][i]
        left, width = table.edges[:-1].tolist(), table.edges.diff().tolist()
        full = table.count > 0
        share = table.count / table.count.sum()
        top.plot([0, 1], [0, 1], color="0.5", linewidth=0.8, linestyle="--")
        top.bar(left, table.accuracy.nan_to_num(0.0).tolist(), width, align="edge", color=f"C{i}", alpha=0.75)
        top.plot(table.confidence[full].tolist(), table.accuracy[full].tolist(), ".", color=f"C{i}")
        top.set(title=f"{label}\nECE {table.ece:.3f}", ylim=(0, 1), aspect="equal")
        bottom.bar(left, (100 * share).tolist(), width, align="edge", color=f"C{i}", alpha=0.75)
        bottom.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="confidence", box_aspect=0.25)  # as wide as the panel above
        if i == 0:
            top.set_ylabel("accuracy")
            bottom.set_ylabel("share, %")
        else:
            top.tick_params(labelleft=False)
    for panel in panels[1]:
        panel.set_ylim(0, max(other.get_ylim()[1] for other in panels[1]))
    return figure


def posterior_samples(
    inputs: Float[Tensor, "n h w"],
    warps: Float[Tensor, "s n h w"],
    probs: Float[Tensor, "n k"],
    y: Int[Tensor, " n"],
    classes: Sequence[str],
) -> Figure:
    """A row an input: the input, S warps of it drawn from its posterior, and the averaged prediction.

    Arguments:
        inputs: Grey images, (N, H, W), black 0 and white 1.
        warps: What the classifier saw of them, (S, N, H, W).
        probs: The predicted probabilities, (N, K).
        y: The right classes, (N,).
        classes: Their names.

    Example:
        >>> x = torch.rand(2, 8, 8)
        >>> figure = posterior_samples(x, x.expand(3, -1, -1, -1), torch.eye(2), torch.tensor([0, 1]), ("a", "b"))
        >>> len(figure.axes)  # images and a prediction, for each input
        4
    """
    samples = len(warps)
    images = torch.cat([inputs[:, None], warps.transpose(0, 1)], dim=1)
    figure = _figure(WIDTH, (0.8 * WIDTH / (samples + 1.5) + 0.25) * len(inputs) + 0.3)
    panels = figure.subplots(len(inputs), 2, squeeze=False, width_ratios=(4, 1))
    for (left, bars), row, p, right in zip(panels, images, probs, y.tolist(), strict=True):
        _mosaic(left, row[None])
        named = int(p.argmax())
        colours = ["C2" if k == right else "C3" if k == named else "0.6" for k in range(len(p))]
        bars.bar(range(len(p)), p.tolist(), color=colours)
        bars.set(ylim=(0, 1), yticks=(0, 1), xticks=range(len(p)), xticklabels=classes)
        bars.tick_params(length=2, labelsize=8)
    panels[0][0].set_title("input, and draws from its posterior", loc="left")
    panels[0][1].set_title("prediction", loc="left")
    return figure


def parameter_spread(
    centre: Float[Tensor, "n d"], spread: Float[Tensor, "n d"], names: Sequence[str], units: Sequence[str]
) -> Figure:
    """How far the posteriors of N inputs lie from the identity, and how wide they are; a column a parameter.

    Arguments:
        centre: Where each input's posterior has its centre, (N, d).
        spread: Its width, (N, d), positive.
        names: What the parameters are called.
        units: What both are measured in; see :func:`pstn.report.units.plain_units`.

    Example:
        >>> len(parameter_spread(torch.randn(9, 2), torch.rand(9, 2), ("rotation", "x"), ("°", "px")).axes)
        4
    """
    figure = _figure(WIDTH, 3.2)
    panels = figure.subplots(2, len(names), squeeze=False)
    for i, (name, unit) in enumerate(zip(names, units, strict=True)):
        label = f"{name}, {unit}" if unit else name
        for panel, values, sign in ((panels[0][i], centre[:, i], ""), (panels[1][i], spread[:, i], "± ")):
            middle, low, high = (float(values.quantile(q)) for q in (0.5, 0.005, 0.995))
            shown = values[(values >= low) & (values <= high)]
            panel.hist(shown.tolist(), bins=30, color=f"C{i}", alpha=0.75, histtype="stepfilled")
            panel.axvline(middle, color=f"C{i}", linewidth=1.2)
            panel.set_title(f"median {sign}{middle:.2g} {unit}".rstrip(), fontsize=8)
            panel.set_yticks(())
        panels[0][i].set_xlabel(label)
        panels[1][i].set_xlabel(f"± {label}")
        panels[1][i].set_xlim(left=0)
    panels[0][0].set_ylabel("centre")
    panels[1][0].set_ylabel("spread")
    return figure


def training_curves(panels: Mapping[str, Mapping[str, Curve]], *, log: Sequence[str] = ()) -> Figure:
    """Curves over training steps, a panel a quantity: the mean over runs, and a band from the least to the largest.

    Arguments:
        panels: For each quantity the curve of each model: (steps, one list of values a run).
        log: The quantities with a logarithmic axis.

    Example:
        >>> figure = training_curves({"loss": {"CNN": ([1, 2], [[0.5, 0.2], [0.6, 0.3]])}}, log=["loss"])
        >>> figure.axes[0].get_ylabel()
        'loss'
    """
    figure = _figure(WIDTH, 3.0)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (quantity, curves) in zip(axes, panels.items(), strict=True):
        for i, (label, (steps, runs)) in enumerate(curves.items()):
            columns = list(zip(*runs, strict=True))
            panel.plot(steps, [statistics.fmean(column) for column in columns], color=f"C{i}", label=label)
            panel.fill_between(steps, list(map(min, columns)), list(map(max, columns)), color=f"C{i}", alpha=0.15)
        panel.set(xlabel="step", ylabel=quantity, yscale="log" if quantity in log else "linear")
        panel.grid(linewidth=0.5)
        panel.margins(x=0)
    axes[0].legend()
    return figure


def choices(panels: Mapping[str, Mapping[float, Sequence[float]]], quantity: str) -> Figure:
    """What was tried and how it scored, a panel a setting: a dot a run, a line through the means, a ring at the least.

    Arguments:
        panels: For each setting, the scores of the runs at each value tried.
        quantity: What the scores are; the least is the best.

    Example:
        >>> len(choices({"KL weight": {1e-4: [0.3, 0.2], 1e-3: [0.4]}}, "validation NLL").axes)
        1
    """
    figure = _figure(WIDTH, 2.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for i, (panel, (setting, tried)) in enumerate(zip(axes, panels.items(), strict=True)):
        means = {value: statistics.fmean(scores) for value, scores in tried.items()}
        places = dict(zip(tried, range(len(tried)), strict=True))  # evenly spaced: the grids are roughly geometric
        for value, scores in tried.items():
            panel.plot([places[value]] * len(scores), scores, ".", color=f"C{i}", alpha=0.6)
        panel.plot(list(places.values()), list(means.values()), color=f"C{i}")
        best = min(means, key=means.__getitem__)
        panel.plot(places[best], means[best], "o", markersize=11, markerfacecolor="none", color=f"C{i}")
        panel.set(xlabel=setting, ylabel=quantity, xticks=list(places.values()))
        panel.set_xticklabels([f"{value:g}" for value in places])
        panel.grid(linewidth=0.5, axis="y")
    return figure


def picture(inputs: Float[Tensor, "n h w"], warps: Float[Tensor, "s n h w"], columns: int = 2) -> Figure:
    """Inputs in frames, each with warps drawn from its posterior beside it: the posterior without a word.

    Arguments:
        inputs: Grey images, (N, H, W), black 0 and white 1.
        warps: Draws, (S, N, H, W).
        columns: How many inputs stand in a row.

    Example:
        >>> x = torch.rand(4, 8, 8)
        >>> len(picture(x, x.expand(3, -1, -1, -1)).axes)
        2
    """
    rows = torch.cat([inputs[:, None], warps.transpose(0, 1)], dim=1)
    figure = _figure(WIDTH, WIDTH * -(-len(rows) // columns) / (rows.shape[1] + 0.2) / columns, facecolor="white")
    for panel, chunk in zip(figure.subplots(1, columns, squeeze=False)[0], rows.chunk(columns), strict=True):
        _mosaic(panel, chunk)
    return figure


def _mosaic(panel: Axes, rows: Float[Tensor, "n m h w"]) -> None:
    """Rows of grey images in dark ink on white; the first of each row is framed and stands apart."""
    from matplotlib.patches import Rectangle

    count, length, height, width = rows.shape
    gap, apart = max(1, width // 10), max(2, width // 4)
    canvas = rows.new_full((count * (height + gap), length * (width + gap) + apart), torch.nan)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = i * (height + gap), j * (width + gap) + (apart if j else 0)
            canvas[top : top + height, left : left + width] = 1 - image.clamp(0, 1)
            style = {"edgecolor": "0.75", "linewidth": 0.5} if j else {"edgecolor": "C3", "linewidth": 2.0}
            panel.add_patch(Rectangle((left - 0.5, top - 0.5), width, height, facecolor="none", **style))  # type: ignore[arg-type]
    # what is NaN is left out: between the images one sees the page
    panel.imshow(canvas.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.set(xlim=(-1.5, canvas.shape[1] - gap + 0.5), ylim=(canvas.shape[0] - gap + 0.5, -1.5))
    panel.axis("off")


def _figure(width: float, height: float, facecolor: str | None = None) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'pstn[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=facecolor)
    FigureCanvasAgg(figure)  # without pyplot, and without a display
    return figure
