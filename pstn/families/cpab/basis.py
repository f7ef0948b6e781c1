"""From parameters to velocities at the nodes: which fields a CPAB family has."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.cpab.tessellation import Tessellation

#: What is left of a unit vector, below which it counts as a combination of those before it.
_NOTHING = 1e-7


def basis(mesh: Tessellation, zero_boundary: bool, volume_preserving: bool) -> Float[Tensor, "d m k"]:
    r"""An orthonormal basis of the nodal velocities that the constraints allow, the same on every machine.

    A field that is affine on every simplex and continuous is given by its velocities at the nodes, and any such
    velocities give one. With ``zero_boundary`` nothing leaves the domain: the component normal to the border is zero
    there. What remains are single components of single nodes, in the order of the nodes, x before y before z. With
    ``volume_preserving`` the trace of each simplex' affine map is zero. These fields are a linear space; its basis is
    Gram and Schmidt's, applied to the projections of the single components in their order, which fixes order and sign.

    Arguments:
        mesh: The tessellation.
        zero_boundary: Whether the border stays the border.
        volume_preserving: Whether the divergence is zero in the whole domain.

    Returns:
        The basis, with shape (d, nodes, k).

    Example:
        >>> from pstn.families.cpab.tessellation import tessellation
        >>> basis(tessellation((3, 3)), zero_boundary=True, volume_preserving=False).shape
        torch.Size([34, 25, 2])
    """
    m, k = mesh.nodes.shape
    free = mesh.nodes.abs() < 1 if zero_boundary else torch.ones_like(mesh.nodes, dtype=torch.bool)
    single = torch.eye(m * k, dtype=mesh.nodes.dtype, device=mesh.nodes.device)[free.flatten()]
    if volume_preserving and len(single):
        single = _orthonormal(_projector(_divergence(mesh)[:, free.flatten()])) @ single
    return single.reshape(-1, m, k)


def _divergence(mesh: Tessellation) -> Float[Tensor, "c mk"]:
    """The divergence in each simplex of the domain, as a linear map of the nodal velocities."""
    m, k = mesh.nodes.shape
    table = mesh.nodes.new_zeros(mesh.inside, m, k)
    for j in range(k + 1):
        index = mesh.simplices[: mesh.inside, j, None, None].expand(-1, 1, k)
        table.scatter_(1, index, mesh.gradients[: mesh.inside, j, None])
    return table.flatten(1)


def _projector(constraints: Tensor) -> Tensor:
    """The orthogonal projection onto what the constraints send to zero: unique, unlike a basis of it."""
    one = torch.eye(constraints.shape[1], dtype=constraints.dtype, device=constraints.device)
    return one - torch.linalg.pinv(constraints) @ constraints


def _orthonormal(vectors: Tensor) -> Tensor:
    """Gram and Schmidt's basis of the rows' span, twice over, since once loses digits."""
    found = vectors[:0]
    for vector in vectors:
        for _ in range(2):
            vector = vector - found.T @ (found @ vector)
        if (size := vector.norm()) > _NOTHING:
            found = torch.cat([found, (vector / size)[None]])
    return found
