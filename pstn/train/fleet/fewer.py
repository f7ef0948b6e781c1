"""A recorded step in words of which a compiler makes few kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from pstn.train.fleet.sums import shape_of

#: The most products that a network has to sum in a matrix product that is spelled out.
SMALL = 2**20
_aten = torch.ops.aten


def fewer_kernels(module: GraphModule) -> GraphModule:
    """Leave to the compiler what it can do along with its neighbours, in place.

    A step of small networks is some dozens of kernels of a few microseconds each. Between them, processes that share a
    GPU begin only so many kernels a second, whatever is in these: it is their number that counts. Small matrix products
    become products and sums, which are one kernel with the operations before and behind; the gradient to a
    convolution's kernels is summed where it is put beside the others.

    Arguments:
        module: A recorded step, to be compiled.

    Returns:
        The same, which gives the same numbers to rounding.

    Example:
        >>> from pstn.train.fleet.record import record
        >>> a, b = torch.ones(1, 2, 3), torch.ones(1, 3, 2)
        >>> fewer_kernels(record(torch.bmm, [a, b]))(a, b)
        tensor([[[3., 3.],
                 [3., 3.]]])
    """
    for node in list(module.graph.nodes):
        if node.target is _aten.bmm.default:
            _spell_out(module.graph, node)
        elif node.target is _to_weight():
            _leave_sum(module.graph, node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _to_weight() -> Any:
    """The gradient to kernels; None where Triton is not there."""
    return torch.ops.pstn.convolve_to_weight.default if hasattr(torch.ops.pstn, "convolve_to_weight") else None


def _spell_out(graph: Graph, node: Node) -> None:
    """A product (M, R, K) by (M, K, C) as a sum of (M, R, K, C)."""
    a, b = node.args
    if any("val" not in each.meta for each in (a, b)):  # type: ignore[union-attr]
        return
    if shape_of(a)[1:].numel() * shape_of(b)[2] > SMALL:
        return
    with graph.inserting_before(node):
        left = graph.call_function(_aten.unsqueeze.default, (a, 3))
        right = graph.call_function(_aten.unsqueeze.default, (b, 1))
        products = graph.call_function(_aten.mul.Tensor, (left, right))
        whole = graph.call_function(_aten.sum.dim_IntList, (products, [2]))
    _replace(node, whole)


def _leave_sum(graph: Graph, node: Node) -> None:
    """The gradient to kernels as the sum of its parts."""
    from pstn.kernels.convolve import dense, to_weight_parts

    grad, images = node.args[0], shape_of(node.args[0])
    if dense(shape_of(node)[1:], images[1] * images[3:].numel()):
        return  # on tensor cores, parts are few, or the sum is large
    with graph.inserting_before(node):
        parts = graph.call_function(to_weight_parts, (grad, *node.args[1:]))
        whole = graph.call_function(_aten.sum.dim_IntList, (parts, [1]))
    _replace(node, whole)


def _replace(node: Node, new: Node) -> None:
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
