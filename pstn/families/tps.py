"""Thin-plate splines: the smoothest map that moves a grid of control points as told."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from pstn.families.base import Family


class TPS(Family):
    r"""Thin-plate splines over a regular grid of control points: :math:`T_\theta(p) = p + \sum_i u_i(p)\,\theta_i`.

    :math:`\theta_i` is the displacement of control point i; the cardinal splines :math:`u_i` (one at their own control
    point, zero at the others) come from the solved kernel system, which is a buffer: nothing is solved at run time, and
    the map is linear in :math:`\theta`. The kernel is :math:`r^3, r^2 \log r^2, -r` in 1-D (the natural cubic spline),
    2-D, 3-D. Thin-plate splines are not closed under composition or inverse; :meth:`Family.invert` inverts numerically.

    Arguments:
        points: Control points along each axis, corners included.
        ndim: 1, 2 or 3.

    References:
        Bookstein, Principal Warps, 1989; Jaderberg et al., Spatial Transformer Networks, 2015

    Example:
        >>> TPS().dim  # 4 × 4 control points, two coordinates each
        32
    """

    control: Tensor
    solved: Tensor

    def __init__(self, points: int = 4, ndim: int = 2) -> None:
        super().__init__()
        if points < 2:
            raise ValueError(f"points is {points}; a thin-plate spline needs at least 2 control points along each axis")
        if ndim not in (1, 2, 3):
            raise ValueError(f"ndim is {ndim}; expected 1, 2 or 3")
        self.ndim, self.points = ndim, points
        places = itertools.product(range(points), repeat=ndim)
        self.names = tuple(f"{a}{list(place)}" for place in places for a in "xyz"[:ndim])
        self.lay_tables()

    def tables(self) -> dict[str, Tensor | None]:
        """The control points, (n, k), and the solved kernel system, (n + k + 1, n): displacements of the control points
        to coefficients of kernels, constant and slopes."""
        ndim, points = self.ndim, self.points
        axis = torch.linspace(-1, 1, points, dtype=torch.float64)
        # row by row: x runs fastest, as pixels do
        control = torch.cartesian_prod(*[axis] * ndim).reshape(-1, ndim).flip(-1)
        n = len(control)
        kernel = self._kernel(control, control)
        affine = torch.cat([torch.ones(n, 1, dtype=torch.float64), control], dim=1)
        system = torch.cat(
            [
                torch.cat([kernel, affine], dim=1),
                torch.cat([affine.T, torch.zeros(ndim + 1, ndim + 1, dtype=torch.float64)], dim=1),
            ]
        )
        return {"solved": torch.linalg.inv(system)[:, :n], "control": control}

    def cardinal(self, points: Tensor) -> Tensor:
        """The cardinal splines at the points: (*b, n, k) to (*b, n, control points)."""
        # They are small differences of large numbers: with 100 points on a line, float32 misses by 4 % of it.
        exact = points.to(torch.float32 if points.device.type == "mps" else torch.float64)  # mps has no float64
        control, solved = self.control.to(exact), self.solved.to(exact)
        basis = torch.cat([self._kernel(exact, control), torch.ones_like(exact[..., :1]), exact], dim=-1)
        return (basis @ solved).to(points)

    def move(self, theta: Tensor, points: Tensor) -> Tensor:
        """The points plus the spline's displacement."""
        work = torch.promote_types(theta.dtype, points.dtype)  # a matrix product does not mix them by itself
        theta, points = theta.to(work), points.to(work)
        with torch.autocast(theta.device.type, enabled=False):
            return points + self.cardinal(points) @ theta.unflatten(-1, (-1, self.ndim))

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        square = (a[..., :, None, :] - b).square().sum(-1)
        apart = square > 0
        square = torch.where(apart, square, 1.0)  # the root and the logarithm must not see zero, gradients included
        value = {1: square * square.sqrt(), 2: square * square.log(), 3: -square.sqrt()}[self.ndim]
        return torch.where(apart, value, 0.0)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"{' × '.join([str(self.points)] * self.ndim)} control points"
