"""What is known of a step's operations before any of them is translated."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from pstn.train.fleet.resident.entries import TESTS, WORDS

aten = torch.ops.aten

#: Operations that show an array in another shape.
RESHAPES = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.squeeze.default, aten.unsqueeze.default, aten.alias.default, aten.detach.default,
}  # fmt: skip
#: Operations that show an array in another way.
VIEWS = RESHAPES | {
    aten.t.default, aten.transpose.int, aten.permute.default, aten.expand.default, aten.select.int,
    aten.slice.Tensor, aten.diagonal.default, aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default,
}  # fmt: skip
#: Operations that return what they are given, as far as its numbers go.
COPIES = {aten.clone.default, aten.contiguous.default, aten.lift_fresh_copy.default}
#: Operations that look at an array's shape alone, and the number they fill it with, or which argument that is.
FILLS: dict[Any, int | float] = {
    aten.full_like.default: 1, aten.zeros_like.default: 0.0, aten.ones_like.default: 1.0, aten.new_full.default: 2,
    aten.new_zeros.default: 0.0, aten.new_ones.default: 1.0, aten.full.default: 1, aten.zeros.default: 0.0,
    aten.ones.default: 1.0, aten.scalar_tensor.default: 0,
}  # fmt: skip
#: Operations with translations of their own that are computed entry by entry, each from the same entry of what has the
#: same shape.
PLAIN = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "addcmul.default", "addcdiv.default", "where.self", "clamp.default"),
    *("add.Scalar", "sub.Scalar", "mul.Scalar", "clamp_min.default", "_to_copy.default", "softplus.default"),
)


def shape_of(node: Node, part: int | None = None) -> tuple[int, ...]:
    """The shape of what an operation returns, or of one of several arrays that it returns."""
    value = node.meta["val"]
    return tuple((value if part is None else value[part]).shape)


def type_of(node: Node) -> torch.dtype:
    """The type of what an operation returns."""
    return node.meta["val"].dtype


def names(node: Node) -> tuple[str, str]:
    """Torch's name of an operation: in full, and without what tells its forms apart."""
    full = str(node.target).removeprefix("aten.")
    return full, full.split(".")[0]


def by_entries(node: Node) -> bool:
    """Whether an operation is computed entry by entry, from the same entries."""
    return any(name in WORDS or name in TESTS for name in names(node)) or names(node)[0] in PLAIN


def reads(user: Node, node: Node) -> bool:
    """Whether an operation looks at an array's numbers, not at its shape alone."""
    if user.target in FILLS:
        return False
    if user.target is aten.max_pool2d_with_indices_backward.default:
        return node in (user.args[0], user.args[7])
    return True


def uses(graph: Graph) -> dict[Node, int]:
    """How often an operation's result is read, counting those who read views of it; nothing for what nobody needs."""
    found: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        through = node.target in VIEWS or node.target in COPIES or node.target is operator.getitem
        if node.target is aten.copy_.default:
            count = 1
        elif not found.get(node):
            continue
        else:
            count = found[node] if through else 1
        for source in node.all_input_nodes:
            if reads(node, source):
                found[source] = found.get(source, 0) + count
    return found


def last(graph: Graph) -> set[Node]:
    """What is computed entry by entry for the copies at the end alone."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor):
            continue
        ends = [
            user.target is aten.copy_.default or (user in found and shape_of(user) == shape_of(node))
            for user in node.users
        ]
        if ends and all(ends) and by_entries(node):
            found.add(node)
    return found
