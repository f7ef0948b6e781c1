"""There and back: the pose that undoes a pose, without asking the device whether it exists."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.affine import MatrixFamily
from pstn.families.base import Family


def undo(family: Family, theta: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    r"""The :math:`\theta'` with :math:`T_{\theta'} = T_\theta^{-1}`, in closed form for matrices of the plane.

    The general inverse of a matrix waits for the device to say that the matrix was regular, which a recorded step of
    a GPU cannot do. Members of the families have positive determinants, up to clamping.

    Arguments:
        family: The family; one that has an inverse.
        theta: Its parameters, (*b, d).

    Example:
        >>> from pstn.families import Similarity
        >>> undo(Similarity(), torch.tensor([0.1, 0.5, 0.2, 0.0]))
        tensor([-0.1000, -0.5000, -0.1207,  0.0121])
    """
    if not isinstance(family, MatrixFamily) or family.ndim != 2:
        return family.inverse(theta)
    first, second, third = family.matrix(theta).unbind(-2)
    cross = torch.linalg.cross
    columns = torch.stack([cross(second, third), cross(third, first), cross(first, second)], dim=-1)
    determinant = (first * columns[..., 0]).sum(-1)
    safe = torch.where(determinant.abs() < 1e-12, 1e-12, determinant)
    return family.from_matrix(columns / safe[..., None, None])
