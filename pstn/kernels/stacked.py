"""Operators on tensors with one network a row, to call under ``vmap`` and ``grad`` as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd, register_vmap
from torch.utils._pytree import tree_map

from pstn.kernels.operators import _LIBRARY, _front, _operator, _transformed


def stacked(name: str, schema: str, run: Any, fake: Any, pull: Any) -> Callable[..., Any]:
    """Define an operator on tensors with one network a row.

    Under ``vmap`` it is called once, on more rows.

    Arguments:
        name: Its name among the operators of this library.
        schema: Its arguments and results.
        run: What it computes.
        fake: The shapes it returns where nothing is computed.
        pull: Its gradients to all arguments, given that of its first result, which of them are wanted, the arguments
            and the other results.

    Returns:
        The function to call.
    """
    operator = _operator(name, schema, run, fake)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        # beside its value, an operator returns what its gradient needs
        kept = (*inputs, *output[1:]) if isinstance(output, tuple) else inputs
        ctx.save_for_backward(*(value for value in kept if isinstance(value, Tensor)))
        ctx.kept = [None if isinstance(value, Tensor) else (value,) for value in kept]

    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if value is None else value[0] for value in ctx.kept]
        return pull(grad, ctx.needs_input_grad, *kept)

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        n = info.batch_size
        pairs = zip(inputs, in_dims, strict=True)
        rows = (_front(v, d, n).flatten(0, 1) if isinstance(v, Tensor) else v for v, d in pairs)
        out = tree_map(lambda part: part.unflatten(0, (n, -1)), operator(*rows))
        return out, tree_map(lambda _: 0, out)

    register_autograd(f"pstn::{name}", backward, setup_context=setup, lib=_LIBRARY)
    register_vmap(f"pstn::{name}", rule, lib=_LIBRARY)
    methods: dict[str, Callable[..., Any]] = {
        "forward": lambda *inputs: operator(*inputs),
        "setup_context": setup,
        "backward": backward,
    }
    body = {"generate_vmap_rule": True, **{key: staticmethod(value) for key, value in methods.items()}}
    function = type(name, (torch.autograd.Function,), body)
    return lambda *inputs: function.apply(*inputs) if _transformed() else operator(*inputs)  # type: ignore[attr-defined]
