"""Projective maps of the plane: eight numbers, straight lines stay straight."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.affine import MatrixFamily
from pstn.families.base import LIMIT


class Projective(MatrixFamily):
    r"""Homographies :math:`T_\theta(p) = (A p + t) / (1 + g \cdot p)`; :math:`\theta` is the matrix less the identity.

    Points that the map sends behind the horizon (denominator not positive) have no place in the picture: they are sent
    far outside, where a warp returns its fill.

    References:
        Jaderberg et al., Spatial Transformer Networks, 2015, https://arxiv.org/abs/1506.02025

    Example:
        >>> tilt = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0])
        >>> Projective()(tilt, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        tensor([[ 0.6667,  0.0000],
                [-2.0000,  0.0000]])
    """

    #: the smallest denominator that still counts as in front of the horizon
    horizon = 1e-3

    def __init__(self) -> None:
        super().__init__(2, ("xx", "xy", "x", "yx", "yy", "y", "tilt x", "tilt y"))

    def to_matrix(self, theta: Tensor) -> Tensor:
        """The 3×3 matrix, its last entry one."""
        rest = torch.zeros_like(theta[..., :1])
        eye = torch.eye(3, dtype=theta.dtype, device=theta.device)
        return torch.cat([theta, rest], dim=-1).unflatten(-1, (3, 3)) + eye

    def from_matrix(self, matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b d"]:
        """The parameters of a 3×3 matrix of any scale."""
        self._split(matrix)
        eye = torch.eye(3, dtype=matrix.dtype, device=matrix.device)
        return (matrix / matrix[..., 2:, 2:] - eye).flatten(-2)[..., :8]

    def move(self, theta: Tensor, points: Tensor) -> Tensor:
        """The points (A p + t) / (1 + g · p), far outside where the denominator is not positive."""
        return self._seen(self.to_matrix(theta), points)

    def invert(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        r"""The points :math:`T_\theta^{-1}(p)`, in closed form: far outside where nothing before the horizon goes to p,
        NaN where a map is flat.

        By the inverse matrix as it is: made to end in one, as parameters are, it would take what is before the horizon
        for what is behind it wherever the map sends the centre itself behind.
        """
        found, flat = torch.linalg.inv_ex(self.matrix(theta))
        return self._seen(found, points).masked_fill(flat[..., None, None] != 0, torch.nan)

    def _seen(self, matrix: Tensor, points: Tensor) -> Tensor:
        moved = self._mapped(matrix, points)
        row = matrix[..., None, 2, :]
        below = row[..., 2] + row[..., 0] * points[..., 0] + row[..., 1] * points[..., 1]
        ahead = (below > self.horizon)[..., None]
        return torch.where(ahead, moved / torch.where(ahead, below[..., None], 1.0), 2 * LIMIT).clamp(
            -2 * LIMIT, 2 * LIMIT
        )
