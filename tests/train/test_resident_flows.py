"""The flow of a CPAB family in a step's kernel against that in float64: ends, and gradients to the velocities."""

import host
import pytest
import torch

from pstn.families import CPAB
from pstn.kernels.lattice import lattice
from pstn.train.fleet.resident.flows import _apart, _matrix

STEP = """
extern "C" void step(
    const float* field, const float* points, const float* slopes, float* ends, float* sums, int count) {{
  const auto velocity = [&](int v) {{ return field[v]; }};
  for (int i = 0; i < count; ++i) {{
    const float x = points[2 * i], y = points[2 * i + 1];
    const auto end = cpab::walk<{0}, {1}, false>(x, y, velocity);
    ends[2 * i] = end[0], ends[2 * i + 1] = end[1];
    cpab::pull<{0}, {1}>(x, y, slopes[2 * i], slopes[2 * i + 1], velocity,
                         [&](int v, float amount) {{ ATOMIC_ADD(sums[v], amount); }});
  }}
}}
"""


def flown(family, theta, points, slopes):
    """Ends and the gradient to θ by the kernel's words."""
    field = lattice(family, theta[None, None])[0, 0, 2:].contiguous()
    ends, sums = torch.full_like(points, torch.nan), torch.zeros_like(field)
    run = host.alone(STEP.format(*family.cells), 0, 1)
    run((1, 1, 1), (1, 1, 1), [field, points, slopes, ends, sums, len(points)], 0)
    return ends, family.basis.flatten(1).float() @ (sums @ _matrix(family.cells))


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize(("cells", "zero_boundary"), [((1, 1), True), ((3, 3), True), ((2, 5), False)])
def test_ends_and_gradients_are_those_of_the_family(cells, zero_boundary, spread):
    family = CPAB(cells, zero_boundary=zero_boundary)
    theta = spread * family.prior(0.5, 1.0).sample()
    edges = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [1.0, -1.0], [1 / 3, 1 / 3], [-1.3, 0.2], [0.4, 5.0]])
    points, slopes = torch.cat([2 * torch.rand(200, 2) - 1, edges]), torch.randn(207, 2)
    exact = theta.double().requires_grad_()
    wanted = family(exact, points.double())
    slopes[200:] = 0.0  # where a way runs along an edge it has two slopes
    (gradient,) = torch.autograd.grad(wanted, exact, slopes.double())
    ends, found = flown(family, theta, points, slopes)
    torch.testing.assert_close(ends, wanted.float(), atol=3e-6, rtol=3e-6)
    assert (found - gradient).norm() <= 1e-5 * gradient.norm()


def test_ways_that_squeeze_are_taken_apart():
    family = CPAB((4, 4), zero_boundary=False)
    nodal = (-18 * family.mesh.nodes).clamp(-9, 9)  # all that is there runs to the middle, to e⁻¹⁸ of its distance
    theta = (family.basis.flatten(1) @ nodal.flatten()).float()
    points, slopes = 1.8 * torch.rand(60, 2) - 0.9, torch.randn(60, 2)
    exact = theta.double().requires_grad_()
    wanted = family(exact, points.double())
    (gradient,) = torch.autograd.grad(wanted, exact, slopes.double())
    ends, found = flown(family, theta, points, slopes)
    torch.testing.assert_close(ends, wanted.float(), atol=3e-6, rtol=0.0)
    assert (found - gradient).norm() <= 1e-4 * gradient.norm()


@pytest.mark.parametrize("count", [1, 2, 3, 8, 143, 784, 1000])
def test_a_stride_meets_all_points_once(count):
    assert sorted(k * _apart(count) % count for k in range(count)) == list(range(count))
