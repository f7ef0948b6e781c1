"""The CPAB family: diffeomorphisms by integrating continuous piecewise-affine velocity fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal

from pstn.families.base import Family
from pstn.families.cpab.basis import basis
from pstn.families.cpab.flow import flow
from pstn.families.cpab.prior import On, covariance
from pstn.families.cpab.tessellation import Tessellation, tessellation

#: Velocities at the nodes are clamped here, five widths of the domain in unit time. Nobody warps that far, and the
#: number of cells that a point can cross stays small.
SPEED = 10.0

_TABLES: dict[tuple[tuple[int, ...], bool, bool, torch.device], Tensor] = {}


class CPAB(Family):
    r"""Diffeomorphisms :math:`T_\theta(p) = x(1)`, where :math:`x(0) = p` and :math:`\dot x = v_\theta(x)`.

    The velocity is continuous, affine on every cell, and linear in :math:`\theta`. Cells are intervals (1-D),
    triangles, four a rectangle (2-D), and tetrahedra, five a box (3-D). The flow is exact: in a cell the solution of a
    linear equation, from cell to cell by the root where the face is reached; no step size. The gradient is the adjoint
    equation along the same way, exact as well. Everything is computed in float64, whatever the parameters are. On a CPU
    the walk in 2-D and 3-D is several times as fast where Numba is installed; the numbers are the same.

    :math:`\theta` are velocities at the nodes, in an orthonormal basis whose order and sign are fixed, so that saved
    models keep their meaning. Without constraints of volume, each parameter is one component at one node: the boxes'
    corners first, x fastest, then in 2-D the boxes' centres; at a node x, y, z. The inverse of a member is
    :math:`-\theta`. Velocities are clamped to ±``SPEED``.

    Convention: the domain is [-1, 1]^k. Outside of it the velocity is that of the nearest point of the border, so the
    map is a homeomorphism of all of space. With ``zero_boundary`` that velocity runs along the border: nothing enters
    or leaves, and a point outside keeps its distance. Derivatives exist everywhere but where the way runs along a face;
    there, and on a border that is kept, they are those of the side that the point was found on, inside for the border.

    Arguments:
        cells: The number of boxes along each axis, (x), (x, y) or (x, y, z); a number is one axis.
        zero_boundary: Whether the velocity normal to the border is zero there: the border stays the border.
        volume_preserving: Whether the divergence is zero in the domain.

    References:
        Freifeld, Hauberg, Batmanghelich and Fisher, Transformations Based on Continuous Piecewise-Affine Velocity
        Fields, 2017

    Example:
        >>> CPAB((3, 3)).dim, CPAB(10).dim
        (34, 9)
        >>> family = CPAB(4)
        >>> theta = torch.tensor([0.3, -0.2, 0.1])
        >>> there = family(theta, torch.tensor([[-0.5], [0.0], [1.0]]))
        >>> there.flatten()
        tensor([-0.3104, -0.1264,  1.0000])
        >>> family(family.inverse(theta), there).flatten()
        tensor([-0.5000,  0.0000,  1.0000])
    """

    def __init__(self, cells: int | Sequence[int], zero_boundary: bool = True, volume_preserving: bool = False) -> None:
        super().__init__()
        found = tuple(cells) if isinstance(cells, Iterable) else (cells,)
        if not (1 <= len(found) <= 3 and all(isinstance(n, Integral) and n > 0 for n in found)):
            raise ValueError(f"cells is {cells}; expected 1, 2 or 3 positive whole numbers, one an axis")
        self.cells = tuple(map(int, found))  # numpy's, too
        self.zero_boundary, self.volume_preserving = zero_boundary, volume_preserving
        self.ndim = len(self.cells)
        # Not buffers: tables keep their float64 when a model is cast to float32, and nothing needs to be saved.
        self.mesh: Tessellation = tessellation(self.cells)
        self.basis: Float[Tensor, "d m k"] = basis(self.mesh, zero_boundary, volume_preserving)
        if not len(self.basis):
            raise ValueError(
                f"no field on cells {self.cells} meets zero_boundary={zero_boundary} and "
                f"volume_preserving={volume_preserving} but zero; use more cells or fewer constraints"
            )
        if volume_preserving:
            self.names = tuple(f"field {i}" for i in range(len(self.basis)))
        else:
            which = self.basis.flatten(1).argmax(1).tolist()
            self.names = tuple(
                "xyz"[i % self.ndim] + str([round(x, 3) for x in self.mesh.nodes[i // self.ndim].tolist()])
                for i in which
            )

    def nodal(self, theta: Float[Tensor, "*b d"]) -> Float[Tensor, "*b m k"]:
        """The velocities at the nodes of ``mesh``, in float64."""
        table = self._table(theta.device)
        return (theta.double() @ table.flatten(1)).unflatten(-1, table.shape[1:]).clamp(-SPEED, SPEED)

    def move(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        """The points after unit time."""
        return self._integrate(self.nodal(theta), points, theta.dtype)

    def flow(
        self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"], times: Float[Tensor, " t"]
    ) -> Float[Tensor, "t *b n k"]:
        r"""The points at several times; negative times go back, time 1 is :math:`T_\theta`.

        Arguments:
            theta: Parameters, with shape (*b, d).
            points: Points, with shape (n, k) or (*b, n, k).
            times: Times, with shape (t).

        Returns:
            The points, with shape (t, *b, n, k).
        """
        nodal = self.nodal(self.bounded(theta))
        nodal = nodal.reshape(*[1] * (points.ndim - nodal.ndim), *nodal.shape)  # times are to be the first axis of all
        # a field that is twice as fast gets there in half the time
        return self._integrate(nodal * times.double().view(-1, *[1] * nodal.ndim), points, theta.dtype)

    def log_det(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n"]:
        r"""The logarithm of :math:`|\det dT_\theta / dp|`: the divergence, integrated along the way.

        Arguments:
            theta: Parameters, with shape (*b, d).
            points: Points, with shape (n, k) or (*b, n, k).

        Returns:
            The log-determinants, with shape (*b, n), with gradients to both.
        """
        return self._integrate(self.nodal(self.bounded(theta)), points, theta.dtype, volume=True)

    def velocity(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        r"""The velocity :math:`v_\theta(p)`.

        Arguments:
            theta: Parameters, with shape (*b, d).
            points: Points, with shape (n, k) or (*b, n, k).

        Returns:
            The velocities, with shape (*b, n, k).
        """
        nodal, mesh = self.nodal(self.bounded(theta)), self.mesh.on(theta.device)
        x = points.double()
        still = x.detach()
        simplices, b = mesh.locate(still.flatten(0, -2))
        simplices, b = simplices.view(x.shape[:-1]), b.T.unflatten(0, x.shape[:-1])
        b = b + (mesh.gradients[simplices] * (x - still)[..., None, :]).sum(-1)
        nodal = torch.nn.functional.pad(nodal, (0, 0, 0, 2 * self.ndim))  # corners at infinity do not move
        shape = torch.broadcast_shapes(nodal.shape[:-2], x.shape[:-2])
        index = mesh.simplices[simplices].flatten(-2)[..., None].expand(*shape, -1, self.ndim)
        corner = nodal.expand(*shape, *nodal.shape[-2:]).gather(-2, index).unflatten(-2, (-1, self.ndim + 1))
        return (b[..., None] * corner).sum(-2).to(torch.promote_types(theta.dtype, points.dtype))

    def inverse(self, theta: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        r"""The field run backwards: :math:`-\theta`."""
        return -theta

    def invert(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        r"""The points :math:`T_\theta^{-1}(p)`, exact, with gradient."""
        return self(-theta, points)

    def prior(
        self,
        length_scale: float = 0.5,
        variance: float = 0.04,
        *,
        on: On = "nodes",
        nugget: float = 1e-4,
        device: torch.device | str | None = None,
    ) -> MultivariateNormal:
        r"""The smoothness prior: a Gaussian on :math:`\theta` under which neighbouring velocities are correlated.

        Its draws are random diffeomorphisms: small ``length_scale`` for wrinkles, large for bends. As the prior of a
        Gaussian posterior it asks for smooth warps.

        Arguments:
            length_scale: How far the correlation reaches, where the domain has width 2 (1 for ``on="cells"``).
            variance: The variance of each velocity component (of each coefficient for ``on="cells"``).
            on: ``"nodes"``: a Gaussian process on the velocities. ``"cells"``: the paper's, on the coefficients of the
                cells' affine maps.
            nugget: The part of the variance that is independent; it keeps the covariance well-conditioned.
            device: Where the distribution lives.

        References:
            Freifeld, Hauberg, Batmanghelich and Fisher, Transformations Based on Continuous Piecewise-Affine Velocity
            Fields, 2017

        Example:
            >>> CPAB((3, 3)).prior(length_scale=0.5, variance=0.04).sample((8,)).shape
            torch.Size([8, 34])
        """
        found = torch.linalg.cholesky(covariance(self.mesh, self.basis, length_scale, variance, on, nugget))
        found = found.to(dtype=torch.get_default_dtype(), device=device)
        return MultivariateNormal(found.new_zeros(self.dim), scale_tril=found)

    def _table(self, device: torch.device) -> Float[Tensor, "d m k"]:
        """The basis on a device; copied once for all families that are alike."""
        if device == self.basis.device or torch.compiler.is_compiling():
            return self.basis.to(device)
        key = (self.cells, self.zero_boundary, self.volume_preserving, device)
        if key not in _TABLES:
            with torch.inference_mode(False), torch.no_grad():
                found = self.basis.to(device)
            # a tensor that belongs to a transform, or is none, must not outlive it
            if type(found) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(found):
                return found
            if len(_TABLES) >= 64:
                _TABLES.clear()
            _TABLES[key] = found
        return _TABLES[key]

    def _integrate(self, nodal: Tensor, points: Tensor, dtype: torch.dtype, volume: bool = False) -> Tensor:
        """The points after unit time, or the log-determinants there."""
        dtype = torch.promote_types(dtype, points.dtype)
        shape = torch.broadcast_shapes(nodal.shape[:-2], points.shape[:-2])
        nodal = nodal.expand(*shape, *nodal.shape[-2:]).reshape(math.prod(shape), *nodal.shape[-2:])
        own = shape if points.ndim > 2 else (1,)  # points that all fields share stay one set
        points = points.double().expand(*own, *points.shape[-2:]).reshape(math.prod(own), *points.shape[-2:])
        end, swell = flow(nodal, points, self.cells, volume)
        found = swell if volume and swell is not None else end
        return found.reshape(*shape, *found.shape[1:]).to(dtype)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"{self.cells}, zero_boundary={self.zero_boundary}, volume_preserving={self.volume_preserving}"
