"""Files of tensors and JSON that are written whole or not at all, and checked when they are read. No pickle."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

#: The metadata key that marks a file as ours; its value is the JSON part.
KEY = "pstn"


class CheckpointError(RuntimeError):
    """A checkpoint that is damaged, foreign, or belongs to something else."""


def save(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None) -> None:
    """Write tensors and a JSON-able mapping to one safetensors file, whole or not at all.

    A reader, or a process killed half way, finds the old file or the new one, never a mixture.

    Arguments:
        path: The file to write; its folder is made when missing.
        tensors: What to keep. Tensors that share memory are written each on its own.
        meta: What else to keep: numbers (numpy's, too), strings, lists and mappings, as JSON has them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/a.safetensors", {"x": torch.ones(2)}, {"epoch": 3})
        ...     load(f"{folder}/a.safetensors")
        ({'x': tensor([1., 1.])}, {'epoch': 3})
    """
    text = json.dumps(dict(meta or {}), allow_nan=True, default=_python)
    plain = {name: _plain(name, value) for name, value in tensors.items()}
    crc = f"{_checksum(plain, text):08x}"
    write(path, safetensors.save(plain, {"format": "pt", KEY: text, "crc32": crc}))


def _python(value: Any) -> Any:
    """A number or an array of numpy's as Python has it; json asks of what it does not know."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r} has no place in JSON")


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the JSON part of a file written by :func:`save`.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: The file is truncated, altered, or not one of ours.
    """
    path = Path(path)
    data = path.read_bytes()
    try:
        tensors = safetensors.load(data)
        # The header: eight bytes of length, then JSON with the metadata in it.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} is damaged, or no safetensors file ({error}); delete it or restore a copy"
        ) from error
    if KEY not in header:
        raise CheckpointError(f"{path} is a safetensors file, but not one that pstn wrote: it has no {KEY!r} metadata")
    if header.get("crc32") != f"{_checksum(tensors, header[KEY]):08x}":
        raise CheckpointError(f"{path} is damaged: its checksum does not match; delete it or restore a copy")
    return tensors, json.loads(header[KEY])


def save_model(model: nn.Module, path: str | os.PathLike[str], meta: Mapping[str, Any] | None = None) -> None:
    """Write a model's parameters and buffers with :func:`save`.

    Example:
        >>> import tempfile
        >>> a, b = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(a, f"{folder}/model.safetensors", {"note": "one layer"})
        ...     load_model(b, f"{folder}/model.safetensors")
        {'note': 'one layer'}
        >>> bool((a.weight == b.weight).all())
        True
    """
    save(path, model.state_dict(), meta)


def load_model(model: nn.Module, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Fill a model from a file of :func:`save_model` or from a run's checkpoint, and return the JSON part.

    Raises:
        CheckpointError: The file is damaged, or its names or shapes are not the model's.
    """
    tensors, meta = load(path)
    if "optimizer" in meta and "state" in meta:  # a run's checkpoint: its model is one part of it
        tensors = part(tensors, "model")
    fill(model, tensors, path)
    return meta


def fill(model: nn.Module, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Copy tensors into the model's state, or raise an error that lists the first differences."""
    check_fit(model.state_dict(), tensors, f"{Path(path)} does not fit this {type(model).__name__}")
    model.load_state_dict(dict(tensors))


def check_fit(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], words: str) -> None:
    """Raise an error that lists the first differences in names and shapes, if there are any."""
    wrong = [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in own]
    wrong += [
        f"{name} is {tuple(tensors[name].shape)} in the file, {tuple(value.shape)} in the model"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(f"{words}: {'; '.join(wrong[:5])}{more}")


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors called ``name.*``, without that prefix."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def pack_optimizer(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's ``state_dict()`` as tensors named ``<parameter>.<key>`` and a JSON-able rest."""
    tensors = {}
    rest: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        rest[str(index)] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value
            else:
                rest[str(index)][key] = value
    return tensors, {"state": rest, "param_groups": state["param_groups"]}


def unpack_optimizer(tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`pack_optimizer`."""
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in rest["state"].items()}
    for name, value in tensors.items():
        index, _, key = name.partition(".")
        state[int(index)][key] = value
    # JSON has no tuples; the optimizers' own pairs (betas) are tuples, lists only hold the parameters' numbers.
    groups = [
        {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}
        for group in rest["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Put bytes in a file, whole or not at all: a neighbour is written, flushed to the disk and renamed over it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".tmp")
    try:
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        kept = "; the file that was there is intact" if path.exists() else ""
        raise OSError(
            error.errno, f"{error.strerror or error} while writing {len(data):,} bytes{kept}", str(path)
        ) from error
    if os.name == "posix":  # the rename itself reaches the disk with the folder; Windows cannot open one
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _plain(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; a checkpoint holds tensors, and JSON in its meta")
    # A copy of its own for every name: the format refuses tensors that share memory, and tied layers do.
    return value.detach().to("cpu", copy=True).contiguous()


def _checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    crc = zlib.crc32(text.encode())
    for name in sorted(tensors):
        crc = zlib.crc32(name.encode(), crc)
        crc = zlib.crc32(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data, crc)
    return crc
