"""Pictures of warps: cells, velocities, deformed grids, and series before and after.

Each is a function from data to a matplotlib ``Figure``; nothing global is touched. Pictures of the plane have y
pointing down, as images do. Needs the extra ``plot``: ``pip install 'pstn[plot]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.base import Family
from pstn.families.cpab import CPAB
from pstn.grid import identity_grid
from pstn.warp import warp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: One series, several of them, or several with channels.
Series = Float[Tensor, " time"] | Float[Tensor, "n time"] | Float[Tensor, "n c time"]


def plot_tessellation(family: CPAB) -> Figure:
    """The cells of a CPAB family, and its nodes: free to move, free along the border only, or fixed.

    Arguments:
        family: A CPAB family in 1-D, 2-D or 3-D.

    Example:
        >>> plot_tessellation(CPAB((3, 3))).axes[0].get_title()
        '36 cells, 34 parameters'
    """
    mesh, k = family.mesh, family.ndim
    nodes = mesh.nodes.numpy()
    figure, panel = _panel(k)
    _edges(panel, family, color="0.6", linewidth=0.8)
    free = (family.basis.square().sum(0) > 1e-12).sum(-1).numpy()  # in how many directions a node may move
    styles = (("fixed", free == 0, "x"), ("along the border", (free > 0) & (free < k), "d"), ("free", free == k, "o"))
    for i, (label, which, marker) in enumerate(styles):
        if which.any():
            place = nodes[which].T if k > 1 else (nodes[which, 0], np.zeros(which.sum()))
            panel.plot(*place, marker, color=f"C{i}", label=label, markersize=5)
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    panel.set_title(f"{mesh.inside} cells, {family.dim} parameters")
    return figure


def plot_velocity(family: CPAB, theta: Float[Tensor, " d"], density: int = 20) -> Figure:
    """The velocity field of a CPAB map: a curve in 1-D, arrows coloured by speed in 2-D and 3-D.

    Arguments:
        family: A CPAB family.
        theta: Its parameters, (d).
        density: Arrows along an axis in 2-D; a third of them in 3-D.

    Example:
        >>> plot_velocity(CPAB(4), torch.tensor([0.3, -0.2, 0.1])).axes[0].get_ylabel()
        'velocity'
    """
    theta, k = theta.detach().cpu(), family.ndim
    if k == 1:
        figure = _figure(6.0, 2.6)
        panel = figure.subplots()
        nodes = family.mesh.nodes  # affine in between: the values at the nodes are the curve
        for x in nodes[:, 0].tolist():
            panel.axvline(x, color="0.85", linewidth=0.8)
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.plot(nodes[:, 0], family.velocity(theta.double(), nodes)[:, 0], ".-")
        panel.set(xlabel="x", ylabel="velocity", xlim=(-1, 1))
        return figure
    figure, panel = _panel(k)
    points = identity_grid([density if k == 2 else max(2, density // 3)] * k, dtype=torch.float64).flatten(0, -2)
    velocity = family.velocity(theta.double(), points)
    speed = velocity.norm(dim=-1)
    _edges(panel, family, color="0.85", linewidth=0.6)
    if k == 2:
        arrows = panel.quiver(*points.T, *velocity.T, speed, angles="xy", pivot="mid", cmap="viridis_r")
        figure.colorbar(arrows, ax=panel, label="speed", shrink=0.8)
    else:
        panel.quiver(*points.T, *velocity.T, length=0.5, color="C0", linewidth=0.8)
    return figure


def plot_grid(
    family: Family,
    theta: Float[Tensor, " d"],
    image: Float[Tensor, "h w"] | Float[Tensor, "c h w"] | None = None,
    *,
    lines: int = 17,
) -> Figure:
    """The grid of the output, drawn where it reads its input: the points T(p); with an image, it and its warp.

    Arguments:
        family: Any family in 2-D.
        theta: Its parameters, (d).
        image: A grey image (H, W), or (C, H, W) with one or three channels, to lie under the grid.
        lines: Lines of the grid in each direction.

    Example:
        >>> from pstn.families import Rotation
        >>> len(plot_grid(Rotation(), torch.tensor([0.3]), torch.rand(16, 16)).axes)
        2
    """
    if family.ndim != 2:
        raise ValueError(f"{family.label} acts on {family.ndim}-D arrays; plot_grid draws 2-D families")
    from matplotlib.collections import LineCollection

    theta = theta.detach().cpu()
    fine, coarse = torch.linspace(-1, 1, 201), torch.linspace(-1, 1, lines)
    rows = torch.stack(torch.meshgrid(fine, coarse, indexing="xy"), dim=-1)  # (lines, 201, 2), along x
    straight = torch.cat([rows, rows.flip(-1)])
    bent = family(theta, straight.flatten(0, 1)).unflatten(0, straight.shape[:2])

    figure = _figure(8.4 if image is not None else 4.6, 4.3)
    panels = figure.subplots(1, 2 if image is not None else 1, squeeze=False)[0]
    reach = max(1.0, float(bent.abs().quantile(0.999)))
    if image is not None:
        whole = image.detach().cpu().reshape(1, -1, *image.shape[-2:])
        seen = warp(whole, family, theta[None])
        low, high = float(whole.min()), float(whole.max())
        for panel, picture in zip(panels, (whole, seen), strict=True):
            pixels = picture[0].movedim(0, -1).squeeze(-1).numpy()
            panel.imshow(pixels, cmap="gray", vmin=low, vmax=high, extent=(-1, 1, 1, -1), interpolation="nearest")
        panels[1].set(title="output", xlim=(-1, 1), ylim=(1, -1), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        panels[1].add_collection(LineCollection(list(straight.numpy()), colors="C0", linewidths=0.5, alpha=0.6))
    else:
        panels[0].add_collection(LineCollection(list(straight.numpy()), colors="0.85", linewidths=0.6))
    panels[0].add_collection(LineCollection(list(bent.detach().numpy()), colors="C0", linewidths=0.8))
    edge = 1.05 * reach
    panels[0].set(xlim=(-edge, edge), ylim=(edge, -edge), aspect="equal", title="where the output reads")
    panels[0].set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    return figure


def plot_series(
    before: Series,
    after: Series,
    warping: Float[Tensor, "n time"] | Float[Tensor, "n time k"] | Float[Tensor, " time"] | None = None,
    *,
    names: Sequence[str] = (),
) -> Figure:
    """Series as they were, the warping function of each, and what they became; the mean in black where they are many.

    Arguments:
        before: Series, (time), (n, time) or (n, channels, time); a row of panels a channel.
        after: The same series after warping, in the same shape.
        warping: For each, where on [-1, 1] its aligned axis reads, as :meth:`pstn.align.Alignment.warping` gives it; no
            panel without it.
        names: The channels' names.

    Example:
        >>> t = torch.linspace(-1, 1, 50)
        >>> figure = plot_series(torch.sin(3 * t), torch.sin(3 * t**3), t**3)
        >>> [panel.get_title() for panel in figure.axes]
        ['before', 'warping', 'after']
    """
    old, new = (_three(x) for x in (before, after))
    if old.shape[:2] != new.shape[:2]:
        raise ValueError(f"series of shape {tuple(old.shape)} became {tuple(new.shape)}; expected as many as before")
    n, channels, _ = old.shape
    columns = 2 if warping is None else 3
    figure = _figure(3.2 * columns, 2.5 * channels + 0.2)
    panels = figure.subplots(channels, columns, squeeze=False)
    thin: dict[str, Any] = {"linewidth": 1.4 if n == 1 else 0.7, "alpha": 1.0 if n == 1 else max(0.25, n**-0.25)}
    for c in range(channels):
        for panel, x in ((panels[c][0], old), (panels[c][-1], new)):
            axis = identity_grid((x.shape[-1],), dtype=x.dtype)[:, 0]
            for i in range(n):
                panel.plot(axis, x[i, c], color=f"C{i % 10}", **thin)
            if n > 1:
                panel.plot(axis, x[:, c].mean(0), color="black", linewidth=1.8)
            panel.set_xlim(-1, 1)
        panels[c][-1].sharey(panels[c][0])
        panels[c][0].set_ylabel(names[c] if c < len(names) else f"channel {c}" if channels > 1 else "value")
    panels[-1][0].set_xlabel("time of the series")
    panels[-1][-1].set_xlabel("common time")
    panels[0][0].set_title("before")
    panels[0][-1].set_title("after")
    if warping is not None:
        panel = panels[0][1]
        paths = warping.detach().cpu().reshape(n, -1)
        axis = identity_grid((paths.shape[1],), dtype=paths.dtype)[:, 0]
        panel.plot([-1, 1], [-1, 1], color="0.7", linewidth=0.8, linestyle="--")
        for i in range(n):
            panel.plot(axis, paths[i], color=f"C{i % 10}", **thin)
        panel.set(title="warping", xlim=(-1, 1), ylim=(-1, 1), xlabel="common time", ylabel="time of the series")
        panel.set_aspect("equal")
        for extra in panels[1:, 1]:
            extra.set_visible(False)
    return figure


def _three(x: Tensor) -> Tensor:
    x = x.detach().cpu()
    if x.ndim not in (1, 2, 3):
        raise ValueError(f"series have shape {tuple(x.shape)}; expected (time), (n, time) or (n, channels, time)")
    return x.reshape(1, 1, -1) if x.ndim == 1 else x[:, None] if x.ndim == 2 else x


def _panel(k: int) -> tuple[Figure, Any]:
    """A figure with one panel for a k-dimensional domain."""
    if k == 3:
        figure = _figure(6.0, 5.0)
        panel = figure.add_subplot(projection="3d")
        panel.set(xlabel="x", ylabel="y", zlabel="z", xticks=(-1, 0, 1), yticks=(-1, 0, 1), zticks=(-1, 0, 1))
        return figure, panel
    figure = _figure(6.0, 4.5 if k == 2 else 2.2)
    panel = figure.subplots()
    if k == 2:
        panel.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(1.05, -1.05), xlabel="x", ylabel="y")
        panel.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    else:
        panel.set(xlim=(-1.05, 1.05), ylim=(-1, 1), xlabel="x")
        panel.yaxis.set_visible(False)
    return figure, panel


def _edges(panel: Any, family: CPAB, **style: Any) -> None:
    """The edges of all cells inside the domain."""
    nodes, cells = family.mesh.nodes.numpy(), family.mesh.simplices[: family.mesh.inside].numpy()
    k = family.ndim
    pairs = {tuple(sorted((int(cell[i]), int(cell[j])))) for cell in cells for i in range(k + 1) for j in range(i)}
    segments = [nodes[list(pair)] for pair in sorted(pairs)]
    if k == 1:
        panel.plot([-1, 1], [0, 0], **style)
    elif k == 2:
        from matplotlib.collections import LineCollection

        panel.add_collection(LineCollection(segments, colors=style["color"], linewidths=style["linewidth"]))
    else:
        from mpl_toolkits.mplot3d.art3d import Line3DCollection

        panel.add_collection3d(Line3DCollection(segments, colors=style["color"], linewidths=style["linewidth"]))


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need the extra: pip install 'pstn[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")
