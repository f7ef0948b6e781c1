"""A network's architecture as plain data, and back: what ``model.json`` holds beside the weights. Nothing is unpickled.

A module is ``{"is": name, ...arguments}``. Only torch's own layers and this library's parts have names here, so that a
file from elsewhere can build networks and do nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import nn

from pstn import families, posterior
from pstn.nets.pooled import Mean
from pstn.nets.resnet import ResNet
from pstn.nets.scales import Scales, Slopes, Summary
from pstn.nets.small import Blind, Localizer
from pstn.placement import Placement
from pstn.stn import STN


class BlueprintError(ValueError):
    """A network that cannot be written down, or a description that cannot be built."""


_LAYERS = (
    *("Linear", "Flatten", "Unflatten", "Identity", "Dropout", "ReLU", "LeakyReLU", "GELU", "SiLU", "ELU", "Tanh"),
    *("Sigmoid", "Softplus", "LayerNorm", "GroupNorm", "PReLU", "Hardtanh", "ReLU6", "Hardswish"),
    *(
        f"{kind}{k}d"
        for k in (1, 2, 3)
        for kind in ("Conv", "BatchNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "Dropout")
    ),
    *("InstanceNorm1d", "InstanceNorm2d", "ZeroPad2d"),
)
_FAMILIES = ("Affine", "CPAB", "Crop", "Projective", "Rotation", "Similarity", "TPS", "Translation")
_POSTERIORS = ("Gaussian", "Learned", "Point", "StudentT")

#: Everything that can be built from its arguments alone.
NAMED: dict[str, Callable[..., Any]] = {
    **{name: getattr(nn, name) for name in _LAYERS},
    **{name: getattr(families, name) for name in _FAMILIES},
    **{name: getattr(posterior, name) for name in _POSTERIORS},
    **{one.__name__: one for one in (Mean, Blind, ResNet, Placement, Scales, Slopes, Summary)},
}


def describe(part: Any) -> Any:
    """A network, or a part of one, as JSON has it.

    Arguments:
        part: An :class:`pstn.STN` of this library's parts and torch's layers; ``nn.Sequential`` may hold more of them.

    Raises:
        BlueprintError: A part is of a class that has no name here.

    Example:
        >>> describe(nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)))["of"][1]
        {'is': 'Linear', 'in_features': 4, 'out_features': 2, 'bias': False}
    """
    kind: type = type(part)
    if kind is STN:
        return _describe_stn(part)
    if kind is Localizer:
        return {"is": "Localizer", "of": [describe(child) for child in part], "out_features": part.out_features}
    if kind is nn.Sequential:
        return {"is": "Sequential", "of": [describe(child) for child in part]}
    if kind is families.Compose:
        return {"is": "Compose", "of": [describe(family) for family in part.families]}
    if NAMED.get(kind.__name__) is not kind:
        raise BlueprintError(
            f"{kind.__module__}.{kind.__qualname__} cannot be written down; a network in a model folder is made "
            "of torch's layers, nn.Sequential and pstn's parts"
        )
    if kind is ResNet:
        plain = isinstance(part.fc, nn.Identity)
        own = {"channels": part.conv1.in_channels, "width": part.conv1.out_channels}
        small = isinstance(part.maxpool, nn.Identity)
        return {"is": "ResNet", "classes": None if plain else part.out_features, **own, "small": small}
    if kind is Scales:
        first = part.branches[0]
        kernels = [branch.kernel_size[0] for branch in part.branches]
        return {"is": "Scales", "before": first.in_channels, "width": first.out_channels, "kernels": kernels}
    if is_dataclass(part):
        return {"is": kind.__name__, **_plain(asdict(part))}  # type: ignore[arg-type]
    return {"is": kind.__name__, **_arguments(part)}


def build(description: Any) -> Any:
    """The network of a description, with fresh weights.

    Raises:
        BlueprintError: The description names something unknown, or its arguments do not fit.

    Example:
        >>> build({"is": "Sequential", "of": [{"is": "Flatten"}, describe(nn.Linear(4, 2))]})
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=4, out_features=2, bias=True)
        )
    """
    if not isinstance(description, Mapping) or not isinstance(description.get("is"), str):
        raise BlueprintError(f"{str(description)[:80]!r} describes no part of a network: it has no 'is'")
    name = description["is"]
    rest = {key: _restored(value) for key, value in description.items() if key not in ("is", "of")}
    try:
        parts = [build(part) for part in description.get("of", ())]
        if name == "STN":
            last = rest.pop("channels_last", False)
            made = STN(**{key: build(value) if _is_part(value) else value for key, value in rest.items()})
            if last:  # how its numbers lie in memory decides how fast it is, and how it rounds
                made.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            return made
        if name in ("Sequential", "Localizer", "Compose"):
            joined = {"Sequential": nn.Sequential, "Localizer": Localizer, "Compose": families.Compose}[name]
            return joined(*parts, **rest)
        if name not in NAMED:
            raise BlueprintError(f"there is no part called {name!r}; a newer version of pstn may know it")
        return NAMED[name](**rest)
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BlueprintError):
            raise
        raise BlueprintError(f"a {name} cannot be built from {sorted(rest)}: {error}") from error


def _describe_stn(model: STN) -> dict[str, Any]:
    if len(model.transformers) > 1 or len(model.branches):
        raise BlueprintError("a model folder holds one transformer; this network has several, or branches")
    transformer = next(iter(model.transformers), None)
    made: dict[str, Any] = {"is": "STN", "body": describe(model.body), "placement": describe(model.placement)}
    if transformer is not None:
        made["localizer"] = describe(transformer.localizer)
        made["family"] = describe(model.family)
        made["posterior"] = describe(model.posterior)
        made["features"] = transformer.head.features  # type: ignore[union-attr]
    images = [p for p in model.body.parameters() if p.ndim == 4 and not p.is_contiguous()]
    if any(p.is_contiguous(memory_format=torch.channels_last) for p in images):
        made["channels_last"] = True
    return {**made, "size": _plain(model.size), **_plain(model.options), "frozen": model.frozen}


def _arguments(part: nn.Module) -> dict[str, Any]:
    """What the constructor was given: every module here keeps its arguments under their names."""
    found = {}
    for name, parameter in inspect.signature(type(part).__init__).parameters.items():
        if name in ("self", "device", "dtype") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(part, name, parameter.default)
        found[name] = value is not None if name == "bias" else _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BlueprintError(f"{value!r} is no number, word or list")


def _restored(value: Any) -> Any:
    """JSON has no tuples; the parts of a network take nothing but tuples."""
    return tuple(_restored(one) for one in value) if isinstance(value, list) else value


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and "is" in value
