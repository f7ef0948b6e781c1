"""Which networks can be stacked: those that are alike in everything but the numbers in their tensors."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from pstn.train.config import Train
from pstn.train.step import Step


def signature(unit: nn.Module, config: Train) -> tuple[Any, ...]:
    """What units must have in common to be stacked: structure, shapes, and every setting that is not in a tensor."""
    common = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in _EACH_ITS_OWN
    }
    return (_describe(common), _describe(unit))


#: Settings in which the networks of a fleet may differ.
_EACH_ITS_OWN = (
    *("lr", "localizer_lr", "weight_decay", "kl_weight", "kl_warmup"),
    *("schedule", "step_size", "gamma", "warmup", "seed"),
)


#: Attributes of modules that say where a run is, not what a network is.
_PASSING = ("training", "terms", "kl_weight")


@functools.singledispatch
def _describe(value: Any) -> Any:
    """Something hashable, equal for values that behave alike. When in doubt, things differ: that costs only speed."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hidden: frozenset[str] = getattr(value, "in_state", frozenset())
        fields = [f.name for f in dataclasses.fields(value) if f.name not in hidden]
        return (type(value), *((name, _describe(getattr(value, name))) for name in fields))
    if type(value).__module__.startswith("pstn.") and hasattr(value, "__dict__"):
        return (type(value), _describe(vars(value)))
    comparable = isinstance(value, Hashable) and type(value).__eq__ is not object.__eq__
    return value if comparable else ("object", id(value))


@_describe.register
def _(value: dict) -> Any:
    return tuple((_describe(key), _describe(entry)) for key, entry in value.items())


@_describe.register(list)
@_describe.register(tuple)
def _(value: Any) -> Any:
    return (type(value), *map(_describe, value))


@_describe.register
def _(value: Tensor) -> Any:
    data = value.detach().cpu().contiguous()
    return (tuple(value.shape), value.dtype, zlib.crc32(data.flatten().view(torch.uint8).numpy().tobytes()))


@_describe.register
def _(value: nn.Module) -> Any:
    made = []
    for name, module in value.named_modules():
        own = {k: v for k, v in vars(module).items() if not k.startswith("_") and k not in _PASSING}
        if isinstance(module, Step):
            own.pop("config")  # compared on its own, without what may differ
        tensors = (*module._parameters.items(), *module._buffers.items())
        shapes = [(k, None if t is None else (tuple(t.shape), t.dtype, t.requires_grad)) for k, t in tensors]
        made.append((name, type(module), tuple(shapes), _describe(own)))
    return tuple(made)
