"""What a family of transformations is: a map from parameters and points to points, the identity at zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.tabled import Tabled

#: Parameters are clamped here. A heavy-tailed posterior does draw 1e20 now and then; the warp must stay finite.
LIMIT = 1e3


class Family(Tabled):
    r"""A family of maps :math:`T_\theta` of the square [-1, 1]^k into space, with :math:`T_0 = \mathrm{id}`.

    A family is pure geometry: no learned weights, only buffers where it needs tables. Write a new one by setting
    ``ndim``, ``names`` and :meth:`move`; add :meth:`compose` and :meth:`inverse` where the mathematics has them, and
    check it with :func:`pstn.testing.assert_family`.

    Convention: the output at point p takes its value from the input at :math:`T_\theta(p)`.

    Attributes:
        ndim: The dimension k of the space: 1, 2 or 3.
        names: What each parameter is called.
        dim: How many parameters there are.
    """

    ndim: int
    names: tuple[str, ...]

    @property
    def dim(self) -> int:
        """How many parameters the family has."""
        return len(self.names)

    def forward(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        r"""The points :math:`T_\theta(p)`.

        Arguments:
            theta: Parameters, with shape (*b, d).
            points: Points p, with shape (n, k) or (*b, n, k).

        Returns:
            The moved points, with shape (*b, n, k), finite for every ``theta``, NaN and infinity included.
        """
        theta = self.bounded(theta)
        if points.shape[-1:] != (self.ndim,):
            raise ValueError(f"points have shape {tuple(points.shape)}; {self.label} needs (..., n, {self.ndim})")
        return self.move(theta, points)

    def move(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        """The mathematics of :meth:`forward`, on checked and bounded parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define move(theta, points)")

    def compose(self, outer: Float[Tensor, "*b d"], inner: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        r"""The :math:`\theta` with :math:`T_\theta = T_{outer} \circ T_{inner}`.

        Warping by ``a`` and then warping the result by ``b`` is one warp by ``compose(a, b)``.
        """
        self._lacks("compose", "two of its members do not make a third", "warp twice, or chain the maps with Compose")

    def inverse(self, theta: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        r"""The :math:`\theta'` with :math:`T_{\theta'} = T_\theta^{-1}`."""
        self._lacks("inverse", "the inverse of a member is not a member", "invert(theta, points) finds single points")

    def invert(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        r"""The points :math:`T_\theta^{-1}(p)`, by Newton's method where a family has no closed form.

        Without gradient. A point that no start reaches (the map folds there, or leaves it uncovered) comes back as NaN.
        """
        theta, goal = theta.detach(), points.detach()

        def error(p: Tensor) -> Tensor:
            return self(theta, p) - goal

        found = goal + torch.zeros_like(error(goal))
        axes = torch.eye(self.ndim, dtype=found.dtype, device=found.device)
        for _ in range(50):
            with torch.inference_mode(False), torch.no_grad():
                missed, pull = torch.func.vjp(error, found)  # type: ignore[misc]  # two without auxiliary values
                # a point moves by itself alone, so the gradient of a sum over points is one row of every Jacobian
                rows = [pull(axis.expand_as(missed))[0] for axis in axes]
            step = torch.linalg.solve_ex(torch.stack(rows, dim=-2), missed)[0]
            # no step longer than a quarter of the picture: far from the answer the linear model is not to be trusted
            length = step.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-30)
            found = found - torch.nan_to_num(step) * (0.5 / length).clamp_max(1.0)
        missed = error(found).abs().amax(-1, keepdim=True)
        return torch.where(missed < 1e3 * torch.finfo(found.dtype).eps, found, torch.nan)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Family:
        """Tables go where the module goes and keep their digits: a model in 16 bits still looks at the right place."""

        def moved(table: Tensor) -> Tensor:
            if table.is_meta:  # has no digits
                return fn(table)
            device = fn(table.float()).device
            return table.to(device, torch.float32 if device.type == "mps" else None)  # which has no float64

        super()._apply(moved, recurse)
        return self

    def zeros(self, *batch: int, **options: object) -> Float[Tensor, "*b d"]:
        """The identity's parameters, with shape (*batch, d)."""
        return torch.zeros(*batch, self.dim, **options)  # type: ignore[call-overload]

    @property
    def label(self) -> str:
        """The family with its parameters' names, for messages."""
        shown = self.names if self.dim <= 9 else (*self.names[:3], "...")
        return f"{type(self).__name__} ({', '.join(shown)})"

    def bounded(self, theta: Tensor) -> Tensor:
        """Checked parameters in float32 at least, NaN as 0 and everything else inside ±``LIMIT``."""
        if theta.shape[-1:] != (self.dim,):
            found = f"{theta.shape[-1]} numbers" if theta.ndim else "no axis"
            raise ValueError(
                f"theta has {found}, {type(self).__name__} needs {self.dim} ({self.label.partition('(')[2]}"
            )
        if not theta.is_floating_point():
            raise TypeError(f"theta is {theta.dtype}; expected floating point")
        theta = theta.to(torch.promote_types(theta.dtype, torch.float32))
        return torch.nan_to_num(theta, nan=0.0, posinf=LIMIT, neginf=-LIMIT).clamp(-LIMIT, LIMIT)

    def _lacks(self, what: str, why: str, instead: str) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no {what}: {why}; {instead}")

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return ""
