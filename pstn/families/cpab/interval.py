r"""The exact flow in one dimension, in closed form: no loop over cells.

A point moves one way only, so all that counts is the time each cell takes to cross. The times are summed up once for
each field; a point leaves its own cell after a known time, and a search in the sums finds the cell where its time is
up. In a cell, with slope a, a point moves by :math:`v\,\beta` where :math:`\beta(t) = (e^{at} - 1) / a`, and it takes
:math:`\log(v_1 / v_0) / a` from velocity :math:`v_0` to :math:`v_1`. A cell with a zero of the velocity is never
crossed.

The derivative of the end point with respect to a velocity on the way is :math:`v_{end} \int \mathrm{shape} / v^2\,dx`,
cell by cell once more: sums over whole cells are the same for all points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: What a cell takes that is not crossed in unit time; any number above one would do.
_NEVER = 2.0
#: A way that takes longer than unit time.
_FAR = 1e30


@dataclass
class Line:
    """The field in cells 0 to n + 1, of which the first and the last are unbounded; cell i has its right end at node i.

    ``left`` and ``right`` are the velocities at the cells' ends, ``slope`` is their difference by the width, all
    (b, n + 2); ``nodal`` the velocities at the nodes and ``clock`` the time from the first node to each, (b, n + 1).
    """

    nodal: Tensor
    left: Tensor
    right: Tensor
    slope: Tensor
    clock: Tensor

    @classmethod
    def of(cls, nodal: Tensor) -> Line:
        """The field with the given velocities at equidistant nodes of [-1, 1], (b, n + 1)."""
        n = nodal.shape[1] - 1
        left, right = nodal[:, :-1], nodal[:, 1:]
        time = _duration(2.0, left.abs(), right.abs() - left.abs()) / n
        time = torch.where(left * right > 0, time.clamp(max=_NEVER), _NEVER)
        return cls(
            nodal=nodal,
            left=torch.cat([nodal[:, :1], nodal], dim=1),
            right=torch.cat([nodal, nodal[:, -1:]], dim=1),
            slope=torch.nn.functional.pad((right - left) * (n / 2), (1, 1)),
            clock=torch.nn.functional.pad(time.cumsum(1), (1, 0)),
        )


@dataclass
class Leg:
    """A way inside one cell: from ``share`` of its width on, at velocity ``v``, for a time; all (b, n).

    ``beta`` is the way by v, and ``spread`` the exponential of slope times time: how much faster it ends.
    """

    cell: Tensor
    share: Tensor
    v: Tensor
    time: Tensor
    slope: Tensor
    beta: Tensor
    spread: Tensor

    def pull(self, lefts: Tensor, rights: Tensor, force: Tensor) -> None:
        """Add what a force on the end of the leg does to the velocities at the ends of its cell; none for no force."""
        half, idle = (lefts.shape[1] - 2) / 2, force == 0
        gamma = _gamma(self.slope, self.time, self.beta, self.spread)
        at_right = force * torch.addcmul(self.share * self.beta, self.v, gamma, value=half)
        at_left = torch.addcmul(-at_right, force, self.beta)
        lefts.scatter_add_(1, self.cell, at_left.masked_fill_(idle, 0))
        rights.scatter_add_(1, self.cell, at_right.masked_fill_(idle, 0))


@dataclass
class Trip:
    """The first leg of points, and the last, which is the only one of those that ``stay`` in their cell; all (b, n)."""

    first: Leg
    last: Leg
    stay: Tensor
    right: Tensor
    end: Tensor

    def growth(self) -> Tensor:
        """The logarithm of the derivative of the end by the start."""
        last, first = self.last, self.first
        # Sums of exponents: where points are squeezed together, velocities would cancel.
        edge = torch.where(self.stay, 1.0, first.v * first.spread)
        between = first.slope * first.time + (last.v / edge).log()
        return torch.addcmul(torch.where(self.stay, 0.0, between), last.slope, last.time)


def travel(line: Line, x: Tensor) -> Trip:
    """Carry the points, (b, n) or (1, n), along the field for unit time."""
    b, n = line.nodal.shape[0], line.nodal.shape[1] - 1
    at = (x + 1) * (n / 2)
    cell = torch.where(at == n, n - 1, at.floor()).clamp(-1, n).nan_to_num(0.0, 0.0, 0.0)
    beyond = (cell < 0) | (cell == n)
    share, start = torch.where(beyond, 0.0, at - cell), (cell.long() + 1).expand(b, -1)
    ends = line.left.gather(1, start), line.right.gather(1, start)
    v = torch.lerp(*ends, share)
    right = v > 0
    edge = torch.where(right, ends[1], ends[0])
    # By the share, as the velocity: where one reaches zero, so does the other.
    way = (right.to(v) - share) * 2 / n
    if x.is_cuda or torch.compiler.is_compiling() or beyond.any():  # a GPU would have to be waited for
        side = torch.where(start == 0, -1.0, 1.0)
        way = torch.where(beyond, torch.where(right == (start == 0), side - x, side * _FAR), way)
    change = edge - v
    time = _duration(way, v, change).masked_fill_(v == 0, torch.inf)
    stay = time >= 1
    time.masked_fill_(stay, 0)
    first = Leg(start, share.expand(b, -1), v, time, line.slope.gather(1, start), way / v, edge / v)

    node = start - (~right).long()
    rest = 1 - time
    target = line.clock.gather(1, node.clamp(0, n)) + torch.where(right, rest, -rest)
    stop = _position(line.clock, target)
    # Rounding must not turn a point back into the cell it has left.
    stop = torch.where(right, torch.maximum(stop, node + 1), torch.minimum(stop, node))
    stop = torch.where(stay, start, stop)
    gate = (stop - right.long()).clamp_(0, n)
    v = torch.where(stay, v, line.nodal.gather(1, gate))
    time = torch.where(stay, 1.0, (target - line.clock.gather(1, gate)).abs_())
    share = torch.where(stay, share, (~right).to(v))
    slope = line.slope.gather(1, stop)
    rise = _expm1(slope * time)
    beta = torch.where(slope == 0, time, rise / slope)
    end = torch.addcmul(torch.where(stay, x, gate.to(v) * 2 / n - 1), v, beta)
    return Trip(first, Leg(stop, share, v, time, slope, beta, (slope * time).exp()), stay, right, end)


def travel_back(line: Line, trip: Trip, pull: Tensor, swell: Tensor | None) -> tuple[Tensor, Tensor]:
    """The adjoint of :func:`travel`: gradients to nodal velocities and points, from those to the end and its growth."""
    n, first, last = line.nodal.shape[1] - 1, trip.first, trip.last
    lefts, rights = torch.zeros_like(line.left), torch.zeros_like(line.right)
    last.pull(lefts, rights, pull)
    # What a whole cell or the first leg takes less, the last one has more: flow by time.
    flow = torch.where(trip.stay, 0.0, pull * last.v * last.spread)
    sooner = flow
    edge = torch.where(trip.stay, 1.0, first.v * first.spread)
    if swell is not None:
        swell, log = swell.expand_as(pull), torch.where(trip.stay, 0.0, swell)
        flow, sooner = flow + log * last.slope, flow + log * (last.slope - first.slope)
        for leg, weight, at_node, here in (
            (last, swell, log / last.v, ~trip.right),
            (first, log, -log / edge, trip.right),
        ):
            steeper = weight * leg.time * (n / 2)
            at_node = torch.where(trip.stay, 0.0, at_node)
            lefts.scatter_add_(1, leg.cell, torch.where(here, 0.0, at_node) - steeper)
            rights.scatter_add_(1, leg.cell, torch.where(here, at_node, 0.0) + steeper)
    first.pull(lefts, rights, sooner / edge)
    to_points = torch.where(trip.stay, pull * last.spread, sooner / first.v)

    # Whole cells in between: what one point there weighs, times how much goes through
    through = torch.zeros_like(line.left)
    begin, after = torch.minimum(first.cell, last.cell) + 1, torch.maximum(first.cell, last.cell)
    through.scatter_add_(1, begin.clamp_(max=n + 1), flow).scatter_add_(1, after, -flow)
    forth = line.left > 0
    enter, leave = torch.where(forth, line.left, line.right), torch.where(forth, line.right, line.left)
    crossed = line.left * line.right > 0
    # no time in others: what they would take makes an exponential that is infinite where a field is steep
    time = torch.nn.functional.pad(line.clock.diff(dim=1), (1, 1)) * crossed
    spread = (line.slope * time).exp()
    beta = torch.where(line.slope == 0, time, (line.slope * time).expm1() / line.slope)
    force = torch.where(crossed, through.cumsum(1) / leave, 0.0)
    at_right = force * ((~forth).to(beta) * beta + enter * (n / 2) * _gamma(line.slope, time, beta, spread))
    lefts += force * beta - at_right
    rights += at_right

    nodal = rights[:, :-1] + lefts[:, 1:]
    nodal[:, 0] += lefts[:, 0]
    nodal[:, -1] += rights[:, -1]
    return nodal, to_points


def _duration(way: Tensor | float, v: Tensor, change: Tensor) -> Tensor:
    """How long a way takes on which the velocity grows evenly from v by ``change``; infinite if it reaches zero."""
    grown = change / v
    bend = torch.where(grown == 0, 1.0, _log1p(grown) / grown)
    return (way / v * bend).masked_fill_(grown <= -1, torch.inf)


def _gamma(slope: Tensor, time: Tensor, beta: Tensor, spread: Tensor) -> Tensor:
    """The derivative of beta by the slope: (t exp(a t) - beta) / a, and its series where that cancels."""
    z = slope * time
    series = time * time * (1 / 2 + z * (1 / 3 + z * (1 / 8 + z * (1 / 30 + z / 144))))
    return torch.where(z.abs() < 0.005, series, (time * spread - beta) / slope)


# Other runtimes that an exported graph meets know neither a search nor these two functions, or round them away.


def _position(clock: Tensor, target: Tensor) -> Tensor:
    """How many of the sorted times are not later."""
    if torch.compiler.is_compiling():
        return (clock[:, None] <= target[..., None]).sum(-1)
    return torch.searchsorted(clock, target, right=True)


def _log1p(x: Tensor) -> Tensor:
    """log(1 + x); what rounding took from 1 + x, it took from the divisor too."""
    if torch.compiler.is_compiling():
        u = 1 + x
        return torch.where(u == 1, x, u.log() * (x / (u - 1)))
    return x.log1p()


def _expm1(x: Tensor) -> Tensor:
    """exp(x) - 1 likewise."""
    if torch.compiler.is_compiling():
        u = x.exp()
        return torch.where(u == 1, x, (u - 1) * (x / u.log()))
    return x.expm1()
