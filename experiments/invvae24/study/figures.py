"""The study's figures, from the lists that the records of the shown rows keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.invvae24.study.measure import unpack
from pstn.experiment.figures import matplotlib_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pstn.experiment import Result

Draw = Callable[[Sequence["Result"]], "Figure"]
CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")
#: What the lines of ``pictures`` are, by number.
BASE, MOVED, BASE_SEEN, BASE_DRAWN, BASE_BACK, MOVED_SEEN, MOVED_DRAWN, MOVED_BACK = range(8)


def lines(title: str, *wanted: tuple[str, int]) -> Draw:
    """Rows of pictures, named, of each shown row's first network."""

    def draw(results: Sequence[Result]) -> Figure:
        shown = _with("pictures", results)
        figure, panels = _panels(len(shown), 1, 9.6, 0.95 * len(wanted))
        for panel, result in zip(panels, shown, strict=False):
            found = result.chosen[0]["test"]["pictures"]
            _sheet(panel, [unpack(found[number]) for _, number in wanted], [name for name, _ in wanted])
            panel.set_title(f"{title}: {result.row.label}", fontsize=8)
        return figure

    return draw


def sets(results: Sequence[Result]) -> Figure:
    """A picture of each class as it is, and nudged."""
    shown = _with("pictures", results)[:1]
    figure, panels = _panels(1, 1, 9.6, 2.0)
    for panel, result in zip(panels, shown, strict=False):
        found = result.chosen[0]["test"]["pictures"]
        _sheet(panel, [unpack(found[BASE]), unpack(found[MOVED])], ["base", "augmented"])
    return figure


def traversals(results: Sequence[Result]) -> Figure:
    """One picture's code with one number after the other changed, a line of pictures each."""
    shown = _with("traversal", results)
    figure, panels = _panels(1, len(shown), 3.4, 4.0)
    for panel, result in zip(panels, shown, strict=False):
        _sheet(panel, [unpack(line) for line in result.chosen[0]["test"]["traversal"]], [])
        panel.set_title(result.row.label, fontsize=7)
    return figure


def samples(results: Sequence[Result]) -> Figure:
    """Pictures drawn from codes of the prior."""
    shown = _with("samples", results)
    figure, panels = _panels(len(shown), 1, 9.6, 1.9)
    for panel, result in zip(panels, shown, strict=False):
        found = unpack(result.chosen[0]["test"]["samples"][0])
        _sheet(panel, list(found.chunk(2)), [])
        panel.set_title(result.row.label, fontsize=8)
    return figure


def projections(results: Sequence[Result]) -> Figure:
    """Codes of both test sets on the first two principal axes of the base set's, coloured by class."""
    shown = _with("codes", results)
    figure, panels = _panels(2, len(shown), 3.4, 3.2)
    for i, result in enumerate(shown):
        both = result.chosen[0]["test"]["codes"]
        for j, (points, name) in enumerate(zip(both, ("base", "augmented"), strict=True)):
            x, y, label = zip(*points, strict=True)
            panel = panels[j * len(shown) + i]
            dots = panel.scatter(x, y, c=label, s=5, cmap="tab10", vmin=0, vmax=9)
            panel.set_title(f"{result.row.label}: {name}", fontsize=7)
    if shown:
        marks, _ = dots.legend_elements(num=list(range(len(CLASSES))))
        figure.legend(marks, CLASSES, loc="outside lower center", ncols=len(CLASSES), fontsize=7)
    return figure


def confusions(results: Sequence[Result]) -> Figure:
    """True classes of the augmented test set (down) against predicted ones, in percent, mean over the networks."""
    shown = _with("confusion", results)
    figure, panels = _panels(1, len(shown), 4.4, 4.4)
    for panel, result in zip(panels, shown, strict=False):
        counts = torch.tensor([record["test"]["confusion"] for record in result.chosen]).mean(0)
        share = 100 * counts / counts.sum(1, keepdim=True).clamp(min=1)
        panel.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=100)
        for (i, j), value in np.ndenumerate(share.numpy()):
            panel.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=5, color="w" if value > 50 else "k")
        hardest = share.diagonal().argsort()[:2].tolist()
        panel.set_title(f"{result.row.label}\nhardest: {', '.join(CLASSES[i] for i in hardest)}", fontsize=7)
        panel.set_xticks(range(10), CLASSES, rotation=90, fontsize=6)
        panel.set_yticks(range(10), CLASSES, fontsize=6)
    return figure


def wrong(results: Sequence[Result]) -> Figure:
    """Augmented test pictures that are classified wrongly: true class, and what was said."""
    shown = _with("wrong", results)
    figure, panels = _panels(len(shown), 1, 9.6, 1.4)
    for panel, result in zip(panels, shown, strict=False):
        found, (true, said) = result.chosen[0]["test"]["wrong"]
        _sheet(panel, [unpack(found)], [])
        side = found[2]
        panel.set_xticks(
            [(i + 0.5) * side for i in range(len(true))],
            [f"{CLASSES[int(a)]}\n→ {CLASSES[int(b)]}" for a, b in zip(true, said, strict=True)],
            fontsize=6,
        )
        panel.set_title(result.row.label, fontsize=8)
    return figure


def _with(name: str, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if all(record["test"].get(name) for record in result.chosen)]


def _panels(down: int, across: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    down, across = max(down, 1), max(across, 1)
    figure = matplotlib_figure()(figsize=(width * across, height * down + 0.3), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15)  # a browser's letters may be wider than those that were measured
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel in panels:
        panel.set(xticks=[], yticks=[])
    return figure, panels


def _sheet(panel: Any, rows: list[torch.Tensor], names: list[str]) -> None:
    """Lines of pictures as one."""
    sheet = torch.cat([torch.cat(list(row), dim=1) for row in rows])
    panel.imshow(1 - sheet.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    if names:
        height = len(sheet) / len(names)
        panel.set_yticks([(i + 0.5) * height for i in range(len(names))], names, fontsize=6)
