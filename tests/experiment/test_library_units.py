"""Deviations of diffeomorphisms' parameters in the units of the authors' library."""

import pytest
import torch

from experiments.units import library_unit
from pstn.families import CPAB


@pytest.mark.parametrize("cells", [10, 4, (3, 3), (2, 4)])
def test_a_unit_deviation_there_is_so_much_here(cells):
    """Draw coefficients of affine maps as libcpab does, and look at the velocities at the nodes."""
    family = CPAB(cells)
    mesh, basis = family.mesh, family.basis.double()
    simplices = mesh.simplices[: mesh.inside]
    nodes = torch.cat([(mesh.nodes.double() + 1) / 2, torch.ones(len(mesh.nodes), 1).double()], dim=1)
    k = nodes.shape[1] - 1
    # Coefficients (cells, k, k + 1) are free but for this: cells agree on their common nodes, and as our basis does.
    rows = []
    for free in torch.eye(len(simplices) * k * (k + 1)).double().unflatten(1, (-1, k, k + 1)):
        rows.append(torch.einsum("cab,cjb->cja", free, nodes[simplices]).flatten())
    seen = torch.stack(rows, dim=1)  # from coefficients to velocities at each cell's nodes
    allowed = basis[:, simplices].flatten(1)  # those of continuous fields that keep the boundary
    space = torch.linalg.lstsq(seen, allowed.T).solution
    orthonormal = torch.linalg.qr(space).Q
    drawn = orthonormal @ torch.randn(basis.shape[0], 20_000, generator=torch.Generator().manual_seed(0)).double()
    theta = torch.linalg.lstsq(allowed.T, 2 * seen @ drawn).solution
    assert float(theta.square().mean().sqrt()) == pytest.approx(library_unit(family), rel=0.02)
