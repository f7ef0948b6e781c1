"""The walk of :mod:`pstn.families.cpab.walk`, one point at a time, compiled by Numba where that is installed.

The same mathematics in scalars, see :mod:`pstn.families.cpab.scalar`. Threads are Python's, as many as torch uses,
since the compiled code lets go of the interpreter. Each has a part of the points and sums of its own, which are added
in order: results do not depend on timing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pstn.families.cpab.walk import Field, budget, lost_error


def available() -> bool:
    """Whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


@dataclass
class Tape:
    """Where points started, and for each thread: its part of them, how many legs each took, and the legs."""

    rows: Tensor
    parts: list[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]


def carry(field: Field, rows: Tensor, b: Tensor, record: bool = False) -> tuple[Tensor, Tensor, Tape]:
    """As :func:`pstn.families.cpab.walk.carry`."""
    from pstn.families.cpab.scalar import forward  # compiles

    tables, steps, n = _tables(field), budget(field), len(rows)
    arrays = rows.numpy(), b.T.contiguous().numpy(), np.empty((n, field.mesh.ndim)), np.empty(n)

    def run(part: slice) -> tuple[slice, np.ndarray, np.ndarray, np.ndarray, int]:
        counts = np.empty(part.stop - part.start if record else 0, dtype=np.int64)
        lost, legs, marks = forward(*tables, *(array[part] for array in arrays), counts, steps)
        return part, counts, legs, marks, lost

    threads = max(1, min(torch.get_num_threads(), n // 256))
    found = _each(run, [slice(n * i // threads, n * (i + 1) // threads) for i in range(threads)])
    if lost := sum(part[-1] for part in found):
        raise lost_error(steps, lost)
    return torch.from_numpy(arrays[2]), torch.from_numpy(arrays[3]), Tape(rows, [part[:-1] for part in found])


def retrace(field: Field, tape: Tape, pull: Tensor, swell: Tensor | None) -> tuple[Tensor, Tensor]:
    """As :func:`pstn.families.cpab.walk.retrace`."""
    from pstn.families.cpab.scalar import backward  # compiles

    tables, m = _tables(field), field.mesh.ndim + 1
    swell = torch.zeros_like(pull[:, 0]) if swell is None else swell
    rows, ins = tape.rows.numpy(), [t.contiguous().numpy() for t in (pull, swell, torch.empty_like(pull))]

    def run(piece: tuple[slice, np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        part, counts, legs, marks = piece
        total = np.zeros((field.rates.shape[-1], m * m + m - 1))
        backward(*tables, rows[part], counts, *(array[part] for array in ins), legs, marks, total)
        return total

    total = torch.from_numpy(np.sum(_each(run, tape.parts), axis=0).T)
    return field.pull_back(total[: m * m].unflatten(0, (m, m)), total[m * m :]), torch.from_numpy(ins[2])


def _tables(field: Field) -> tuple[tuple[int, ...] | np.ndarray, ...]:
    mesh = field.mesh
    return (
        (0,) * mesh.ndim,
        field.rates.permute(2, 0, 1).contiguous().numpy(),
        field.invariants.T.contiguous().numpy(),
        field.radius.contiguous().numpy(),
        mesh.neighbours.numpy(),
        mesh.handover.numpy(),
        mesh.corners.numpy(),
        mesh.gradients.numpy(),
    )


def _each(run: Callable[[Any], Any], parts: list[Any]) -> list[Any]:
    """Run the parts, each in a thread of its own."""
    if len(parts) == 1:
        return [run(parts[0])]
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(run, parts))
