r"""The exact flow in one dimension, in closed form: no loop over cells.

A point moves one way only, so all that counts is the time each cell takes to cross. The times are summed up once for
each field; a point leaves its own cell after a known time, and a search in the sums finds the cell where its time is up.
In a cell, with slope a, a point moves by :math:`v\,\beta` where :math:`\beta(t) = (e^{at} - 1) / a`, and it takes
:math:`\log(v_1 / v_0) / a` from velocity :math:`v_0` to :math:`v_1`. A cell with a zero of the velocity is never crossed.

The derivative of the end point with respect to a velocity on the way is :math:`v_{end} \int \mathrm{shape} / v^2\,dx`,
cell by cell once more: sums over whole cells are the same for all points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: What a cell takes that is not crossed in unit time; any number above one would do.
_NEVER = 2.0
#: Beyond every point, and small enough for its square to be finite.
_FAR = 1e100


@dataclass
class Line:
    """The field in cells 0 to n + 1, of which the first and the last are unbounded; cell i has its right end at node i.

    All have shape (b, n + 2) but ``left_end`` and ``right_end``, which have (n + 2), and ``clock``: the time from the
    first node to each, (b, n + 1).
    """

    left_end: Tensor
    right_end: Tensor
    left: Tensor
    right: Tensor
    slope: Tensor
    clock: Tensor

    @classmethod
    def of(cls, nodal: Tensor) -> Line:
        """The field with the given velocities at equidistant nodes of [-1, 1], (b, n + 1)."""
        n = nodal.shape[1] - 1
        ends = torch.arange(n + 1, dtype=nodal.dtype, device=nodal.device) * 2 / n - 1
        far = ends.new_tensor([_FAR])
        left, right = nodal[:, :-1], nodal[:, 1:]
        slope = (right - left) * (n / 2)
        clock = torch.where(left * right > 0, _duration(2 / n, left.abs(), right.abs() - left.abs()), _NEVER)
        return cls(
            left_end=torch.cat([-far, ends]),
            right_end=torch.cat([ends, far]),
            left=torch.cat([nodal[:, :1], nodal], dim=1),
            right=torch.cat([nodal, nodal[:, -1:]], dim=1),
            slope=torch.nn.functional.pad(slope, (1, 1)),
            clock=torch.nn.functional.pad(clock.clamp(max=_NEVER).cumsum(1), (1, 0)),
        )


@dataclass
class Trip:
    """Where points start, where they end, and what happens there; all (b, n).

    The first leg is in cell ``start``, from ``share`` of the cell's width on, at velocity ``v``, for ``first``. Points
    that ``stay`` there need no more. The others enter cell ``stop`` at velocity ``entry`` and stay for ``last``, up to
    ``end`` and ``v_end``. ``growth`` is the logarithm of the derivative of the end by the start.
    """

    start: Tensor
    share: Tensor
    v: Tensor
    first: Tensor
    stay: Tensor
    right: Tensor
    stop: Tensor
    entry: Tensor
    last: Tensor
    end: Tensor
    v_end: Tensor
    growth: Tensor


def travel(line: Line, x: Tensor) -> Trip:
    """Carry the points (b, n) along the field for unit time."""
    n = len(line.left_end) - 2
    at = (x + 1) * (n / 2)
    cell = torch.where(at == n, n - 1, at.floor()).clamp(-1, n).nan_to_num()
    share = torch.where((cell < 0) | (cell == n), 0.0, at - cell)
    start = cell.long() + 1
    v = torch.lerp(line.left.gather(1, start), line.right.gather(1, start), share)
    right = v > 0
    slope = line.slope.gather(1, start)
    way = torch.where(right, line.right_end[start], line.left_end[start]) - x
    first = torch.where(v == 0, torch.inf, _duration(way, v, slope * way))
    stay = first >= 1

    node = torch.where(right, start, start - 1)
    time = 1 - first.clamp(max=1)
    target = line.clock.gather(1, node.clamp(0, n)) + torch.where(right, time, -time)
    stop = torch.searchsorted(line.clock, target, right=True)
    # Rounding must not turn a point back into the cell it has left.
    stop = torch.where(right, torch.maximum(stop, node + 1), torch.minimum(stop, node)).clamp(0, n + 1)
    stop = torch.where(stay, start, stop)
    gate = torch.where(right, stop - 1, stop).clamp(0, n)
    entry = torch.where(right, line.left.gather(1, stop), line.right.gather(1, stop))
    entry = torch.where(stay, v, entry)
    last = torch.where(stay, 1.0, (target - line.clock.gather(1, gate)).abs())
    last_slope = line.slope.gather(1, stop)
    end = torch.where(stay, x, line.right_end[gate]) + entry * _beta(last_slope, last)
    # Sums of exponents: where points are squeezed together, velocities would cancel.
    edge = torch.where(right, line.right.gather(1, start), line.left.gather(1, start))
    between = torch.where(stay, 0.0, slope * first + (entry / edge).log())
    spread = last_slope * last
    first = first.clamp(max=1)
    return Trip(start, share, v, first, stay, right, stop, entry, last, end, entry * spread.exp(), between + spread)


def travel_back(line: Line, trip: Trip, pull: Tensor, swell: Tensor) -> tuple[Tensor, Tensor]:
    """The adjoint of :func:`travel`: from gradients to ``end`` and ``growth`` to those to nodal velocities and points."""
    n = len(line.left_end) - 2
    stay, right, start, stop = trip.stay, trip.right, trip.start, trip.stop
    first_slope, last_slope = line.slope.gather(1, start), line.slope.gather(1, stop)
    log = torch.where(stay, 0.0, swell)
    lefts, rights = torch.zeros_like(line.left), torch.zeros_like(line.right)

    def add(cell: Tensor, both: Tensor, at_right: Tensor) -> None:
        lefts.scatter_add_(1, cell, both - at_right)
        rights.scatter_add_(1, cell, at_right)

    # The last leg, the only one of those that stay: the way itself, the slope's part in growth, the velocity it begins
    share = torch.where(stay, trip.share, torch.where(right, 0.0, 1.0))
    beta, gamma = _beta(last_slope, trip.last), _gamma(last_slope, trip.last)
    gate = log / torch.where(stay, 1.0, trip.entry)
    way = pull * (share * beta + trip.entry * (n / 2) * gamma)
    add(stop, pull * beta + gate, way + swell * trip.last * (n / 2) + torch.where(right, 0.0, gate))

    # The first leg of those that move on. What it takes longer, the last leg has less: velocity there, slope there.
    flow = torch.where(stay, 0.0, pull * trip.v_end)
    sooner = flow + log * (last_slope - first_slope)
    edge = torch.where(stay, 1.0, torch.where(right, line.right.gather(1, start), line.left.gather(1, start)))
    beta, gamma = _beta(first_slope, trip.first), _gamma(first_slope, trip.first)
    force, gate = sooner / edge, log / edge
    way = force * (trip.share * beta + trip.v * (n / 2) * gamma)
    add(start, force * beta - gate, way + log * trip.first * (n / 2) - torch.where(right, gate, 0.0))
    to_points = torch.where(stay, pull * trip.growth.exp(), sooner / torch.where(stay, 1.0, trip.v))
    flow = flow + log * last_slope

    # Whole cells in between: what one point there weighs, times how much goes through
    enter, leave = torch.where(line.left > 0, line.left, line.right), torch.where(line.left > 0, line.right, line.left)
    crossed = line.left * line.right > 0
    time = torch.nn.functional.pad(line.clock.diff(dim=1), (1, 1))
    beta = torch.where(crossed, _beta(line.slope, time) / leave, 0.0)
    gamma = torch.where(crossed, _gamma(line.slope, time) / leave, 0.0)
    begin, after = torch.minimum(start, stop) + 1, torch.maximum(start, stop)
    through = torch.zeros_like(line.left)
    through.scatter_add_(1, begin.clamp(max=n + 1), flow).scatter_add_(1, after, -flow)
    through = through.cumsum(1)
    at_right = through * (torch.where(line.left > 0, 0.0, beta) + enter * (n / 2) * gamma)
    lefts += through * beta - at_right
    rights += at_right

    nodal = rights[:, :-1] + lefts[:, 1:]
    nodal[:, 0] += lefts[:, 0]
    nodal[:, -1] += rights[:, -1]
    return nodal, to_points


def _duration(way: Tensor | float, v: Tensor, change: Tensor) -> Tensor:
    """How long a way takes on which the velocity grows evenly from v by ``change``; infinite if it reaches zero."""
    grown = change / v
    bend = torch.where(grown == 0, 1.0, grown.log1p() / grown)
    return torch.where(grown <= -1, torch.inf, way / v * bend)


def _beta(slope: Tensor, time: Tensor) -> Tensor:
    """(exp(a t) - 1) / a, which is t at a = 0."""
    return torch.where(slope == 0, time, (slope * time).expm1() / slope)


def _gamma(slope: Tensor, time: Tensor) -> Tensor:
    """The derivative of beta by the slope: (t exp(a t) - beta) / a."""
    z = slope * time
    series = time * time * (1 / 2 + z * (1 / 3 + z * (1 / 8 + z * (1 / 30 + z * (1 / 144 + z / 840)))))
    small = z.abs() < 0.01
    return torch.where(small, series, (time * z.exp() - z.expm1() / slope) / slope)
