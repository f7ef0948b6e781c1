"""A recorded step whose long sums are taken where, and in as many pieces as, a GPU is quick at."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

#: From how many terms on the sums of a matrix product are split, into pieces of how many, and the most numbers of a
#: product that are few. None of it is about how many networks there are: their sums must not depend on the company.
LONG, PIECE, FEW = 1024, 256, 16384
_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.unsqueeze.default, _aten.squeeze.dim)


def shorten_sums(module: GraphModule) -> GraphModule:
    """Split long sums of small matrix products, and sum slopes before pooling spreads them out, in place.

    A library gives a small product to few multiprocessors, however long its sums are, as those of a linear layer from
    the 11,191 features of a large picture to 15. And a bias behind which there is pooling gets the sum of all slopes,
    most of which are the zeros that pooling puts between them.

    Arguments:
        module: A recorded step.

    Returns:
        The same, which gives the same numbers to rounding.

    Example:
        >>> from pstn.train.fleet.record import record
        >>> a, b = torch.ones(1, 2, 3000), torch.ones(1, 3000, 2)
        >>> shorten_sums(record(torch.bmm, [a, b]))(a, b)
        tensor([[[3000., 3000.],
                 [3000., 3000.]]])
    """
    for node in list(module.graph.nodes):
        if node.target is _aten.bmm.default:
            _split(module.graph, node)
        elif node.target is _aten.sum.dim_IntList:
            _before_pooling(module.graph, node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _split(graph: Graph, node: Node) -> None:
    """A product (M, R, K) by (M, K, C) as the sum of products of pieces of K."""
    a, b = node.args
    if any("val" not in each.meta for each in (a, b)):  # type: ignore[union-attr]
        return  # a constant of a recorded step may come without a shape
    (m, rows, length), columns = shape_of(a), shape_of(b)[2]
    if length < LONG or rows * columns > FEW:
        return
    count = math.ceil(length / PIECE)
    rest = count * PIECE - length
    with graph.inserting_before(node):

        def call(target: Any, *args: Any) -> Node:
            return graph.call_function(target, args)

        left = call(_aten.constant_pad_nd.default, a, [0, rest])
        left = call(_aten.transpose.int, call(_aten.reshape.default, left, [m, rows, count, PIECE]), 1, 2)
        left = call(_aten.reshape.default, left, [m * count, rows, PIECE])
        right = call(_aten.constant_pad_nd.default, b, [0, 0, 0, rest])
        right = call(_aten.reshape.default, right, [m * count, PIECE, columns])
        parts = call(_aten.view.default, call(_aten.bmm.default, left, right), [m, count, rows, columns])
        whole = call(_aten.sum.dim_IntList, parts, [1])
    whole.meta = dict(node.meta)
    node.replace_all_uses_with(whole)


def _before_pooling(graph: Graph, node: Node) -> None:
    """A sum over pixels to which pooling has brought back slopes, as the sum of those slopes."""
    if not hasattr(torch.ops.pstn, "unpool"):
        return
    seen: Any = node.args[0]
    source = seen
    while source.target in _VIEWS:
        source = source.args[0]
    if source.target is not torch.ops.pstn.unpool.default:
        return
    # What stays of the views is how the planes are counted: pixels must be the last two axes, and be summed over.
    slopes, shape, axes = source.args[0], shape_of(seen), _axes(node)
    if shape[-2:] != shape_of(source)[-2:] or not {len(shape) - 2, len(shape) - 1} <= axes:
        return
    with graph.inserting_before(source):  # where they are as pooling got them
        fewer = graph.call_function(_aten.reshape.default, (slopes, [*shape[:-2], *shape_of(slopes)[-2:]]))
        whole = graph.call_function(_aten.sum.dim_IntList, (fewer, *node.args[1:]), node.kwargs)
    whole.meta = dict(node.meta)
    node.replace_all_uses_with(whole)


def _axes(node: Node) -> set[int]:
    """The axes that a sum is over: all, where it names none."""
    count = len(shape_of(node.args[0]))
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return {axis % count for axis in given or range(count)}


def shape_of(node: Any) -> torch.Size:
    """The shape of what an operation of a recorded step returns."""
    return node.meta["val"].shape
