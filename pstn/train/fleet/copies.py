"""A recorded step in which what tensor cores read is copied once, for all convolutions that read it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from pstn.train.fleet.sums import shape_of


def share_copies(module: GraphModule) -> GraphModule:
    """Let convolutions read the same copies of images and slopes, in place; the numbers are the same.

    On tensor cores, a convolution first copies what it reads. By themselves, the forward pass and the gradient to
    kernels copy the images each, and both gradients the slopes, which takes about a tenth of the three's time.

    Arguments:
        module: A recorded step.

    Returns:
        The same.
    """
    if not any(node.target in _convolutions() for node in module.graph.nodes):
        return module  # which is also to say that Triton may not be there
    copies = _Copies(module)
    for node in list(module.graph.nodes):
        if node.op == "call_function":
            copies.meet(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _convolutions() -> tuple[Any, ...]:
    names = ("convolve", "convolve_to_input", "convolve_to_weight")
    return tuple(getattr(torch.ops.pstn, name).default for name in names if hasattr(torch.ops.pstn, name))


class _Copies:
    """The copies that have been made so far, by what they are copies of."""

    def __init__(self, module: GraphModule) -> None:
        self.graph = module.graph
        self.views: dict[tuple[Any, ...], Node] = {}
        self.made: dict[tuple[Node, int, int], tuple[Node, Node]] = {}

    def meet(self, node: Node) -> None:
        """The next operation of the step."""
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            written = {_memory(n) for n, place in zip(node.args, schema.arguments, strict=False) if _writes(place, n)}
            self.made = {key: copy for key, copy in self.made.items() if _memory(key[0]) not in written}
        elif _aliases(node):  # two like views of one tensor are one
            key = (node.target, str(node.args), str(node.kwargs))
            if key in self.views:
                node.replace_all_uses_with(self.views[key])
            else:
                self.views[key] = node
        elif node.target in (known := _convolutions()):
            (self._forward, self._to_input, self._to_weight)[known.index(node.target)](node)

    def _forward(self, node: Node) -> None:
        from pstn.kernels.convolve import packed_forward

        x, weight, bias, stride, padding = node.args
        out = shape_of(node)
        if _dense(shape_of(weight), out):
            copy = self._image(node, x, shape_of(weight), stride, padding)
            self._replace(node, packed_forward, *copy, weight, bias, list(out[3:]), stride, padding)

    def _to_input(self, node: Node) -> None:
        from pstn.kernels.convolve import packed_to_input

        grad, weight, size, stride, padding = node.args
        if max(stride) == 1 and _dense(shape_of(weight), shape_of(grad)):  # type: ignore[arg-type]
            self._replace(node, packed_to_input, *self._copy(node, grad), weight, size, padding)

    def _to_weight(self, node: Node) -> None:
        from pstn.kernels.convolve import packed_to_weight

        grad, x, _, stride, padding = node.args
        shape = shape_of(node)
        if _dense(shape, shape_of(grad)):
            copies = (*self._copy(node, grad), *self._image(node, x, shape, stride, padding))
            self._replace(node, packed_to_weight, *copies, list(shape[1:]), stride, padding)

    def _image(self, before: Node, x: Any, weight: torch.Size, stride: Any, padding: Any) -> tuple[Node, Node]:
        from pstn.kernels.halves import columns

        across = columns(weight, stride)
        return self._copy(before, x, across, padding[1] if across > 1 else 0)

    def _copy(self, before: Node, x: Any, across: int = 1, padding: int = 0) -> tuple[Node, Node]:
        from pstn.kernels.convolve import pack

        key = (x, across, padding)
        if key not in self.made:
            with self.graph.inserting_before(before):
                both = self.graph.call_function(pack, key)
                values, top = (self.graph.call_function(operator.getitem, (both, n)) for n in (0, 1))
            self.made[key] = values, top
        return self.made[key]

    def _replace(self, node: Node, target: Any, *args: Any) -> None:
        with self.graph.inserting_before(node):
            new = self.graph.call_function(target, args)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)


def _dense(weight: torch.Size, images: torch.Size) -> bool:
    from pstn.kernels.convolve import dense

    return dense(weight[1:], images[1] * images[3:].numel())


def _writes(place: Any, argument: Any) -> bool:
    return isinstance(argument, Node) and place.alias_info is not None and place.alias_info.is_write


def _aliases(node: Node) -> bool:
    """Whether an operation returns a view of its first argument."""
    returns: Any = getattr(getattr(node.target, "_schema", None), "returns", ())
    return len(returns) == 1 and returns[0].alias_info is not None


def _memory(node: Any) -> Node:
    """The operation that made the memory that a node is a view of, or that it was written to."""
    while node.op == "call_function" and _aliases(node):
        node = node.args[0]
    return node
