"""Torch's operations on pictures: convolution, pooling, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from pstn.train.fleet.resident import entries, products, totals
from pstn.train.fleet.resident.nodes import shape_of
from pstn.train.fleet.resident.operations import operation, plain
from pstn.train.fleet.resident.values import Memory, Value, allocate, written

if TYPE_CHECKING:
    from pstn.train.fleet.resident.translate import Translator


@operation("convolution")
def _convolution(
    self: Translator,
    node: Node,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    _: Any,
    groups: int,
) -> Value | None:
    plain(len(x.shape) == 4 and not transposed and groups == 1 and set(dilation) == {1})
    x, kernels = self.ready(x), written(self.writer, self.ready(weight))
    pool = self.pooling(node)
    if pool is None:
        return products.convolved(self.writer, x, kernels, bias, stride, padding)
    size = _pair(pool.args[1])
    places = allocate(self.writer, shape_of(pool, 0), torch.int8)
    self.values[pool] = [products.convolved(self.writer, x, kernels, bias, stride, padding, (size, places)), places]
    return None  # nobody else looks at it


@operation("convolution_backward")
def _convolution_back(
    self: Translator,
    node: Node,
    grad: Value,
    x: Value,
    weight: Value,
    _: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    __: Any,
    groups: int,
    wanted: Sequence[bool],
) -> list[Value | None]:
    plain(len(x.shape) == 4 and not transposed and groups == 1 and set(dilation) == {1})
    kernels = written(self.writer, self.ready(weight))
    grad, x = self.ready(grad), self.ready(x)
    found: list[Value | None] = [None, None, None]
    if wanted[2]:
        room = next((self.rooms.get(user) for user in node.users if user.args[1] == 2), None)
        found[2] = totals.total(self.writer, grad, [0, 2, 3], False, room=room)
    if wanted[1]:
        found[1] = products.convolved_to_weight(self.writer, grad, x, weight.shape, stride, padding)
    if wanted[0]:
        plain(set(stride) == {1})
        found[0] = products.convolved_to_input(self.writer, grad, kernels, x.shape, padding)
    return found


def _pair(size: Any) -> tuple[int, int]:
    both = (size, size) if isinstance(size, int) else tuple(size)
    return (both[0], both[-1])


def side_by_side(size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False) -> bool:
    """Whether the windows of a pooling lie side by side, each whole and inside."""
    steps = _pair(size) if stride in ((), [], None) else _pair(stride)
    return steps == _pair(size) and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil


@operation("max_pool2d_with_indices")
def _pool(self: Translator, node: Node, x: Value, size: Any, *how: Any) -> list[Value]:
    if node in self.values:
        return self.values[node]  # along with the convolution before
    plain(side_by_side(size, *how))
    places = allocate(self.writer, shape_of(node, 0), torch.int8)
    return [entries.pooled(self.ready(x), _pair(size), places), places]


@operation("max_pool2d_with_indices_backward")
def _pool_back(self: Translator, node: Node, grad: Value, x: Any, size: Any, *how: Any) -> Value:
    *how, places = how  # type: ignore[assignment]
    # where each value came from is written down when the values are: unless nobody has asked for them
    plain(side_by_side(size, *how) and isinstance(places, Memory) and places.buffer in self.writer.memory.first)
    return entries.unpooled(self.ready(grad), places, shape_of(node), _pair(size))


@operation("grid_sampler_2d")
def _sample(self: Translator, node: Node, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    plain(mode == 0 and padding in (0, 1) and not corners)
    return entries.sampled(self.ready(x), self.ready(grid), padding)


@operation("grid_sampler_2d_backward")
def _sample_back(
    self: Translator,
    node: Node,
    grad: Value,
    x: Value,
    grid: Value,
    mode: int,
    padding: int,
    corners: bool,
    wanted: Sequence[bool],
) -> list[Value | None]:
    plain(mode == 0 and padding in (0, 1) and not corners and not wanted[0])
    return [None, entries.sampled_pull(self.ready(grad), self.ready(x), self.ready(grid), padding)]
