r"""The exact flow of a continuous piecewise-affine field: from simplex to simplex, and back again for the gradient.

In a simplex the barycentric coordinates obey :math:`\dot b = M b`. By Cayley and Hamilton, with
:math:`M^{k+1} = \sum_j P_j M^{k+1-j}`, the solution needs k scalar functions only,
:math:`b(s) = b + \sum_{i=1}^k f_i(s) M^i b`. All of them come from one, with
:math:`\beta^{(k)} = 1 + \sum_j P_j \beta^{(k-j)}` and :math:`\beta(0) = \dots = \beta^{(k-1)}(0) = 0`:
:math:`f_{k-m} = \beta^{(m)} - \sum_{j \le m} P_j \beta^{(m-j)}`. Its Taylor series has no small denominators, so zero,
nilpotent and singular matrices are nothing special. Time is measured in steps: :math:`p_j = P_j s^j`, :math:`F_i = f_i
/ s^i`, :math:`D_i = s^i M^i b`.

The field is continuous, so the time at which a face is crossed has no influence on the derivative of the end point: the
gradient is the adjoint equation along the same path. The divergence does jump, and log-determinants feel the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pstn.families.cpab.tessellation import Tessellation

#: The longest step, in units of 1 / spectral radius.
_REACH = 1.0
#: How far beyond a face a crossing may end, in barycentric coordinates. A face is aimed at with half of it: what
#: rounding does to a tangential field is far smaller, so a point cannot cross to and fro.
_SLACK = 2.0**-46
#: Newton steps towards a face. Whatever they miss is caught: the step is shortened, or the next one finishes it.
_NEWTON = 3


@dataclass
class Field:
    """The affine maps of all simplices of a batch of fields: row b · c + i is simplex i of field b.

    ``rates`` M is (k + 1, k + 1, rows); ``invariants`` P are (k, rows); ``radius`` bounds the spectral radius.
    """

    mesh: Tessellation
    rates: Tensor
    invariants: Tensor
    radius: Tensor

    @classmethod
    def of(cls, nodal: Tensor, mesh: Tessellation) -> Field:
        """The field with the given velocities at the nodes, (b, m, k)."""
        k = mesh.ndim
        # Corners at infinity do not move.
        velocity = torch.cat([nodal, nodal.new_zeros(len(nodal), 2 * k, k)], dim=1)[:, mesh.simplices]
        rates = torch.einsum("cia,bcja->ijbc", mesh.gradients, velocity).flatten(2)
        invariants = torch.stack(_invariants(rates, k))
        radius = sum(invariants[j].abs() ** (1 / (j + 1)) for j in range(k))
        return cls(mesh, rates, invariants, torch.as_tensor(radius))

    def pull_back(self, rates: Tensor, invariants: Tensor, batch: int) -> Tensor:
        """The gradient to the nodal velocities from those to ``rates`` and ``invariants``."""
        k, mesh = self.mesh.ndim, self.mesh
        m = self.rates
        # dP_j / dM is the transpose of M^(j-1) - P_1 M^(j-2) - ... - P_(j-1)
        power = torch.eye(k + 1, dtype=m.dtype, device=m.device)[..., None].expand_as(m)
        slope = power
        rates = rates + invariants[0] * slope
        for j in range(1, k):
            slope = torch.einsum("ijr,jlr->ilr", slope, m) - self.invariants[j - 1] * power
            rates = rates + invariants[j] * slope.transpose(0, 1)
        corner = torch.einsum("cia,ijbc->bcja", mesh.gradients, rates.unflatten(-1, (batch, -1)))
        nodal = m.new_zeros(batch, len(mesh.nodes) + 2 * k, k)
        nodal.index_add_(1, mesh.simplices.flatten(), corner.flatten(1, 2))
        return nodal[:, : len(mesh.nodes)]


@dataclass
class Step:
    """One step of the points ``ids``: from ``b`` in simplices ``rows`` for a time ``s`` (0 for a step taken back)."""

    ids: Tensor
    rows: Tensor
    b: Tensor
    s: Tensor
    coefficients: list[Tensor]
    crossing: Tensor
    faces: Tensor
    speed: Tensor


def walk(field: Field, rows: Tensor, b: Tensor, tape: list[Step] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Carry points along the field for unit time.

    Arguments:
        field: The field.
        rows: The simplex of each point, as a row of the field.
        b: The points' barycentric coordinates, (k + 1, n).
        tape: Where to write down the steps, for :func:`retrace`.

    Returns:
        The simplices and the coordinates of the end points, and the integral of the divergence along the way.
    """
    mesh, k = field.mesh, field.mesh.ndim
    simplices, handover = len(mesh.simplices), mesh.handover.flatten(0, 1)
    onward = (mesh.neighbours - torch.arange(simplices, device=b.device)[:, None]).flatten()
    end_rows, end_b, growth = rows.clone(), b.clone(), b.new_zeros(b.shape[1])
    ids = torch.arange(b.shape[1], device=b.device)
    left, reach = b.new_ones(b.shape[1]), b.new_full((b.shape[1],), torch.inf)
    budget = _budget(field)
    while len(ids):
        if budget == 0:
            raise RuntimeError(
                f"a CPAB flow is not done after {_budget(field)} steps: {len(ids)} points are still on their way. This "
                "should be impossible; please report the parameters"
            )
        budget -= 1
        matrix, invariants, radius = field.rates[..., rows], field.invariants[:, rows], field.radius[rows]
        rates = [(matrix * b).sum(1)]  # the derivatives of b
        for _ in range(1, k):
            rates.append((matrix * rates[-1]).sum(1))
        limit = torch.minimum(torch.minimum(left, reach), _REACH / radius)
        s, face = _aim(b, rates, invariants, limit)
        coefficients = _coefficients(invariants, s, _terms(radius, s))
        ahead, speed = _evaluate(b, rates, invariants, coefficients, s)

        # A cubic with the same values and slopes at both ends differs by at most the fourth derivative / 384, and lies
        # above its Bernstein points: where those are inside, the whole step is, and no crossing was overlooked.
        turn = radius * s
        remainder = sum(turn ** (4 - i) * s**i * rate.abs() for i, rate in enumerate(rates, 1)) * (math.e / 384)
        bernstein = torch.minimum(b + s * rates[0] / 3, ahead - s * speed / 3)
        good = (torch.minimum(ahead, bernstein - remainder) >= b.clamp(max=0) - _SLACK).all(0)
        reach = torch.where(good, torch.inf, s / 2)
        s = torch.where(good, s, 0.0)
        ahead = torch.where(good, ahead, b)
        growth[ids] += s * invariants[0]
        left = left - s

        out = speed.gather(0, face[None])[0]
        crossing = good & (ahead.gather(0, face[None])[0] <= 0) & (out < 0) & (left > 0)
        crossing = crossing.nonzero()[:, 0]
        face = face[crossing]
        if tape is not None:
            tape.append(Step(ids, rows, b, s, coefficients, crossing, face, out[crossing]))
        key = (rows[crossing] % simplices) * (k + 1) + face
        ahead[:, crossing] = (handover[key] * ahead[:, crossing].T[:, None]).sum(-1).T
        b, rows = ahead, rows.index_add(0, crossing, onward[key])

        done = left <= 0
        if done.any():
            over, on = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
            end_rows[ids[over]], end_b[:, ids[over]] = rows[over], b[:, over]
            ids, rows, b, left, reach = ids[on], rows[on], b[:, on], left[on], reach[on]
    return end_rows, end_b, growth


def retrace(field: Field, tape: list[Step], pull: Tensor, growth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint of :func:`walk`: from gradients at the end to gradients at the start.

    Arguments:
        field: The field.
        tape: What :func:`walk` wrote down.
        pull: The gradient to the end points' coordinates, (k + 1, n).
        growth: The gradient to the integral of the divergence, (n).

    Returns:
        The gradients to the field's rates, to its invariants, and to the coordinates at the start.
    """
    mesh, k = field.mesh, field.mesh.ndim
    simplices, handover = len(mesh.simplices), mesh.handover.flatten(0, 1)
    onward = (mesh.neighbours - torch.arange(simplices, device=pull.device)[:, None]).flatten()
    size = (k + 1) ** 2
    total = field.rates.new_zeros(size + k, field.rates.shape[-1])
    pull = pull.clone()
    for step in reversed(tape):
        rows, b, s = step.rows, step.b, step.s
        back, swell = pull[:, step.ids], growth[step.ids]
        key = (rows[step.crossing] % simplices) * (k + 1) + step.faces
        there = (handover[key] * back[:, step.crossing].T[:, :, None]).sum(1).T
        # A little later at the face: less time with this divergence, more with the next one's
        here = rows[step.crossing]
        jump = field.invariants[0, here] - field.invariants[0, here + onward[key]]
        there[step.faces, torch.arange(len(here), device=here.device)] -= swell[step.crossing] * jump / step.speed
        back[:, step.crossing] = there

        matrix, invariants = field.rates[..., rows], field.invariants[:, rows]
        forward, backward = [b], [back]
        for _ in range(k):
            forward.append((matrix * forward[-1]).sum(1))
            backward.append((matrix * backward[-1][:, None]).sum(0))
        lengths = [s**i * f for i, f in enumerate(step.coefficients, 1)]
        outer = sum(
            backward[a][:, None] * sum(lengths[i] * forward[i - a] for i in range(a, k)) for a in range(k)
        )
        push = [s**i * (back * forward[i]).sum(0) for i in range(1, k + 1)]
        slopes = _sensitivities(invariants, s, _terms(field.radius[rows], s))
        kappa = [s ** (j + 1) * sum(push[i] * slopes[i][j] for i in range(k)) for j in range(k)]
        kappa[0] = kappa[0] + swell * s
        values = torch.cat([torch.as_tensor(outer).flatten(0, 1), torch.stack(kappa)])
        total.scatter_add_(1, rows.expand_as(values), values)
        pull[:, step.ids] = back + sum(f * m for f, m in zip(lengths, backward[1:], strict=True))
    return total[:size].unflatten(0, (k + 1, k + 1)), total[size:], pull


def _aim(b: Tensor, rates: list[Tensor], invariants: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """When a point leaves through a face, or ``limit`` if that comes first, and the likeliest face."""
    first, second = rates[0], rates[1] if len(rates) > 1 else invariants[0] * rates[0]
    gap = (b + _SLACK / 2).clamp(min=0)
    # The first root of gap + first t + second t² / 2, without cancellation
    square = first * first - 2 * gap * second
    big = first.abs() + square.clamp(min=0).sqrt()
    falling = torch.where(square >= 0, 2 * gap / big, torch.inf)
    turning = torch.where(second < 0, big / -second, torch.inf)
    s, face = torch.where(first < 0, falling, turning).min(0)
    leaving = s < 1.25 * limit
    s = torch.minimum(s, limit)
    start = b.gather(0, face[None])[0] + _SLACK / 2
    slopes = [rate.gather(0, face[None])[0] for rate in rates]
    for _ in range(_NEWTON):
        value, slope = _evaluate(start, slopes, invariants, _coefficients(invariants, s, _TERMS), s)
        better = (s - value / slope).clamp(min=0)
        s = torch.where(leaving & (slope < 0), torch.minimum(better, limit), s)
    return s, face


def _coefficients(invariants: Tensor, s: Tensor, terms: int) -> list[Tensor]:
    """The functions F_1 ... F_k of the step s, by their series."""
    k = len(invariants)
    p = [c * s**j for j, c in enumerate(invariants, 1)]
    sums, last = [torch.full_like(s, 1 / math.factorial(k - i)) for i in range(k)], [torch.ones_like(s)]
    for n in range(k + 1, k + terms):
        new = p[0] * last[0]
        for q, w in zip(p[1:], last[1:], strict=False):
            new.addcmul_(q, w)
        for i, total in enumerate(sums):
            total.add_(new, alpha=1 / math.factorial(n - i))
        last = [new, *last[: k - 1]]
    return [sums[m] - sum(p[j - 1] * sums[m - j] for j in range(1, m + 1)) for m in range(k - 1, -1, -1)]


def _evaluate(
    b: Tensor, rates: list[Tensor], invariants: Tensor, coefficients: list[Tensor], s: Tensor
) -> tuple[Tensor, Tensor]:
    """b(s) and its derivative."""
    k = len(rates)
    terms = [rate * s**i for i, rate in enumerate(rates)]
    ahead = b + s * sum(f * t for f, t in zip(coefficients, terms, strict=True))
    before = [torch.ones_like(s), *coefficients[:-1]]
    slopes = [before[i] + invariants[k - 1 - i] * s ** (k - i) * coefficients[-1] for i in range(k)]
    return ahead, torch.as_tensor(sum(f * t for f, t in zip(slopes, terms, strict=True)))


def _sensitivities(invariants: Tensor, s: Tensor, terms: int) -> list[list[Tensor]]:
    r"""How F_i changes with p_j.

    :math:`\partial \beta / \partial P_j = \gamma^{(k-j)}` where :math:`\gamma^{(k)} = \beta + \sum_j P_j
    \gamma^{(k-j)}`: one more series. The rest is the definition of the f_i, differentiated.
    """
    k = len(invariants)
    p = [c * s**j for j, c in enumerate(invariants, 1)]
    gamma = [torch.full_like(s, 1 / math.factorial(2 * k - i)) for i in range(k)]
    ws, qs = [torch.ones_like(s)], [torch.ones_like(s)]
    for n in range(2 * k + 1, 2 * k + terms):
        w, q = p[0] * ws[0], p[0] * qs[0]
        for c, a, z in zip(p[1:], ws[1:], qs[1:], strict=False):
            w.addcmul_(c, a)
            q.addcmul_(c, z)
        q += w
        for i, total in enumerate(gamma):
            total.add_(q, alpha=1 / math.factorial(n - i))
        ws, qs = [w, *ws[: k - 1]], [q, *qs[: k - 1]]
    slopes = []
    for i in range(1, k + 1):
        m = k - i
        row = []
        for j in range(1, k + 1):
            if j <= m:
                row.append(sum(p[a - 1] * gamma[k - j + m - a] for a in range(m + 1, k + 1)))
            else:
                row.append(gamma[k - j + m] - sum(p[a - 1] * gamma[k - j + m - a] for a in range(1, m + 1)))
        slopes.append([torch.as_tensor(r) for r in row])
    return slopes


def _invariants(rates: Tensor, k: int) -> list[Tensor]:
    """P_1 ... P_k of the characteristic polynomial, by Newton's identities."""
    power, found = rates, []
    for j in range(1, k + 1):
        trace = power.diagonal().sum(-1)
        found.append((trace - sum(found[i] * traces[j - 2 - i] for i in range(j - 1))) / j if j > 1 else trace)
        traces = [*traces, trace] if j > 1 else [trace]
        power = torch.einsum("ijr,jlr->ilr", power, rates)
    return found


def _terms(radius: Tensor, s: Tensor) -> int:
    return _TERMS


def _budget(field: Field) -> int:
    return 1000


_TERMS = 19
