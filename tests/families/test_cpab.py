"""What a CPAB family is: its cells, its parameters, its prior, and how it behaves around the domain."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode

from pstn.families import Compose, Similarity
from pstn.families.cpab import CPAB
from pstn.families.cpab.tessellation import tessellation
from pstn.testing import assert_family

KINDS = [((5,), True), ((4,), False), ((3, 3), True), ((2, 1), False), ((2, 1, 2), True), ((1, 2, 1), False)]


def draw(family: CPAB, batch: int, scale: float = 0.5, seed: int = 0) -> torch.Tensor:
    return scale * torch.randn(batch, family.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scatter(n: int, k: int, width: float = 1.0, seed: int = 1) -> torch.Tensor:
    return width * (2 * torch.rand(n, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1)


@pytest.mark.parametrize(("cells", "zero"), [((10,), True), ((3,), False), ((3, 3), True), ((2, 1, 1), False)])
def test_the_laws_of_families(cells: tuple[int, ...], zero: bool) -> None:
    assert_family(CPAB(cells, zero))


def test_the_laws_of_families_hold_for_chains_and_for_volume_preserving_fields() -> None:
    assert_family(Compose(Similarity(), CPAB((2, 2))))
    assert_family(CPAB((2, 2), volume_preserving=True))


@pytest.mark.parametrize(
    ("cells", "zero", "volume", "dim"),
    [
        (10, True, False, 9),
        (1, False, False, 2),
        ((3, 3), True, False, 34),
        ((3, 3), False, False, 50),
        ((3, 3), True, True, 8),
        ((2, 2), False, True, 14),
        ((2, 2, 2), True, False, 27),
        ((3, 3, 3), True, True, 11),
    ],
)
def test_how_many_parameters(cells: int | tuple[int, ...], zero: bool, volume: bool, dim: int) -> None:
    family = CPAB(cells, zero, volume)
    flat = family.basis.flatten(1)
    assert family.dim == dim
    torch.testing.assert_close(flat @ flat.T, torch.eye(dim, dtype=torch.float64))


def test_constraints_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="use more cells or fewer constraints"):
        CPAB(5, zero_boundary=True, volume_preserving=True)
    for cells in ((), (0, 2), (1, 2, 3, 4), (2.0, 2), 2.0):
        with pytest.raises(ValueError, match="cells"):
            CPAB(cells)


def test_cells_are_whole_numbers_of_any_kind() -> None:
    for cells in (np.int64(4), (np.int64(2), 3), np.array([2, 3])):
        family = CPAB(cells)
        assert family.cells in ((4,), (2, 3))
        assert str(family).startswith(f"CPAB({family.cells}")


def test_parameters_are_velocities_in_a_fixed_order() -> None:
    """Saved models depend on it: each parameter is one component at one node, corners before centres, x before y."""
    family = CPAB((2, 1))
    assert family.names == ("x[0.0, -1.0]", "x[0.0, 1.0]", "x[-0.5, 0.0]", "y[-0.5, 0.0]", "x[0.5, 0.0]", "y[0.5, 0.0]")
    theta = torch.arange(1.0, 7.0)
    places = torch.tensor([[0.0, -1.0], [0.0, 1.0], [-0.5, 0.0], [0.5, 0.0]])
    expected = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 4.0], [5.0, 6.0]])
    torch.testing.assert_close(family.velocity(theta, places), expected)


def test_the_basis_of_volume_preserving_fields_is_a_known_one() -> None:
    """Order and sign are fixed: the first field turns about the middle of the first box, and so on."""
    basis = CPAB((2, 2), volume_preserving=True).basis
    first = basis.flatten(1)
    leading = first.abs().gt(1e-9).int().argmax(1)
    assert (leading.diff() > 0).all()
    assert (first.gather(1, leading[:, None]) > 0).all()
    torch.testing.assert_close(CPAB((2, 2), volume_preserving=True).basis, basis, rtol=0, atol=0)


@pytest.mark.parametrize("boxes", [(4,), (3, 2), (2, 1, 3)])
def test_the_tessellation_fills_space_without_gaps(boxes: tuple[int, ...]) -> None:
    mesh, k = tessellation(boxes), len(boxes)
    corners = mesh.corners[: mesh.inside]
    volumes = torch.linalg.det(corners[:, 1:] - corners[:, :1]).abs() / torch.arange(1, k + 1).prod()
    assert volumes.sum() == pytest.approx(2.0**k)
    here = torch.arange(len(mesh.simplices))
    for i in range(k + 1):
        there = mesh.neighbours[:, i]
        inner = there >= 0
        assert inner[: mesh.inside].all()
        assert (mesh.neighbours[there[inner]] == here[inner, None]).any(1).all()
        b = torch.rand(len(here), k + 1, dtype=torch.float64)
        b = b / (b * (mesh.simplices < len(mesh.nodes))).sum(1, keepdim=True)
        moved = (mesh.handover[inner, i] * b[inner, None]).sum(-1)
        before, after = (
            (b[..., None] * mesh.corners).sum(1)[inner],
            (moved[..., None] * mesh.corners[there[inner]]).sum(1),
        )
        torch.testing.assert_close(before, after)


@pytest.mark.parametrize("boxes", [(4,), (3, 2), (2, 1, 3)])
def test_every_point_is_located(boxes: tuple[int, ...]) -> None:
    mesh, k = tessellation(boxes), len(boxes)
    points = torch.cat([scatter(200, k, 1.5), mesh.nodes, (mesh.nodes[:-1] + mesh.nodes[1:]) / 2])
    simplices, b = mesh.locate(points)
    assert b.min() >= -1e-15
    torch.testing.assert_close((b.T[..., None] * mesh.corners[simplices]).sum(1), points)
    assert torch.equal(simplices < mesh.inside, (points.abs() <= 1).all(1))


@pytest.mark.parametrize(("cells", "zero"), KINDS)
def test_the_velocity_is_continuous_and_affine_inside_cells(cells: tuple[int, ...], zero: bool) -> None:
    family = CPAB(cells, zero)
    theta, points = draw(family, 2), torch.cat([scatter(50, family.ndim, 1.3), family.mesh.nodes])
    torch.testing.assert_close(family.velocity(theta, family.mesh.nodes), family.nodal(theta))
    steps = 1e-7 * torch.randn_like(points)
    jump = (family.velocity(theta, points + steps) - family.velocity(theta, points)).abs().max()
    assert jump < 1e-7 * 5 * 2 * family.nodal(theta).abs().max() * max(cells)


@pytest.mark.parametrize("cells", [(5,), (3, 2), (2, 2, 1)])
def test_zero_boundary_keeps_the_border_on_the_border(cells: tuple[int, ...]) -> None:
    family, k = CPAB(cells), len(cells)
    theta = draw(family, 20, scale=2.0)
    for axis in range(k):
        for side in (-1.0, 1.0):
            points = scatter(30, k)
            points[:, axis] = side
            assert (family(theta, points)[..., axis] - side).abs().max() < 1e-14
    inner = family(theta, scatter(50, k))
    assert inner.abs().max() <= 1 + 1e-14


@pytest.mark.parametrize("cells", [(5,), (3, 2), (2, 2, 1)])
def test_outside_points_follow_the_nearest_point_of_the_border(cells: tuple[int, ...]) -> None:
    family, k = CPAB(cells), len(cells)
    theta, points = draw(family, 5), scatter(100, k, 3.0)
    near = points.clamp(-1, 1)
    torch.testing.assert_close(family(theta, points) - points, family(theta, near) - near)
    free = CPAB(cells, zero_boundary=False)
    theta = draw(free, 5)
    torch.testing.assert_close(free.velocity(theta, points), free.velocity(theta, near))
    torch.testing.assert_close(free(-theta, free(theta, points)), points.expand(5, -1, -1))


def test_volume_preserving_maps_preserve_volume() -> None:
    for cells in ((3, 3), (2, 2, 2)):
        family = CPAB(cells, volume_preserving=True)
        theta, points = draw(family, 8), scatter(40, family.ndim)
        assert family.log_det(theta, points).abs().max() < 1e-12
        assert (family(theta, points) - points).abs().max() > 0.1


def test_free_fields_contain_all_affine_flows() -> None:
    """Against the matrix exponential: inside the domain, the field of a linear map is that map."""
    family = CPAB((3, 2), zero_boundary=False)
    matrix = torch.tensor([[0.2, -0.3], [0.4, -0.1]], dtype=torch.float64)
    theta = family.basis.flatten(1) @ (family.mesh.nodes @ matrix.T).flatten()
    points = scatter(50, 2, 0.5)
    torch.testing.assert_close(family(theta, points), points @ torch.linalg.matrix_exp(matrix).T)


def test_times() -> None:
    family = CPAB((3, 3))
    theta, points = draw(family, 3), scatter(20, 2)
    times = torch.tensor([0.0, 0.3, 1.0, -1.0], dtype=torch.float64)
    start, early, end, back = family.flow(theta, points, times)
    torch.testing.assert_close(start, points.expand_as(start))
    torch.testing.assert_close(end, family(theta, points))
    torch.testing.assert_close(back, family.invert(theta, points))
    torch.testing.assert_close(family.flow(theta, early, times.new_tensor([0.7]))[0], end)
    soon = family.flow(theta, points, times.new_tensor([1e-6]))[0]
    torch.testing.assert_close((soon - points) / 1e-6, family.velocity(theta, points), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cells", [(4,), (2, 3), (1, 1, 2)])
@pytest.mark.parametrize(("fields", "sets"), [((), (5,)), ((3,), (2, 1)), ((3, 1), (2,)), ((1,), (5,))])
def test_fields_and_sets_of_points_are_broadcast(
    cells: tuple[int, ...], fields: tuple[int, ...], sets: tuple[int, ...]
) -> None:
    family, times = CPAB(cells), torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8]).double()
    theta = torch.randn(*fields, family.dim, dtype=torch.float64)
    points = torch.rand(*sets, 4, family.ndim, dtype=torch.float64)
    batch = torch.broadcast_shapes(fields, sets)
    each, own = theta.expand(*batch, family.dim), points.expand(*batch, 4, family.ndim)
    torch.testing.assert_close(family.velocity(theta, points), family.velocity(each, own))
    torch.testing.assert_close(family.log_det(theta, points), family.log_det(each, own))
    torch.testing.assert_close(family.flow(theta, points, times), torch.stack([family(t * each, own) for t in times]))


def test_the_prior_correlates_neighbours() -> None:
    family = CPAB(10)
    prior = family.prior(length_scale=0.3, variance=0.25, nugget=0.0)
    torch.testing.assert_close(prior.variance, torch.full((9,), 0.25))
    covariance = prior.covariance_matrix
    torch.testing.assert_close(covariance[0, 1:3], 0.25 * torch.tensor([-0.2, -0.4]).square().div(-2 * 0.09).exp())
    smooth, rough = family.prior(1.0).sample((500,)), family.prior(0.05).sample((500,))
    assert smooth.diff(dim=1).square().mean() < 0.1 * rough.diff(dim=1).square().mean()
    with pytest.raises(ValueError, match="must be positive"):
        family.prior(length_scale=0.0)
    with pytest.raises(ValueError, match="expected one of"):
        family.prior(on="faces")


def test_the_prior_on_cells_is_the_papers() -> None:
    """Covariances of affine coefficients over cells' centres, in an orthonormal basis of the continuous fields."""
    family = CPAB((2, 2))
    mesh, n = family.mesh, family.mesh.inside
    unit, velocity = (mesh.corners[:n] + 1) / 2, family.basis[:, mesh.simplices[:n]] / 2
    homogeneous = torch.cat([unit, torch.ones_like(unit[..., :1])], dim=-1)
    maps = torch.linalg.solve(homogeneous, velocity).transpose(-1, -2).flatten(1)  # (d, cells · 2 · 3)
    q, r = torch.linalg.qr(maps.T)
    centres = unit.mean(1)
    kernel = (-torch.cdist(centres, centres).square() / (2 * 0.2**2)).exp()
    papers = q.T @ torch.kron(kernel, torch.eye(6, dtype=torch.float64)) @ q
    ours = torch.linalg.solve(r, torch.linalg.solve(r, papers).T)
    found = family.prior(0.2, 1.0, on="cells", nugget=0.0).covariance_matrix
    torch.testing.assert_close(found, ours.float(), rtol=1e-3, atol=1e-4)


def test_casting_and_copying_keep_the_tables() -> None:
    family = CPAB((2, 2))
    theta, points = draw(family, 2), scatter(10, 2)
    expected = family(theta, points)
    for other in (copy.deepcopy(family).half(), CPAB((2, 2)).float()):
        torch.testing.assert_close(other(theta, points), expected, rtol=0, atol=0)
    assert not family.state_dict()


@pytest.mark.parametrize("volume", [False, True])
def test_a_family_is_built_where_there_is_no_memory(volume: bool) -> None:
    """As networks are that are only to be described."""
    with torch.device("meta"):
        family = CPAB((2, 2), volume_preserving=volume)
    assert torch.equal(family.basis, CPAB((2, 2), volume_preserving=volume).basis)


def test_points_that_are_not_numbers_stay_so_and_harm_no_others() -> None:
    for cells in ((4,), (2, 2), (1, 1, 2)):
        family = CPAB(cells)
        theta, points = draw(family, 2), scatter(6, family.ndim)
        expected = family(theta, points)
        points[2] = torch.nan
        found = family(theta, points)
        assert found[:, 2].isnan().all()
        keep = [0, 1, 3, 4, 5]
        torch.testing.assert_close(found[:, keep], expected[:, keep])


def test_the_basis_is_copied_to_a_device_once_and_by_no_transform() -> None:
    family, there = CPAB((3, 2)), torch.device("meta")
    theta = draw(family, 2)

    def total(theta: torch.Tensor) -> torch.Tensor:
        seen.append(family._table(there))
        return theta.sum()

    seen: list[torch.Tensor] = []
    torch.func.grad(total)(theta)
    torch.func.vmap(torch.func.grad(total))(theta)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(family._table(there), FakeTensor)
    kept = family._table(there)
    assert type(kept) is torch.Tensor
    assert not any(kept is one for one in seen)
    for same in (family, CPAB((3, 2)), copy.deepcopy(family), pickle.loads(pickle.dumps(family)), family.half()):
        assert same._table(there) is kept
        assert same._table(torch.device("cpu")) is same.basis
    assert CPAB((3, 2), zero_boundary=False)._table(there).shape != kept.shape
    assert family.nodal(theta.to(there)).shape == (2, len(family.mesh.nodes), 2)


def test_empty_batches() -> None:
    for cells in ((4,), (2, 2), (1, 1, 2)):
        family = CPAB(cells)
        assert family(family.zeros(0), scatter(5, family.ndim)).shape == (0, 5, family.ndim)
        assert family(family.zeros(2), scatter(0, family.ndim)).shape == (2, 0, family.ndim)
