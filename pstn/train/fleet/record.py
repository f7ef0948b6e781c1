"""A function of tensors written down as the operations it comes to, constants worked out beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

_IDLE = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def record(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """The operations that a function performs on inputs of these shapes, to be performed again on others.

    Python runs once, now: what torch.func, autograd and the modules cost on top of the operations is not paid again.
    What does not depend on the inputs (identity grids, fills) is computed now as well.

    Arguments:
        function: A function of tensors that returns tensors. What it does must not depend on their values.
        inputs: Tensors to record with; they are computed on, and written to where the function does so.

    Returns:
        A module to call with tensors of the same shapes, without gradients.

    Raises:
        RuntimeError: What the function does, or the shape of what it finds, depends on the inputs' values.

    Example:
        >>> double = record(lambda x: x * torch.arange(3).sum(), [torch.ones(2)])
        >>> double(torch.tensor([1.0, 2.0]))
        tensor([3., 6.])
        >>> [node.op for node in double.graph.nodes]
        ['placeholder', 'get_attr', 'call_function', 'output']
    """
    module = traced(function, inputs)
    unsteady = next((node for node in module.graph.nodes if _is_unsteady(node)), None)
    if unsteady is not None:
        raise RuntimeError(f"the shape of what {unsteady.target} finds depends on the values it is given")
    for node in module.graph.nodes:
        if node.target in _IDLE:  # nothing is differentiated any more
            node.replace_all_uses_with(node.args[0])
    module.graph.eliminate_dead_code()
    _fold(module, inputs[0].device)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def traced(function: Callable[..., Any], inputs: Sequence[Tensor], **options: Any) -> GraphModule:
    """What torch's ``make_fx`` writes down, in half the time.

    It notes the shape of each value by a mode of tensors without numbers, and where none is at hand makes one for each.
    """
    with tracing(TracingContext(FakeTensorMode())):
        return make_fx(function, **options)(*inputs)


def _is_unsteady(node: Node) -> bool:
    """Whether an operation finds as many numbers as there are of a kind, such as those that a mask selects."""
    if torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()):
        return False
    if node.target is not torch.ops.aten.index.Tensor:
        return True
    places: Any = node.args[1]
    values = (place.meta.get("val") for place in places if isinstance(place, Node))
    return any(isinstance(value, Tensor) and value.dtype in (torch.bool, torch.uint8) for value in values)


def _fold(module: GraphModule, device: torch.device) -> None:
    """Replace what depends on no input by its value."""
    values: dict[Node, Any] = {}
    with torch.no_grad():
        for node in (constant := _constants(module)):
            if node.op == "get_attr":
                values[node] = getattr(module, str(node.target))
            else:
                arguments: Any = torch.fx.map_arg(node.args, values.__getitem__)
                options: Any = torch.fx.map_arg(node.kwargs, values.__getitem__)
                values[node] = node.target(*arguments, **options)  # type: ignore[operator]
    for number, node in enumerate(constant):
        if not isinstance(values[node], Tensor) or all(user in values for user in node.users):
            continue
        # Torch lets a single number of the CPU meet any device; a kernel that is compiled would look for it on its own.
        value = values[node] if values[node].ndim else values[node].to(device)
        if node.op == "get_attr" and value is values[node]:
            continue
        name = f"_constant{number}"
        module.register_buffer(name, value, persistent=False)
        with module.graph.inserting_before(node):
            attribute = module.graph.get_attr(name)
        attribute.meta = {**node.meta, "val": value}
        node.replace_all_uses_with(attribute)
    for node in reversed(constant):
        if not node.users:
            module.graph.erase_node(node)


def _constants(module: GraphModule) -> list[Node]:
    """The nodes that depend on no input, in order: neither by what they read nor by what is written to them."""
    found: dict[Node, None] = {}
    for node in module.graph.nodes:
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if node.op == "get_attr" or (
            node.op == "call_function" and not random and all(n in found for n in node.all_input_nodes)
        ):
            found[node] = None
    spoilt = {memory for node in module.graph.nodes if node not in found for memory in _written(node)}
    while spoilt & found.keys():
        found = {node: None for node in found if node not in spoilt}
        spoilt = {node for node in found if any(n not in found for n in node.all_input_nodes)}
        # what an operation would have written, had it stayed constant, is spoilt with it
        spoilt |= {memory for node in spoilt for memory in _written(node)}
    return list(found)


def _written(node: Node) -> set[Node]:
    """The nodes whose memory an operation writes to, directly or through views."""
    schema = getattr(node.target, "_schema", None)
    found: set[Node] = set()
    if schema is None or not schema.is_mutable:
        return found
    for argument, place in zip(node.args, schema.arguments, strict=False):
        if place.alias_info is not None and place.alias_info.is_write:
            source: Any = argument
            while isinstance(source, Node):
                found.add(source)
                source = source.args[0] if source.args else None
    return found
