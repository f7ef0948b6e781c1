"""The fused CPAB warp against the torch walk in float64: positions, values and gradients."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from pstn import kernels
from pstn.families.cpab import CPAB
from pstn.kernels import cpab
from pstn.kernels import lattice as maps
from pstn.kernels.lattice import lattice
from pstn.warp import warp


@triton.jit
def place(out, points, where, count, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    live = k < count
    p = (tl.load(points + 2 * k, mask=live, other=0.0), tl.load(points + 2 * k + 1, mask=live, other=0.0))
    u = cpab.place(cpab.read(where, (1,), 2, COUNT), where, (1,), (k, k), p, live, 2, COUNT)
    tl.store(out + 2 * k, u[0], mask=live)
    tl.store(out + 2 * k + 1, u[1], mask=live)


def moved(family, theta, points):
    """Where one field's kernel sends points."""
    where = lattice(family, theta.view(1, 1, -1))
    out = torch.full_like(points, torch.inf)
    block = triton.next_power_of_2(len(points))
    place[(1,)](out, points.contiguous(), where, len(points), where.shape[-1], block)
    return out


def draw(family, *batch, spread=0.3, seed=0):
    torch.manual_seed(seed)
    return spread * family.prior(0.5, 1.0).sample(batch)


def differentiated(x, family, theta, **options):
    x, theta = x.detach().requires_grad_(), theta.detach().requires_grad_()
    out = warp(x, family, theta, **options)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    return out, *torch.autograd.grad(out, (x, theta), weights)


def check(x, family, theta, tolerance=1e-5, **options):
    found = differentiated(x, family, theta, **options)
    truth = differentiated(x.double(), family, theta.double(), **options)
    for name, a, b in zip(("values", "gradient to x", "gradient to theta"), found, truth, strict=True):
        error = (a.double() - b).abs().max() / b.abs().max()
        assert error < tolerance, (name, error)


@pytest.mark.parametrize("zero_boundary", [True, False])
@pytest.mark.parametrize("cells", [(1, 1), (3, 2)])
def test_positions_inside_on_every_edge_and_outside(cells, zero_boundary):
    family = CPAB(cells, zero_boundary=zero_boundary)
    theta = draw(family, seed=1)
    nodes = family.mesh.nodes.float()
    corner = family.mesh.corners[: family.mesh.inside].float()
    middles = (corner + corner.roll(1, 1)).flatten(0, 1) / 2
    points = torch.cat([nodes, middles, 2.4 * torch.rand(40, 2) - 1.2])
    truth = family(theta.double(), points.double())
    assert (truth - points).abs().max() > 0.1
    assert (moved(family, theta, points) - truth).abs().max() < 5e-7


def test_half_the_domain_is_crossed_exactly():
    family = CPAB((4, 4))
    theta, points = draw(family, spread=0.7, seed=3), 2 * torch.rand(64, 2) - 1
    truth = family(theta.double(), points.double())
    assert (truth - points).abs().max() > 1
    assert (moved(family, theta, points) - truth).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("cells", "zero_boundary", "options"),
    [((2, 2), True, {}), ((1, 2), False, {"padding": "border"}), ((3, 2), True, {"fill": 0.5, "size": (5, 10)})],
)
def test_values_and_gradients(cells, zero_boundary, options):
    family = CPAB(cells, zero_boundary=zero_boundary)
    samples = 1 if "size" in options else 2  # (5, 10) is four tiles in as many runs
    check(torch.rand(3 - samples, 2, 5, 6), family, draw(family, samples, 3 - samples), **options)


def test_volume_preserving():
    family = CPAB((2, 2), volume_preserving=True)
    check(torch.rand(1, 1, 5, 6), family, draw(family, 1, 1))


def test_zero_is_the_identity_with_a_gradient():
    family, x = CPAB((2, 2)), torch.rand(1, 1, 5, 6)
    theta = family.zeros(1)
    assert (warp(x, family, theta) - x).abs().max() < 1e-5
    check(x, family, theta, size=(4, 5))  # at other places than pixels, where values have a kink


@triton.jit
def first_root(out, gap, first, second):
    k = tl.arange(0, 1)
    tl.store(out + k, cpab.root(tl.load(gap + k), tl.load(first + k), tl.load(second + k)))


@pytest.mark.parametrize(
    ("gap", "first", "second", "least", "most"),
    [
        (0.5, -1.0, 0.0, 0.5, 0.500001),
        (0.5, -1.0, -1.0, 0.414, 0.415),
        (0.5, 1.0, -1.0, 2.414, 2.415),
        (0.5, -1.0, 2.0, 1e29, 1e31),
        (0.5, 1.0, 1.0, 1e29, 1e31),
        (0.5, 0.0, 0.0, 1e29, 1e31),
        # beyond an edge and not leaving, but about to: some time passes
        (-1e-3, 0.0, -3e-5, 1e-2, 1.0),
        # at rest in a sink: speeds underflow, and the time must pass all the same
        (-1e-43, 1e-41, -1e-39, 1e29, 1e31),
        (-1e-3, -1e-41, -1e-39, 1e29, 1e31),
    ],
)
def test_the_first_root_of_a_parabola(gap, first, second, least, most):
    out = torch.zeros(1)
    first_root[(1,)](out, *(torch.tensor([v]) for v in (gap, first, second)))
    assert least <= out <= most


def test_a_walk_that_does_not_end_is_not_a_number(monkeypatch):
    monkeypatch.setattr(cpab, "MOST", tl.constexpr(1))
    family = CPAB((2, 2))
    with np.errstate(invalid="ignore"):
        assert warp(torch.ones(1, 1, 3, 3), family, draw(family, 1, spread=1.0)).isnan().any()


def test_what_the_kernel_leaves_to_the_walk_in_torch():
    family, window = CPAB((2, 2)), torch.tensor([[1.0, 0.0, 0.0]])
    theta = family.zeros(1, 1)

    def kind(family, theta, size, window=None):
        return kernels._where(family, theta, size, window)[0]

    assert kind(family, theta, (3, 3)) == "cpab"
    assert kind(family, theta, (3, 3), window) == "stored"
    assert kind(CPAB(3), CPAB(3).zeros(1, 1), (3,)) == "stored"
    torch.use_deterministic_algorithms(True)
    try:
        assert kind(family, theta, (3, 3)) == "stored"
    finally:
        torch.use_deterministic_algorithms(False)


def test_compiles_without_a_graph_break():
    family, x = CPAB((1, 1)), torch.rand(1, 1, 2, 2)
    theta = draw(family, 1)
    torch.compiler.reset()
    compiled = torch.compile(lambda x, theta: warp(x, family, theta), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, theta), warp(x, family, theta))


@triton.jit
def pull(into, cotangent, points, where, count, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    live = k < count
    p = (tl.load(points + 2 * k, mask=live, other=0.0), tl.load(points + 2 * k + 1, mask=live, other=0.0))
    g = (tl.load(cotangent + 2 * k, mask=live, other=0.0), tl.load(cotangent + 2 * k + 1, mask=live, other=0.0))
    theta = cpab.read(where, (1,), 2, COUNT)
    u = cpab.place(theta, where, (1,), (k, k), p, live, 2, COUNT)
    cpab.pull(0, theta, where, (1,), (k, k), p, u, live, g, into, (1.0, 1.0), 2, COUNT)


def slope(family, theta, points, cotangent):
    """The gradient to one field's parameters of where its kernel sends points."""
    leaf = theta.view(1, 1, -1).requires_grad_()
    where = lattice(family, leaf)
    into = torch.zeros_like(where)
    block = triton.next_power_of_2(len(points))
    pull[(1,)](into, cotangent, points, where.detach(), len(points), where.shape[-1], block)
    return torch.autograd.grad(where, leaf, into)[0].flatten()


def gradients(family, theta, points, cotangent):
    """The kernel's gradient to the parameters, and the torch walk's in float64."""
    leaf = theta.double().requires_grad_()
    (truth,) = torch.autograd.grad((family(leaf, points.double()) * cotangent).sum(), leaf)
    return slope(family, theta, points, cotangent), truth


@pytest.mark.parametrize("seed", [5, 7])
def test_gradients_where_the_map_squeezes_a_thousandfold_and_more(seed):
    """The adjoint is carried forwards, which undoes the squeezing: float32 would leave little of it."""
    family = CPAB((4, 4))
    torch.manual_seed(seed)
    theta, points, cotangent = torch.randn(family.dim), 2 * torch.rand(32, 2) - 1, torch.randn(32, 2)
    found, truth = gradients(family, theta, points, cotangent)
    assert (found - truth).abs().max() < 1e-4 * truth.abs().max()


def test_gradients_where_the_map_squeezes_beyond_float64():
    """Points whose surroundings become a line: in one stretch nothing would be left of the adjoint across it."""
    family, some = CPAB((4, 4)), [2, 25, 32]
    torch.manual_seed(16)
    theta, points, cotangent = 10 * torch.randn(family.dim), 2 * torch.rand(64, 2) - 1, torch.randn(64, 2)
    found, truth = gradients(family, theta, points[some], cotangent[some])
    assert (found - truth).abs().max() < 1e-4 * truth.abs().max()


@pytest.mark.parametrize("squeeze", [1.5, 4.0, 30.0])
def test_gradients_do_not_depend_on_where_stretches_end(monkeypatch, squeeze):
    monkeypatch.setattr(cpab, "SQUEEZE", tl.constexpr(squeeze))
    family = CPAB((2, 2))
    theta, points, cotangent = draw(family, spread=0.7, seed=2), 2 * torch.rand(16, 2) - 1, torch.randn(16, 2)
    found, truth = gradients(family, theta, points, cotangent)
    assert (found - truth).abs().max() < 1e-5 * truth.abs().max()


def test_the_wildest_fields_have_finite_gradients():
    family = CPAB((2, 2))
    torch.manual_seed(0)
    theta, points, cotangent = 3e2 * torch.randn(family.dim), 2 * torch.rand(4, 2) - 1, torch.randn(4, 2)
    assert moved(family, theta, points).isfinite().all()
    assert slope(family, theta, points, cotangent).isfinite().all()


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.compile])
def test_constants_made_inside_a_transform_do_not_outlive_it(monkeypatch, transform):
    monkeypatch.setattr(maps, "_MAPS", {})
    family = CPAB((2, 1))
    theta = family.zeros(1, 1)
    options = {"backend": "aot_eager"} if transform is torch.compile else {}
    transform(lambda theta: lattice(family, theta).sum(), **options)(theta)
    with torch.inference_mode():
        lattice(CPAB((1, 2)), CPAB((1, 2)).zeros(1, 1))
    for kept in maps._MAPS.values():
        for tensor in kept:
            assert type(tensor) is torch.Tensor
            assert not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            assert not tensor.is_inference()
    leaf = theta.requires_grad_()
    assert torch.autograd.grad(lattice(family, leaf).sum(), leaf)[0].isfinite().all()
