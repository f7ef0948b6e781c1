"""The walk as a graph of plain operations around one loop, for other runtimes; points that are there wait for the rest.

The steps are those of :mod:`pstn.families.cpab.walk`. No gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from pstn.families.cpab.cell import REACH, combine, differentiate, matvec
from pstn.families.cpab.walk import Field, aim, budget, inside


def carry(field: Field, simplices: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`pstn.families.cpab.walk.carry`, without a tape; a point that does not arrive becomes NaN."""
    mesh, k, batch = field.mesh, field.mesh.ndim, field.nodal.shape[0]
    rows = (torch.arange(batch, device=b.device)[:, None] * len(mesh.simplices) + simplices).flatten()
    b = b.expand(-1, batch, -1).flatten(1)
    here = torch.arange(len(mesh.simplices), device=b.device)[:, None]
    table, onward, handover = (
        field.table,
        (mesh.neighbours - here).flatten(),
        mesh.handover.flatten(0, 1).movedim(0, -1),
    )
    most, size, split = budget(field), len(mesh.simplices), (k + 1) ** 2

    def unfinished(step: Tensor, rows: Tensor, b: Tensor, left: Tensor, reach: Tensor, growth: Tensor) -> Tensor:
        return (left > 0).any() & (step < most)

    def advance(
        step: Tensor, rows: Tensor, b: Tensor, left: Tensor, reach: Tensor, growth: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        found = table[:, rows]
        matrix, invariants, radius = found[:split].unflatten(0, (k + 1, k + 1)), found[split:-1], found[-1]
        rates = [matvec(matrix, b)]
        for _ in range(1, k):
            rates.append(matvec(matrix, rates[-1]))
        limit = torch.minimum(torch.minimum(left, reach), REACH / radius)
        s, functions, face, height, speed = aim(b, rates, invariants, radius, limit)
        ahead = combine(functions, rates, b)
        good = inside(b, ahead, rates, combine(differentiate(functions, invariants), rates), radius, s) & (left > 0)
        reach = torch.where(good, torch.inf, s / 2)
        s = torch.where(good, s, 0.0)
        left, ahead = left - s, torch.where(good, ahead, b)
        crossing = good & (height <= 0) & (speed < 0) & (left > 0)
        key = (rows % size) * (k + 1) + face
        ahead = torch.where(crossing, matvec(handover[..., key], ahead), ahead)
        return step + 1, torch.where(crossing, rows + onward[key], rows), ahead, left, reach, growth + s * invariants[0]

    start = (
        torch.zeros((), dtype=torch.long, device=b.device),
        rows,
        b.clone(),
        b.isfinite().all(0).to(b),
        torch.full_like(b[0], torch.inf),
        torch.zeros_like(b[0]),
    )
    _, rows, b, left, _, growth = while_loop(unfinished, advance, start)
    end = (mesh.corners[rows % size] * b.T[..., None]).sum(1)
    return torch.where((left > 0)[:, None], torch.nan, end), torch.where(left > 0, torch.nan, growth)
