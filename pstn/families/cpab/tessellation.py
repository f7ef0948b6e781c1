"""Simplices that fill space: intervals, triangles or tetrahedra over a grid of boxes, and unbounded ones around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tessellation:
    r"""A grid of boxes on [-1, 1]^k, each cut into simplices, and everything a walk from simplex to simplex looks up.

    A box is an interval (1-D), four triangles that meet at its centre (2-D) or five tetrahedra (3-D; every other box
    is mirrored, so that the faces match). A point of a simplex is given by its barycentric coordinates b: it lies at
    :math:`\sum_j b_j X_j`, and where :math:`b_i = 0` it lies on the face opposite to corner i.

    Space outside is cut as well: each piece of the border reaches outwards without end. Such a simplex has corners *at
    infinity*, directions that have no weight in :math:`\sum_j b_j = 1`. The mathematics is the same.

    Attributes:
        boxes: How many boxes there are along each axis.
        nodes: The corners that are points, (m, k). A corner at infinity has an index from m on.
        simplices: The corners of each simplex, (c, k + 1).
        corners: Where these lie, or which way, (c, k + 1, k).
        gradients: How b changes with the position x, (c, k + 1, k).
        slopes: The same where the box of the simplex is the unit cube: multiples of a half, (c, k + 1, k).
        offsets: b at the origin of that cube, (c, k + 1).
        neighbours: The simplex behind the face opposite to each corner, -1 where there is none, (c, k + 1).
        handover: The matrix that turns b in a simplex into b in that neighbour, (c, k + 1, k + 1, k + 1).
        inside: How many simplices lie in the domain; they come first.
        members: The simplices of each box of the grid with a rim of boxes around it; the last one repeats.
    """

    boxes: tuple[int, ...]
    nodes: Float[Tensor, "m k"]
    simplices: Int[Tensor, "c k+1"]
    corners: Float[Tensor, "c k+1 k"]
    gradients: Float[Tensor, "c k+1 k"]
    slopes: Float[Tensor, "c k+1 k"]
    offsets: Float[Tensor, "c k+1"]
    neighbours: Int[Tensor, "c k+1"]
    handover: Float[Tensor, "c k+1 k+1 k+1"]
    inside: int
    members: Int[Tensor, "boxes s"]

    @property
    def ndim(self) -> int:
        """The dimension k of space."""
        return len(self.boxes)

    def on(self, device: torch.device) -> Tessellation:
        """The same tables on another device; they stay in float64 whatever a module is cast to."""
        return self if device == self.nodes.device else _copy(self, device)

    def locate(self, points: Float[Tensor, "n k"]) -> tuple[Int[Tensor, " n"], Float[Tensor, "k+1 n"]]:
        """A simplex that holds each point, and the point's barycentric coordinates in it, which points come first."""
        boxes = torch.tensor(self.boxes, dtype=points.dtype, device=points.device)
        cell = (points + 1) * (boxes / 2)
        # The right border belongs to the last box inside, so that a point of the domain is never outside it.
        index = (
            torch.where(cell == boxes, boxes - 1, cell.floor()).clamp(min=-1).minimum(boxes).nan_to_num(0.0, 0.0, 0.0)
        )
        strides = [int(np.prod([n + 2 for n in self.boxes[:axis]])) for axis in range(self.ndim)]
        candidates = self.members[((index.long() + 1) * torch.tensor(strides, device=points.device)).sum(-1)]
        # Within the box all is exact: a point on a face is on it to the last bit, and stays where a border repels.
        b = (self.slopes[candidates] * (cell - index)[:, None, None]).sum(-1) + self.offsets[candidates]
        best = b.amin(-1).argmax(-1, keepdim=True)
        b = b.gather(1, best[..., None].expand(-1, 1, self.ndim + 1)).squeeze(1)
        return candidates.gather(1, best).squeeze(1), b.T


@lru_cache(maxsize=64)
def _copy(mesh: Tessellation, device: torch.device) -> Tessellation:
    tables = {f.name: getattr(mesh, f.name) for f in fields(mesh)}
    moved: dict[str, Any] = {name: t.to(device) for name, t in tables.items() if isinstance(t, Tensor)}
    return replace(mesh, **moved)


@lru_cache(maxsize=64)
def tessellation(boxes: Sequence[int]) -> Tessellation:
    """The tessellation of [-1, 1]^k into the given number of boxes along each axis.

    Convention: the axes are in the order (x), (x, y), (x, y, z). The first nodes are the boxes' corners, x fastest;
    in 2-D the boxes' centres follow.

    Example:
        >>> mesh = tessellation((3, 3))
        >>> mesh.nodes.shape, mesh.inside
        (torch.Size([25, 2]), 36)
    """
    k = len(boxes)
    # In units of half a box every node is a whole number, so that the tables are exact.
    lattice = [np.array(p[::-1]) * 2 for p in product(*(range(n + 1) for n in reversed(boxes)))]
    centres = [np.array(p[::-1]) * 2 + 1 for p in product(*(range(n) for n in reversed(boxes)))] if k == 2 else []
    nodes = np.stack(lattice + centres)
    number = {tuple(node): i for i, node in enumerate(nodes)}
    simplices = [
        [number[tuple(2 * np.array(box[::-1]) + corner)] for corner in simplex]
        for box in product(*(range(n) for n in reversed(boxes)))
        for simplex in _cuts(k, odd=sum(box) % 2 == 1)
    ]
    inside = len(simplices)

    # Outside: a border simplex of dimension k - r, pulled outwards along r axes.
    directions = np.concatenate([np.eye(k, dtype=int), -np.eye(k, dtype=int)])
    for sides in product((0, 1, -1), repeat=k):
        far = [len(nodes) + axis + (k if side < 0 else 0) for axis, side in enumerate(sides) if side]
        wall = [2 * n if side > 0 else 0 for n, side in zip(boxes, sides, strict=True)]
        pinned = [axis for axis, side in enumerate(sides) if side]
        on_wall = np.all(nodes[:, pinned] == np.array(wall)[pinned], axis=1)
        kept = {tuple(i for i in simplex if on_wall[i]) for simplex in simplices[:inside]}
        simplices += [[*border, *far] for border in sorted(kept) if far and len(border) == k + 1 - len(far)]

    # Columns (position, weight) of the corners; a direction has no weight.
    homogeneous = np.concatenate(
        [np.pad(nodes, ((0, 0), (0, 1)), constant_values=1), np.pad(directions, ((0, 0), (0, 1)))]
    )
    frames = homogeneous[np.array(simplices)].transpose(0, 2, 1).astype(float)
    inverses = np.linalg.inv(frames)

    neighbours = np.full((len(simplices), k + 1), -1)
    handover = np.zeros((len(simplices), k + 1, k + 1, k + 1))
    faces: dict[frozenset[int], tuple[int, int]] = {}
    for c, simplex in enumerate(simplices):
        for i in range(k + 1):
            face = frozenset(simplex[:i] + simplex[i + 1 :])
            if face not in faces:
                faces[face] = (c, i)
                continue
            other, j = faces[face]
            neighbours[c, i], neighbours[other, j] = other, c
            # All entries are multiples of a half: rounding removes what the inverse left.
            handover[c, i] = np.rint(4 * inverses[other] @ frames[c]) / 4
            handover[other, j] = np.rint(4 * inverses[c] @ frames[other]) / 4

    home = _home(boxes, np.array(simplices), nodes)
    slopes = np.rint(8 * inverses[:, :, :k]) / 4
    offsets = np.rint(4 * (inverses[:, :, :k] @ (2.0 * home[..., None]) + inverses[:, :, k:])[..., 0]) / 4
    scale = np.array(boxes, dtype=float)
    corners = frames[:, :k].transpose(0, 2, 1)
    weight = frames[:, k, :, None]
    table = {
        "nodes": nodes / scale - 1,
        "simplices": np.array(simplices),
        "corners": corners / scale - weight,
        "gradients": slopes * (scale / 2),
        "slopes": slopes,
        "offsets": offsets,
        "neighbours": neighbours,
        "handover": handover,
        "members": _members(boxes, home),
    }
    return Tessellation(boxes=tuple(boxes), inside=inside, **{n: torch.from_numpy(t) for n, t in table.items()})


def _cuts(k: int, odd: bool) -> list[list[tuple[int, ...]]]:
    """The simplices of one box [0, 2]^k by their corners."""
    if k == 1:
        return [[(0,), (2,)]]
    if k == 2:
        ring = [(0, 0), (2, 0), (2, 2), (0, 2)]
        return [[(1, 1), ring[i], ring[(i + 1) % 4]] for i in range(4)]
    # One tetrahedron on every other corner of the box, and four that cut off the remaining corners.
    cube = list(product((0, 2), repeat=3))
    core = [p for p in cube if (sum(p) // 2 + odd) % 2 == 0]
    tips = [p for p in cube if p not in core]
    around = [[q for q in core if sum(a != b for a, b in zip(p, q, strict=True)) == 1] for p in tips]
    return [core, *([tip, *near] for tip, near in zip(tips, around, strict=True))]


def _home(boxes: Sequence[int], simplices: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The box of each simplex; -1 and n along an axis are the rim."""
    k, m = len(boxes), len(nodes)
    home = np.empty((len(simplices), k), dtype=int)
    for c, simplex in enumerate(simplices):
        home[c] = nodes[simplex[simplex < m]].mean(axis=0) // 2
        for far in simplex[simplex >= m] - m:
            home[c, far % k] = -1 if far >= k else boxes[far % k]
    return home


def _members(boxes: Sequence[int], home: np.ndarray) -> np.ndarray:
    """The simplices of each box of the grid with its rim, x fastest, the last one repeated to equal length."""
    strides = [int(np.prod([n + 2 for n in boxes[:axis]])) for axis in range(len(boxes))]
    lists: dict[int, list[int]] = {}
    for c, index in enumerate((home + 1) @ strides):
        lists.setdefault(int(index), []).append(c)
    longest = max(map(len, lists.values()))
    return np.array([lists[i] + lists[i][-1:] * (longest - len(lists[i])) for i in sorted(lists)])
