r"""The exact flow of a continuous piecewise-affine field: from simplex to simplex, and back again for the gradient.

The field is continuous, so the time at which a face is crossed has no influence on the derivative of the end point: the
gradient is the adjoint equation along the same path. The divergence does jump, and log-determinants feel the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pstn.families.cpab.cell import (
    REACH,
    characteristic,
    combine,
    differentiate,
    matmul,
    matvec,
    sensitivities,
    solution,
)
from pstn.families.cpab.tessellation import Tessellation

#: The order of a polynomial that estimates the time to a face; it only has to be near.
ORDER = 6
#: How far beyond a face a crossing may end, in barycentric coordinates. A face is aimed at with half of it: what
#: rounding does to a tangential field is far smaller, so a point cannot cross to and fro.
SLACK = 2.0**-46
#: The part of a step that is corrected without evaluating the series again: its cube is nothing.
NEAR = 1e-5


class Field:
    """The affine maps of all simplices of a batch of fields: row b · c + i is simplex i of field b.

    ``rates`` M is (k + 1, k + 1, rows), ``invariants`` P are (k, rows), ``radius`` bounds the spectral radius, (rows).
    """

    def __init__(self, nodal: Tensor, mesh: Tessellation) -> None:
        k = mesh.ndim
        self.mesh, self.nodal = mesh, nodal
        # Corners at infinity do not move.
        velocity = torch.nn.functional.pad(nodal, (0, 0, 0, 2 * k))[:, mesh.simplices]
        self.rates = torch.einsum("cia,bcja->ijbc", mesh.gradients, velocity).flatten(2)
        self.invariants = torch.stack(characteristic(self.rates, k))
        roots = [p.abs() ** (1 / j) for j, p in enumerate(self.invariants, 1)]
        self.radius = torch.stack(roots).sum(0)

    @cached_property
    def table(self) -> Tensor:
        """Rates, invariants and radius, a column for each row."""
        return torch.cat([self.rates.flatten(0, 1), self.invariants, self.radius[None]])

    @cached_property
    def _behind(self) -> tuple[Tensor, Tensor]:
        here = torch.arange(len(self.mesh.simplices), device=self.nodal.device)[:, None]
        return (self.mesh.neighbours - here).flatten(), self.mesh.handover.flatten(0, 1).flatten(1).T.contiguous()

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rates, invariants and radius of the given rows."""
        k, found = self.mesh.ndim, self.table.gather(1, rows.expand(len(self.table), -1))
        split = (k + 1) ** 2
        return found[:split].unflatten(0, (k + 1, k + 1)), found[split:-1], found[-1]

    def crossing(self, rows: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
        """The rows behind the faces, and the matrices that hand the coordinates over, (k + 1, k + 1, n)."""
        k = self.mesh.ndim
        key = (rows % len(self.mesh.simplices)) * (k + 1) + faces
        onward, handover = self._behind
        return rows + onward[key], handover.gather(1, key.expand(len(handover), -1)).unflatten(0, (k + 1, k + 1))

    def pull_back(self, rates: Tensor, invariants: Tensor) -> Tensor:
        """The gradient to the nodal velocities, from those to ``rates`` and ``invariants``."""
        k, mesh, m = self.mesh.ndim, self.mesh, self.rates
        # dP_j / dM is the transpose of M^(j-1) - P_1 M^(j-2) - ... - P_(j-1)
        one = torch.eye(k + 1, dtype=m.dtype, device=m.device)[..., None]
        slope = one.expand_as(m)
        rates = rates + invariants[0] * slope
        for j in range(1, k):
            slope = matmul(slope, m) - self.invariants[j - 1] * one
            rates = rates + invariants[j] * slope.transpose(0, 1)
        corner = torch.einsum("cia,ijbc->bcja", mesh.gradients, rates.unflatten(-1, (len(self.nodal), -1)))
        nodal = m.new_zeros(len(self.nodal), len(mesh.nodes) + 2 * k, k)
        nodal.index_add_(1, mesh.simplices.flatten(), corner.flatten(1, 2))
        return nodal[:, : len(mesh.nodes)]


@dataclass
class Step:
    """One step of the points ``ids``: from ``b`` in simplices ``rows`` for a time ``s`` (0 for a step taken back).

    Those at ``crossing`` then leave through ``faces``, at ``speed``.
    """

    ids: Tensor
    rows: Tensor
    b: Tensor
    s: Tensor
    functions: list[Tensor]
    crossing: Tensor
    faces: Tensor
    speed: Tensor


@dataclass
class Tape:
    """A walk, written down for its adjoint: the simplices where it starts and ends, and the steps."""

    start: Tensor
    end: Tensor
    steps: list[Step]


def carry(field: Field, simplices: Tensor, b: Tensor, record: bool = False) -> tuple[Tensor, Tensor, Tape]:
    """Carry points along the field for unit time.

    Arguments:
        field: The fields of a batch.
        simplices: Where the points are, (b, n), or (1, n) if all fields have the same points.
        b: Their barycentric coordinates, (k + 1, b, n) or (k + 1, 1, n).
        record: Whether to write the steps down, for :func:`retrace`.

    Returns:
        The end points (b · n, k), the integral of the divergence along the way (b · n), and the tape, empty if not
        recorded.
    """
    steps: list[Step] = []
    batch, size = len(field.nodal), len(field.mesh.simplices)
    rows = (torch.arange(batch, device=b.device)[:, None] * size + simplices).flatten()
    b = b.expand(-1, batch, -1).flatten(1)
    ends, b, growth = _walk(field, rows, b, steps if record else None)
    corners = field.mesh.corners[ends % len(field.mesh.simplices)]
    return (corners * b.T[..., None]).sum(1), growth, Tape(rows, ends, steps)


def _walk(field: Field, rows: Tensor, b: Tensor, tape: list[Step] | None) -> tuple[Tensor, Tensor, Tensor]:
    k, ids = field.mesh.ndim, torch.arange(b.shape[1], device=b.device)
    # Time left (none for points that are not finite: they stay), longest step to try, integral of the divergence
    state = torch.stack([*b, b.isfinite().all(0).to(b), torch.full_like(b[0], torch.inf), torch.zeros_like(b[0])])
    end_rows, end = rows.clone(), state.clone()
    for _ in range(steps := int(budget(field))):
        if not len(ids):
            return end_rows, end[: k + 1], end[-1]
        b, left, reach, growth = state[: k + 1], state[k + 1], state[k + 2], state[k + 3]
        matrix, invariants, radius = field.at(rows)
        rates = [matvec(matrix, b)]  # the derivatives of b
        for _ in range(1, k):
            rates.append(matvec(matrix, rates[-1]))
        limit = torch.minimum(torch.minimum(left, reach), REACH / radius)
        s, functions, face, height, speed = aim(b, rates, invariants, radius, limit)
        ahead = combine(functions, rates, b)
        good = inside(b, ahead, rates, combine(differentiate(functions, invariants), rates), radius, s)

        reach = torch.where(good, torch.inf, s / 2)
        s = torch.where(good, s, 0.0)
        left = left - s
        crossing = (good & (height <= 0) & (speed < 0) & (left > 0)).nonzero()[:, 0]
        face = face[crossing]
        if tape is not None:
            functions = [torch.where(good, f, 0.0) for f in functions]
            tape.append(Step(ids, rows, b, s, functions, crossing, face, speed[crossing]))
        state = torch.stack([*torch.where(good, ahead, b), left, reach, torch.addcmul(growth, s, invariants[0])])
        behind, handover = field.crossing(rows[crossing], face)
        rows = rows.scatter(0, crossing, behind)
        where = crossing.expand(k + 1, -1)
        state[: k + 1].scatter_(1, where, matvec(handover, state[: k + 1].gather(1, where)))

        done = left <= 0
        over = done.nonzero()[:, 0]
        if len(over):
            there = ids[over]
            end_rows[there] = rows[over]
            end.scatter_(1, there.expand(k + 4, -1), state.gather(1, over.expand(k + 4, -1)))
            on = (~done).nonzero()[:, 0]
            ids, rows, state = ids[on], rows[on], state.gather(1, on.expand(k + 4, -1))
    raise lost_error(steps, len(ids))


def retrace(field: Field, tape: Tape, pull: Tensor, swell: Tensor | None) -> tuple[Tensor, Tensor]:
    """The adjoint of :func:`carry`: from gradients at the end to gradients at the start.

    Arguments:
        field: The field.
        tape: What :func:`carry` wrote down.
        pull: The gradient to the end points, (b · n, k).
        swell: The gradient to the integral of the divergence, (b · n), or none.

    Returns:
        The gradients to the field's nodal velocities and to the points.
    """
    k, mesh = field.mesh.ndim, field.mesh
    pull = (mesh.corners[tape.end % len(mesh.simplices)] * pull[:, None]).sum(-1).T.contiguous()
    total = torch.zeros_like(field.rates[:1, 0]).repeat((k + 1) ** 2 + k, 1)
    for step in reversed(tape.steps):
        rows, b, s, f = step.rows, step.b, step.s, step.functions
        ids = step.ids.expand(k + 1, -1)
        back = pull.gather(1, ids)
        here = rows[step.crossing]
        there, handover = field.crossing(here, step.faces)
        crossing = step.crossing.expand(k + 1, -1)
        turned = matvec(handover.transpose(0, 1), back.gather(1, crossing))
        if swell is not None:
            # A little later at the face is a little more of this divergence, a little less of the next one's.
            jump = (field.invariants[0][there] - field.invariants[0][here]) / step.speed
            turned.scatter_add_(0, step.faces[None], (jump * swell[step.ids[step.crossing]])[None])
        back.scatter_(1, crossing, turned)

        matrix, invariants, _ = field.at(rows)
        forward, backward = [b], [back]
        for _ in range(k):
            forward.append(matvec(matrix, forward[-1]))
            backward.append(matvec(matrix.transpose(0, 1), backward[-1]))
        # b(s) = b + sum f_i M^i b, differentiated by M: in the powers, and in f through the invariants
        values = torch.zeros_like(total[:, :1]).expand(-1, len(s)).clone()
        outer = values[: (k + 1) ** 2].unflatten(0, (k + 1, k + 1))
        for a in range(k):
            outer.addcmul_(backward[a][:, None], combine(f[a:], forward)[None])
        push = [(back * forward[i]).sum(0) for i in range(1, k + 1)]
        for j, column in enumerate(sensitivities(invariants, s)):
            values[(k + 1) ** 2 + j] = combine(column, push)
        if swell is not None:
            values[(k + 1) ** 2].addcmul_(swell[step.ids], s)
        total.scatter_add_(1, rows.expand_as(values), values)
        pull.scatter_(1, ids, combine(f, backward[1:], back))
    to_points = (mesh.gradients[tape.start % len(mesh.simplices)] * pull.T[..., None]).sum(1)
    return field.pull_back(total[: (k + 1) ** 2].unflatten(0, (k + 1, k + 1)), total[(k + 1) ** 2 :]), to_points


def aim(
    b: Tensor, rates: list[Tensor], invariants: Tensor, radius: Tensor, limit: Tensor
) -> tuple[Tensor, list[Tensor], Tensor, Tensor, Tensor]:
    """The time at which points leave, at most ``limit``; f there; the face they head for, their height and speed."""
    s, face = _first_root(b, rates, invariants, limit)
    chosen = [b[0], *(rate[0] for rate in rates)]
    for i in range(1, len(b)):
        this = face == i
        chosen = [torch.where(this, new[i], old) for new, old in zip((b, *rates), chosen, strict=True)]
    start, heading = chosen[0] + SLACK / 2, chosen[1:]
    leaving = s < 1.25 * limit
    s = torch.minimum(s, limit)
    # Never less than half of the estimate: each step makes progress, or is found bad and cut.
    better = torch.maximum(s + _estimate(start, heading, invariants, s), s / 2)
    s = torch.where(leaving, torch.minimum(better, limit), s)

    functions = solution(invariants, s)
    slopes = differentiate(functions, invariants)
    bends = differentiate(slopes, invariants, 0.0)
    shift = _halley(combine(functions, heading, start), combine(slopes, heading), combine(bends, heading))
    later = s + shift
    near = leaving & (shift.abs() * (1 + radius * s) < NEAR * s) & (later <= limit)
    shift = torch.where(near, shift, 0.0)
    half = shift * shift / 2
    functions = [combine([shift, half], [d, dd], f) for f, d, dd in zip(functions, slopes, bends, strict=True)]
    speed = combine(differentiate(functions, invariants), heading)
    return s + shift, functions, face, combine(functions, heading, chosen[0]), speed


def _first_root(b: Tensor, rates: list[Tensor], invariants: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """When a parabola through the present meets a face, and which; in float32, since it is an estimate."""
    gap, first = (b + SLACK / 2).clamp_(min=0).float(), rates[0].float()
    second = rates[1].float() if len(rates) > 1 else (invariants[0] * rates[0]).float()
    # The first root of gap + first t + second t² / 2, without cancellation
    twice = 2 * gap
    square = first * first - twice * second
    big = square.clamp(min=0).sqrt_().add_(first.abs())
    falling = (twice / big).masked_fill_(square < 0, torch.inf)
    # At zero there is nothing to turn back from; float32 has many such zeros.
    turning = (big / -second).masked_fill_((second >= 0) | (big == 0), torch.inf)
    times = torch.where(first < 0, falling, turning)
    times.masked_fill_(times.isnan(), torch.inf)
    s, face = times[0], torch.zeros_like(limit, dtype=torch.long)
    for i in range(1, len(b)):
        face.masked_fill_(times[i] < s, i)
        s = torch.minimum(s, times[i])
    return s.to(limit), face


def _estimate(start: Tensor, heading: list[Tensor], invariants: Tensor, s: Tensor) -> Tensor:
    """How far the root is from s, by a polynomial of low order."""
    derivatives = [h.float() for h in heading]
    p, t = invariants.float(), s.float()
    while len(derivatives) < ORDER:
        derivatives.append(combine(list(p), derivatives[::-1]))
    value = slope = bend = torch.zeros_like(t)
    for i in range(ORDER, 0, -1):
        bend = torch.addcmul(slope, bend, t) if i < ORDER else bend
        slope = torch.addcmul(value, slope, t) if i < ORDER else slope
        value = torch.addcmul(derivatives[i - 1] / math.factorial(i), value, t)
    return _halley(start.float() + value * t, torch.addcmul(value, slope, t), 2 * torch.addcmul(slope, bend, t)).to(s)


def _halley(value: Tensor, slope: Tensor, bend: Tensor) -> Tensor:
    """The step to the root by Halley's method, and none where the function does not fall."""
    step = value * slope / (value * bend / 2 - slope * slope)
    return torch.where((slope < 0) & (step.abs() < torch.inf), step, 0.0)


def inside(b: Tensor, ahead: Tensor, rates: list[Tensor], speed: Tensor, radius: Tensor, s: Tensor) -> Tensor:
    """Whether the whole step is inside the simplex, but for the slack.

    A cubic with the same values and slopes at both ends differs by at most a fourth derivative / 384, and lies above
    its Bernstein points: where these are inside, the way is, and no crossing was overlooked.
    """
    third = s / 3
    lowest = torch.minimum(torch.addcmul(b, third, rates[0]), ahead - third * speed)
    turn, length = radius * s, s * (math.e / 384)
    for i, rate in enumerate(rates, 1):
        lowest.sub_(turn ** (4 - i) * length * rate.abs())
        length = length * s
    lowest = torch.minimum(lowest, ahead).sub_(b.clamp(max=0))
    return lowest.amin(0) >= -SLACK


def lost_error(steps: int, points: int) -> RuntimeError:
    """What is raised when points are not there after more steps than they can need."""
    return RuntimeError(
        f"a CPAB flow is not done after {steps} steps: {points} points are still on their way. That should be "
        "impossible; please report it with the parameters"
    )


def budget(field: Field) -> Tensor:
    """More steps than any point can need, a whole number.

    While the direction of the velocity turns by less than a right angle, a way crosses a line of the tessellation at
    most once for each of its edges, so the number of crossings is finite; the velocity turns no faster than the
    spectral radius. In practice a way crosses a few simplices for each box it passes and each quarter that it turns.
    """
    boxes = torch.tensor(field.mesh.boxes, dtype=field.rates.dtype, device=field.rates.device)
    passed = (field.nodal.abs().amax(0).amax(0) * boxes).sum() if field.nodal.numel() else boxes.sum()
    return (
        (500 + 50 * (field.radius.amax(0) + passed).floor()).long()
        if field.radius.numel()
        else boxes.new_ones(()).long()
    )
