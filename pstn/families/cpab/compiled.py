"""The walk of :mod:`pstn.families.cpab.walk`, compiled by Numba where that is installed.

The same mathematics, see :mod:`pstn.families.cpab.plane` and :mod:`pstn.families.cpab.space`. Threads are Python's, as
many as torch uses, since the compiled code lets go of the interpreter. Each has a part of the points and sums of its
own, which are added in order: results do not depend on timing.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import ModuleType
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
    """How many points there are, and for each part of them (from, to) the legs of the walk and what these belong to."""

    count: int
    parts: list[tuple[int, int, np.ndarray, np.ndarray]]


def carry(field: Field, simplices: Tensor, b: Tensor, record: bool = False) -> tuple[Tensor, Tensor, Tape]:
    """As :func:`pstn.families.cpab.walk.carry`."""
    mesh, engine, steps = field.mesh, _engine(field), int(budget(field))
    count = len(field.nodal) * b.shape[2]
    ends, growth = np.empty((count, mesh.ndim)), np.empty(count)
    # In NumPy: torch's own threads, once woken, keep the cores busy for a while.
    cells, starts = simplices.numpy().ravel(), np.ascontiguousarray(b.flatten(1).numpy().T)
    tables = _table(field), mesh.neighbours.numpy(), mesh.handover.numpy(), mesh.corners.numpy(), cells, starts

    def run(part: tuple[int, int]) -> tuple[int, tuple[int, int, np.ndarray, np.ndarray]]:
        lost, legs, marks = engine.forward(*tables, *part, ends, growth, steps, record)
        return lost, (*part, legs, marks)

    n = max(1, min(4 * torch.get_num_threads(), count // 512))
    parts = [(count * i // n, count * (i + 1) // n) for i in range(n)] if count else []
    found = _each(run, parts)
    if lost := sum(part[0] for part in found):
        raise lost_error(steps, lost)
    return torch.from_numpy(ends), torch.from_numpy(growth), Tape(count, [part[1] for part in found])


def retrace(field: Field, tape: Tape, pull: Tensor, swell: Tensor | None) -> tuple[Tensor, Tensor]:
    """As :func:`pstn.families.cpab.walk.retrace`."""
    mesh, engine, table, m = field.mesh, _engine(field), _table(field), field.mesh.ndim + 1
    tables = table, *(t.numpy() for t in (mesh.neighbours, mesh.handover, mesh.corners, mesh.gradients))
    pulls = pull.contiguous().numpy()
    swells = np.empty(0) if swell is None else swell.contiguous().numpy()
    backs, total = pulls.copy(), np.zeros((len(table), table.shape[1] - 1))

    def run(part: tuple[int, int, np.ndarray, np.ndarray]) -> tuple[slice, np.ndarray]:
        begin, end, legs, marks = part
        # the rows of the fields that these points belong to
        size, per = len(mesh.simplices), tape.count // len(field.nodal)
        rows = slice(begin // per * size, ((end - 1) // per + 1) * size)
        sums = np.zeros((rows.stop - rows.start, total.shape[1]))
        engine.backward(*tables, pulls, swells, backs, legs, marks, rows.start, sums)
        return rows, sums

    for rows, sums in _each(run, tape.parts):
        total[rows] += sums
    by_row = torch.from_numpy(total.T)
    return field.pull_back(by_row[: m * m].unflatten(0, (m, m)), by_row[m * m :]), torch.from_numpy(backs)


def _engine(field: Field) -> ModuleType:
    # here, because it compiles
    from pstn.families.cpab import plane, space

    return plane if field.mesh.ndim == 2 else space


def _table(field: Field) -> np.ndarray:
    """A row for each simplex of each field: rates, invariants, radius."""
    return np.ascontiguousarray(field.table.numpy().T)


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
