"""What a deviation of θ in the authors' library for diffeomorphisms is in ours."""

from functools import cache

import torch

from pstn.families import CPAB


@cache
def library_unit(family: CPAB) -> float:
    r"""The root mean square deviation of our θ where that of libcpab's is 1.

    There, θ are coordinates in an orthonormal basis of the coefficients of all cells' affine maps, on the unit cube;
    here, of velocities at the nodes, on [-1, 1]. The coefficients are linear in our θ, :math:`a = K\theta / 2`, so that
    :math:`\theta_\text{theirs} \sim N(0, 1)` is :math:`\theta \sim N(0, 4 (K^T K)^{-1})`.

    Example:
        >>> round(library_unit(CPAB((3, 3))), 4), round(library_unit(CPAB(10)), 4)
        (0.2033, 0.2253)
    """
    mesh, basis = family.mesh, family.basis.double()
    simplices = mesh.simplices[: mesh.inside]
    corners = (mesh.nodes[simplices].double() + 1) / 2
    ones = torch.ones(*corners.shape[:2], 1, dtype=corners.dtype)
    maps = torch.linalg.inv(torch.cat([corners, ones], dim=-1).mT)  # from velocities at the corners to coefficients
    coefficients = torch.einsum("dcja,cjb->dcab", basis[:, simplices], maps).flatten(1)
    return float((4 * torch.linalg.inv(coefficients @ coefficients.T)).diagonal().mean().sqrt())
