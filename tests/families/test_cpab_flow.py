"""The flow of CPAB is exact: against independent integration, forth and back, and in its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from pstn.families.cpab import CPAB, compiled, walk
from pstn.families.cpab import flow as operators
from pstn.families.cpab.flow import adjoint, flow

DIMENSIONS = [(6,), (3, 2), (2, 1, 2)]


@pytest.fixture(params=["torch", "numba"] if compiled.available() else ["torch"])
def engine(request, monkeypatch):
    """Both ways to walk, where Numba is installed; that they agree is checked without it, too."""
    monkeypatch.setattr(operators, "use_numba", request.param == "numba")


def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw(family, batch, scale=0.5, seed=0):
    return scale * torch.randn(batch, family.dim, dtype=torch.float64, generator=generator(seed))


def scatter(n, k, width=1.0, seed=1):
    return width * (2 * torch.rand(n, k, dtype=torch.float64, generator=generator(seed)) - 1)


def reference(family, theta, points):
    """Each point by itself: matrix exponentials in a cell, the exit by bisection, the next cell by brute force."""
    mesh = family.mesh
    simplices, nodes = mesh.simplices[: mesh.inside].numpy(), mesh.nodes.numpy()
    velocity = family.nodal(theta).numpy()
    homogeneous = np.concatenate([nodes, np.ones((len(nodes), 1))], axis=1)[simplices].transpose(0, 2, 1)
    inverse = np.linalg.inv(homogeneous)
    affine = velocity[simplices].transpose(0, 2, 1) @ inverse  # (c, k, k + 1)
    generators = np.concatenate([affine, np.zeros_like(affine[:, :1])], axis=1)

    def inside(cell, x):
        return (inverse[cell] @ x).min()

    ends = []
    for point in points.numpy():
        x, left = np.append(point, 1.0), 1.0
        while left > 0:
            cell = int(np.argmax((inverse @ x).min(1)))
            ahead = x + 1e-9 * generators[cell] @ x  # on a face, the cell that the point moves into
            cell = int(np.argmax((inverse @ ahead).min(1)))
            grid = np.linspace(0, left, 65)
            step = expm(generators[cell] * grid[1])
            early, y = 0.0, x
            for late in grid[1:]:
                y = step @ y
                if inside(cell, y) < -1e-14:
                    break
                early = late
            else:
                x, left = y, 0.0
                continue
            for _ in range(60):
                middle = (early + late) / 2
                out = inside(cell, expm(generators[cell] * middle) @ x) < 0
                early, late = (early, middle) if out else (middle, late)
            x, left = expm(generators[cell] * late) @ x, left - late
        ends.append(x[:-1])
    return torch.from_numpy(np.stack(ends))


@pytest.mark.parametrize("cells", DIMENSIONS)
@pytest.mark.parametrize("seed", range(3))
def test_positions_are_exact(cells, seed, engine):
    family = CPAB(cells)
    theta, points = draw(family, 1, seed=seed)[0], scatter(10, family.ndim, seed=seed)
    theta = theta / (family(theta, points) - points).abs().max()  # about half the domain
    assert 0.4 < (family(theta, points) - points).abs().max() < 1.3
    assert (family(theta, points) - reference(family, theta, points)).abs().max() < 1e-12
    theta, points = theta.float(), points.float()
    found = family(theta, points)
    assert found.dtype == torch.float32
    assert (found - reference(family, theta.double(), points.double())).abs().max() < 1e-6


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("cells", DIMENSIONS)
def test_there_and_back(cells, zero, engine):
    family = CPAB(cells, zero)
    theta, points = draw(family, 50), scatter(40, family.ndim, 1.2)
    there = family(theta, points)
    assert (family(-theta, there) - points).abs().max() < 1e-10
    theta, points = theta.float(), points.float()
    there = family(theta, points)
    stretch = jacobian(family, -theta, there).abs().amax((-1, -2))
    missed = (family(-theta, there) - points).abs().amax(-1)
    assert (missed / stretch.clamp(min=1)).max() < 1e-6


def jacobian(family, theta, points):
    points = points.expand(*theta.shape[:-1], *points.shape[-2:]).clone().requires_grad_()
    moved = family(theta, points)
    rows = [torch.autograd.grad(moved[..., i].sum(), points, retain_graph=True)[0] for i in range(family.ndim)]
    return torch.stack(rows, dim=-2)


@pytest.mark.parametrize("cells", DIMENSIONS)
def test_ten_thousand_fields_never_fold(cells):
    family = CPAB(cells)
    theta, points = draw(family, 10_000, scale=0.7), scatter(2, family.ndim)
    derivative = jacobian(family, theta, points)
    sign, log = torch.linalg.slogdet(derivative)
    assert (sign > 0).all()
    # Where the map squeezes unevenly a determinant cancels; the integral of the divergence does not.
    uneven = derivative.flatten(-2).norm(dim=-1).pow(family.ndim) / log.exp()
    assert ((log - family.log_det(theta, points)).abs() < 1e-13 * uneven.clamp(min=10)).all()


def test_ten_thousand_fields_are_monotone():
    family = CPAB(12)
    theta, points = draw(family, 10_000, scale=0.7), scatter(20, 1).sort(0).values
    step = family(theta, points).diff(dim=-2)
    assert (step > -1e-15).all()
    assert (step > 0).float().mean() > 0.999  # rounding may merge points that are squeezed together


def located(family, nodal, points):
    where, b = family.mesh.locate(points)
    return walk.Field(nodal, family.mesh), where[None], b[:, None]


@pytest.mark.parametrize("zero", [True, False])
def test_the_closed_form_agrees_with_the_walk(zero):
    """Two ways to integrate in 1-D, with steep cells, fixed points, nodes and points outside among the cases."""
    family = CPAB(9, zero)
    points = torch.cat([scatter(40, 1, 1.2), family.mesh.nodes, family.mesh.nodes[:-1] + 0.1])[None]
    theta = torch.cat([draw(family, 20, scale) for scale in (0.0, 0.1, 1.0, 6.0)])
    theta[3::7, ::2] = 0
    nodal = family.nodal(theta)
    field, where, b = located(family, nodal, points[0])
    end, growth, tape = walk.carry(field, where, b, record=True)
    found, swollen = flow(nodal, points, (9,))
    torch.testing.assert_close(found.flatten(0, 1), end, rtol=0, atol=1e-13)
    torch.testing.assert_close(swollen.flatten(), growth, rtol=1e-11, atol=1e-11)

    random = torch.randn(found.shape, dtype=torch.float64, generator=generator(3))
    stretch = swollen.exp().amax(1, keepdim=True)[..., None].clamp(min=1)  # up to 1e12 at points that fly apart
    own = points.expand(len(theta), -1, -1)
    # The derivative of a log-determinant divides by the velocity at each face, and loses digits where that is small.
    for pull, swell, tolerance in ((random, None, 1e-10), (0 * random, random[..., 0], 1e-7)):
        flat = None if swell is None else swell.flatten()
        to_nodal, to_points = walk.retrace(field, tape, pull.flatten(0, 1), flat)
        by_nodal, by_points = adjoint(nodal, own, (9,), None, pull, swell)
        torch.testing.assert_close(by_nodal / stretch, to_nodal / stretch, rtol=0, atol=tolerance)
        torch.testing.assert_close(by_points / stretch, to_points.view_as(by_points) / stretch, rtol=0, atol=tolerance)


@pytest.mark.parametrize("cells", [(2, 2), (1, 2, 1)])
@pytest.mark.parametrize("zero", [True, False])
def test_the_compiled_walk_agrees_with_the_vectorised_one(cells, zero):
    """Plain Python does what Numba does: the test does not need it."""
    family = CPAB(cells, zero)
    points = torch.cat([scatter(6, family.ndim, 1.2), family.mesh.nodes[:3], torch.full((1, family.ndim), torch.nan)])
    nodal = family.nodal(torch.cat([draw(family, 2, 1.0), family.zeros(1).double()]))
    field, where, b = located(family, nodal, points)
    end, growth, _ = walk.carry(field, where, b)
    with np.errstate(all="ignore"):
        found, swollen, _ = compiled.carry(field, where, b)
    torch.testing.assert_close(found, end, rtol=0, atol=1e-13, equal_nan=True)
    torch.testing.assert_close(swollen, growth, rtol=0, atol=1e-12)
    field, where, b = located(family, nodal, points[:-1])
    end, swell, tape = walk.carry(field, where, b, record=True)
    pull = torch.randn(end.shape, dtype=torch.float64, generator=generator(5))
    swell = torch.randn(swell.shape, dtype=torch.float64, generator=generator(6))
    expected = walk.retrace(field, tape, pull, swell)
    with np.errstate(all="ignore"):
        slopes = compiled.retrace(field, compiled.carry(field, where, b, record=True)[2], pull, swell)
    for found, right in zip(slopes, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def special(family):
    """Random points, and points on faces, at corners and centres, and in the middle of edges."""
    nodes = family.mesh.nodes
    inner = nodes[(nodes.abs() < 1).all(1)]
    simplices = nodes[family.mesh.simplices[: family.mesh.inside]]
    faces = simplices[::5, :-1].mean(1)
    edges = simplices[::5, :2].mean(1)
    points = torch.cat([scatter(3, family.ndim), inner[:3], faces[:4], edges[:4]])
    return points[(points.abs() < 1).all(1)]


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("cells", [(4,), (2, 2), (2, 1, 1)])
def test_gradients(cells, zero, engine):
    """At random parameters and at the identity; of positions and of log-determinants."""
    family = CPAB(cells, zero)
    theta, points = draw(family, 1, 0.4).requires_grad_(), special(family).requires_grad_()
    assert torch.autograd.gradcheck(family, (theta, points))
    assert torch.autograd.gradcheck(family, (torch.zeros_like(theta).requires_grad_(), points))
    points = scatter(3, family.ndim).requires_grad_()
    assert torch.autograd.gradcheck(family.log_det, (theta, points))
    times = torch.tensor([0.5, -1.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(family.flow, (theta, points, times))
    assert torch.autograd.gradcheck(family.velocity, (theta, points))


@pytest.mark.parametrize("cells", [(64,), (12, 12)])
def test_gradients_are_finite_in_the_steepest_fields(cells, engine):
    """Velocities as far apart as they come, on narrow cells that nothing crosses."""
    family = CPAB(cells)
    theta, points = draw(family, 20, 30.0).requires_grad_(), scatter(20, family.ndim, 1.2).requires_grad_()
    for function in (family, family.log_det):
        there = function(theta, points)
        assert there.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(there.sum(), (theta, points)))


def rim(k):
    """Points of every face, edge and corner of the domain, and which way each coordinate may go: inwards, or both."""
    inner = scatter(3**k, k, seed=7)
    side = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)] * k).reshape(-1, k)
    points = torch.where(side == 0, inner, side)
    return points[(side != 0).any(1)], side[(side != 0).any(1)]


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("cells", [(4,), (2, 2), (2, 1, 1)])
def test_gradients_to_parameters_on_the_border(cells, zero, engine):
    """At every face, edge and corner of the domain, also at the identity and of log-determinants."""
    family = CPAB(cells, zero)
    border, _ = rim(family.ndim)
    theta = draw(family, 1, 0.4).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: family(t, border), (theta,))
    assert torch.autograd.gradcheck(lambda t: family(t, border), (torch.zeros_like(theta).requires_grad_(),))
    if zero:  # else a way may begin with the crossing of the border, and a determinant feels when
        assert torch.autograd.gradcheck(lambda t: family.log_det(t, border), (theta,))


@pytest.mark.parametrize("cells", [(4,), (2, 2), (2, 1, 1)])
def test_gradients_to_points_on_a_border_that_is_crossed(cells, engine):
    """It is like any other face, from both sides."""
    family = CPAB(cells, zero_boundary=False)
    border, _ = rim(family.ndim)
    # a step of eps spends a time like eps on the other side, which costs as much
    assert torch.autograd.gradcheck(family, (draw(family, 1, 0.4), border.requires_grad_()), eps=1e-7)


@pytest.mark.parametrize("cells", [(4,), (2, 2), (2, 1, 1)])
def test_gradients_to_points_on_a_border_that_is_kept(cells, engine):
    """At a face, an edge, a corner the derivative is one-sided, and taken into the cell where the point was found.

    Where cells meet at an edge or a corner that does not move, each direction has a derivative of its own, and it is
    that of the points next to it; what is said at the point itself holds for the directions of its own cell.
    """
    family = CPAB(cells)
    theta, (border, side) = draw(family, 3, 0.4), rim(family.ndim)
    exact, start, k = jacobian(family, theta, border), family(theta, border), family.ndim
    home, _ = family.mesh.locate(border)
    length, told = 1e-6, torch.zeros(len(border), dtype=torch.long)
    for direction in torch.randn(24, k, dtype=torch.float64, generator=generator(8)):
        # inwards where the point is on the border; along it, whichever way
        inward = torch.where(side == 0, direction, -side * direction.abs())
        near = border + length * inward
        quotient = (family(theta, near) - start) / length
        beside = (jacobian(family, theta, near) * inward[:, None]).sum(-1)
        torch.testing.assert_close(quotient, beside, rtol=1e-4, atol=1e-4)
        # as long as all of the way is one through the same cells
        same = (jacobian(family, theta, near) - exact).abs().amax((-1, -2)) < 1e-4
        here = (exact * inward[:, None]).sum(-1)
        torch.testing.assert_close(here[same], quotient[same], rtol=1e-4, atol=1e-4)
        smooth = (side != 0).sum(1) == 1
        assert same[:, smooth].all()  # on a face all ways into the domain are alike
        told += same.all(0) & (family.mesh.locate(near)[0] == home)
    assert (told > 0).all()
    # what is on the border stays on it
    stays = (side != 0)[..., None] & (side == 0)[..., None, :]
    assert not stays.any() or exact[:, stays].abs().max() < 1e-14


def test_gradients_of_shared_and_own_points_agree():
    family = CPAB((2, 2))
    theta, points = draw(family, 3), scatter(5, 2).requires_grad_()
    own = points.detach().expand(3, -1, -1).clone().requires_grad_()
    weights = torch.randn(3, 5, 2, dtype=torch.float64, generator=generator(4))
    (shared,) = torch.autograd.grad((family(theta, points) * weights).sum(), points)
    (each,) = torch.autograd.grad((family(theta, own) * weights).sum(), own)
    torch.testing.assert_close(shared, each.sum(0))


@pytest.mark.parametrize("cells", [(4,), (2, 2)])
def test_function_transforms(cells, engine):
    family = CPAB(cells)
    theta, points = draw(family, 3), scatter(5, family.ndim)

    def total(t, p):
        return family(t, p).square().sum()

    grads = torch.func.vmap(torch.func.grad(total), in_dims=(0, None))(theta, points)
    leaf = theta.clone().requires_grad_()
    torch.testing.assert_close(grads, torch.autograd.grad(family(leaf, points).square().sum(), leaf)[0])
    rows = torch.func.jacrev(family, argnums=1)(theta[0], points)
    expected = torch.stack([rows[i, :, i] for i in range(len(points))])
    torch.testing.assert_close(expected, jacobian(family, theta[:1], points)[0])
    both = torch.func.vmap(torch.func.jacrev(family), in_dims=(0, 0))(theta, points.expand(3, -1, -1))
    torch.testing.assert_close(both[1], torch.func.jacrev(family)(theta[1], points))


@pytest.mark.parametrize("cells", [(4,), (2, 2)])
def test_second_derivatives_are_refused_in_words(cells):
    family = CPAB(cells)
    theta = draw(family, 1).requires_grad_()
    (slope,) = torch.autograd.grad(family(theta, scatter(3, family.ndim)).square().sum(), theta, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        slope.sum().backward()


@pytest.mark.parametrize("cells", [(4,), (2, 2)])
def test_torch_export_keeps_the_flow_as_one_operator(cells):
    class Warp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.family = CPAB(cells)

        def forward(self, theta, points):
            return self.family(theta, points)

    family = CPAB(cells)
    theta, points = draw(family, 2), scatter(3, family.ndim)
    program = torch.export.export(Warp(), (theta, points))
    assert any("cpab_flow" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(theta, points), family(theta, points))


def test_a_walk_that_does_not_end_is_reported(monkeypatch, engine):
    family = CPAB((2, 2))
    for module in (walk, compiled):
        monkeypatch.setattr(module, "budget", lambda field: 1)
    with pytest.raises(RuntimeError, match="still on their way"):
        family(draw(family, 4, 2.0), scatter(20, 2))


@pytest.mark.parametrize("cells", [(3, 3), (2, 2, 2)])
def test_fields_full_of_ties_arrive(cells, engine):
    """Whole numbers for velocities and points on the lattice: ways along faces, through corners, to fixed points."""
    family = CPAB(cells)
    theta = torch.randint(-1, 2, (40, family.dim), generator=generator(0)).double()
    axes = [torch.linspace(-1, 1, 4 * n + 1, dtype=torch.float64) for n in cells]
    points = torch.cartesian_prod(*axes)
    points = points[torch.randperm(len(points), generator=generator(1))[:60]]
    there = family(theta, points)
    assert (family(-theta, there) - points).abs().max() < 1e-12
    leaf = theta.clone().requires_grad_()
    family(leaf, points).sum().backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("cells", [(4,), (2, 3), (1, 1, 2)])
def test_shapes_are_known_without_numbers(cells):
    """As tools ask for that find out what a network would need."""
    family = CPAB(cells)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        theta = torch.zeros(3, family.dim, requires_grad=True)
        there = family(theta, torch.zeros(5, family.ndim))
        (gradient,) = torch.autograd.grad(there.sum(), theta)
        assert (there.shape, gradient.shape) == ((3, 5, family.ndim), theta.shape)
