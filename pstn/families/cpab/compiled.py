"""The walk of :mod:`pstn.families.cpab.walk`, one point at a time, compiled by Numba where that is installed.

The same mathematics in scalars, see :mod:`pstn.families.cpab.scalar`. Threads are Python's, as many as torch uses,
since the compiled code lets go of the interpreter. Each has a part of the points and sums of its own, which are added
in order: results do not depend on timing.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
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

    rows: np.ndarray
    parts: list[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]


def carry(field: Field, simplices: Tensor, b: Tensor, record: bool = False) -> tuple[Tensor, Tensor, Tape]:
    """As :func:`pstn.families.cpab.walk.carry`."""
    from pstn.families.cpab.scalar import forward  # compiles

    # In NumPy: torch's own threads, once woken, keep the cores busy for a while.
    tables, steps, batch = _tables(field), budget(field), len(field.nodal)
    rows = (np.arange(batch)[:, None] * len(field.mesh.simplices) + simplices.numpy()).ravel()
    starts = np.broadcast_to(b.numpy().transpose(1, 2, 0), (batch, b.shape[2], len(b))).reshape(-1, len(b))
    n = len(rows)
    arrays = rows, starts, np.empty((n, field.mesh.ndim)), np.empty(n)

    def run(part: slice) -> tuple[slice, np.ndarray, np.ndarray, np.ndarray, int]:
        counts = np.empty(part.stop - part.start if record else 0, dtype=np.int64)
        lost, legs, marks = forward(*tables, *(array[part] for array in arrays), counts, steps)
        return part, counts, legs, marks, lost

    count = max(1, min(4 * torch.get_num_threads(), n // 512))
    found = _each(run, [slice(n * i // count, n * (i + 1) // count) for i in range(count)])
    if lost := sum(part[-1] for part in found):
        raise lost_error(steps, lost)
    return torch.from_numpy(arrays[2]), torch.from_numpy(arrays[3]), Tape(rows, [part[:-1] for part in found])


def retrace(field: Field, tape: Tape, pull: Tensor, swell: Tensor | None) -> tuple[Tensor, Tensor]:
    """As :func:`pstn.families.cpab.walk.retrace`."""
    from pstn.families.cpab.scalar import backward  # compiles

    tables, m = _tables(field), field.mesh.ndim + 1
    swell = torch.zeros_like(pull[:, 0]) if swell is None else swell
    rows, ins = tape.rows, [t.contiguous().numpy() for t in (pull, swell, torch.empty_like(pull))]

    def run(piece: tuple[slice, np.ndarray, np.ndarray, np.ndarray]) -> tuple[slice, np.ndarray]:
        part, counts, legs, marks = piece
        # the rows of the fields that these points belong to
        size = len(field.mesh.simplices)
        span = slice(rows[part.start] // size * size, (rows[part.stop - 1] // size + 1) * size)
        sums = np.zeros((span.stop - span.start, m * m + m - 1))
        backward(*tables, rows[part], counts, *(array[part] for array in ins), legs, marks, span.start, sums)
        return span, sums

    total = np.zeros((field.rates.shape[-1], m * m + m - 1))
    for span, sums in _each(run, tape.parts if len(rows) else []):
        total[span] += sums
    by_row = torch.from_numpy(total.T)
    return field.pull_back(by_row[: m * m].unflatten(0, (m, m)), by_row[m * m :]), torch.from_numpy(ins[2])


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
    """Run the parts in threads, as they get free: a core may be busy with something else."""
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) < 2:
        return [run(part) for part in parts]
    return list(_pool(threads).map(run, parts))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="cpab")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
