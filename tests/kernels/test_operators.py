"""The fused warp as a torch operator: opcheck, vmap, torch.compile, second derivatives."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pstn.families import TPS, Projective, Similarity
from pstn.kernels import operators, reference
from pstn.warp import warp

WARP, BACKWARD = torch.ops.pstn.warp.default, torch.ops.pstn.warp_backward.default
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_opcheck(mode):
    x = torch.rand(1, 2, 3, 4, requires_grad=True)
    matrix = torch.eye(3).flatten().repeat(2, 1, 1).requires_grad_()
    fill = torch.tensor([0.1, 0.2])
    torch.library.opcheck(WARP, (x, matrix, None, fill, "affine", (3, 4), "fill", mode), test_utils=CHECKS)
    points = torch.rand(1, 1, 2, 3, 3, requires_grad=True)
    torch.library.opcheck(WARP, (x.detach(), points, None, None, "stored", (3, 3), "border", mode), test_utils=CHECKS)


@pytest.mark.parametrize(("to_image", "to_where"), [(True, True), (True, False), (False, True)])
def test_opcheck_backward(to_image, to_where):
    x, grad = torch.rand(1, 2, 3, 4), torch.rand(2, 1, 2, 3, 3)
    matrix = torch.eye(3).flatten().repeat(2, 1, 1)
    torch.library.opcheck(BACKWARD, (grad, x, matrix, None, None, "affine", "fill", "linear", to_image, to_where))


@pytest.mark.parametrize("family", [Similarity(), Projective(), TPS(2)], ids=lambda f: f.label)
@pytest.mark.parametrize("shared", [False, True], ids=["own array", "shared array"])
@pytest.mark.parametrize("wanted", [(0,), (0, 1)], ids=["to theta", "to both"])
def test_vmap_of_grad_is_a_loop(family, shared, wanted):
    x, theta = torch.rand(2, 1, 3, 4), 0.2 * torch.randn(2, family.dim)

    def loss(t, a):
        return warp(a[None], family, t[None]).square().sum()

    gradient = torch.func.grad(loss, argnums=wanted)
    mapped = torch.func.vmap(gradient, in_dims=(0, None if shared else 0))(theta, x[0] if shared else x)
    with reference():
        looped = [gradient(t.double(), x[0 if shared else i].double()) for i, t in enumerate(theta)]
    for found, truth in zip(mapped, zip(*looped, strict=True), strict=True):
        assert torch.allclose(found.double(), torch.stack(truth), atol=1e-4)


def test_vmap_over_samples_and_over_arrays():
    x, theta = torch.rand(3, 1, 2, 4, 5), 0.2 * torch.randn(2, 3, 1, 4)
    one = torch.func.vmap(lambda a, t: warp(a, Similarity(), t), in_dims=(0, 1), out_dims=1)(x, theta)
    two = torch.func.vmap(lambda t: warp(x[0], Similarity(), t))(theta[:, 0])
    three = torch.func.vmap(lambda a: warp(a, Similarity(), theta[0, 0]))(x)
    with reference():
        assert torch.allclose(one, warp(x[:, 0], Similarity(), theta[:, :, 0])[:, :, None], atol=1e-5)
        assert torch.allclose(two, torch.stack([warp(x[0], Similarity(), t) for t in theta[:, 0]]), atol=1e-5)
        assert torch.allclose(three, torch.stack([warp(a, Similarity(), theta[0, 0]) for a in x]), atol=1e-5)


@pytest.mark.parametrize("own", [(True, True), (True, False), (False, True), (False, False)])
def test_vmap_over_fill_is_a_loop(own):
    """With arrays and parameters of their own, or shared; values and gradients to theta."""
    fill, x, theta = torch.rand(3, 2), torch.rand(3, 2, 2, 4, 5), 0.4 * torch.randn(3, 2, 4)

    def loss(t, a, f):
        out = warp(a, Similarity(), t, fill=f)
        return out.square().sum(), out

    gradient = torch.func.grad(loss, has_aux=True)
    own_x, own_theta = own
    inputs = (theta if own_theta else theta[0], x if own_x else x[0], fill)
    found = torch.func.vmap(gradient, in_dims=(0 if own_theta else None, 0 if own_x else None, 0))(*inputs)
    with reference():
        looped = [gradient(theta[i * own_theta], x[i * own_x], fill[i]) for i in range(3)]
    for one, many in zip(found, zip(*looped, strict=True), strict=True):
        assert torch.allclose(one, torch.stack(many), atol=1e-4)


def test_nested_vmap_over_fill():
    fill, x, theta = torch.rand(2, 3, 1), torch.rand(1, 1, 4, 4), 0.4 * torch.randn(1, 4)
    found = torch.func.vmap(torch.func.vmap(lambda f: warp(x, Similarity(), theta, fill=f)))(fill)
    with reference():
        looped = [[warp(x, Similarity(), theta, fill=f) for f in row] for row in fill]
    assert torch.allclose(found, torch.stack([torch.stack(row) for row in looped]), atol=1e-5)


def test_a_gradient_to_fill_comes_from_the_plain_path():
    x, theta, fill = torch.rand(1, 2, 4, 4), torch.full((1, 4), 0.4), torch.rand(2)

    def loss(f):
        return warp(x, Similarity(), theta, fill=f).square().sum()

    with reference():
        truth = torch.func.grad(loss)(fill)
    assert truth.abs().min() > 0
    assert torch.allclose(torch.func.grad(loss)(fill), truth)


def test_compiles_without_a_graph_break():
    x, theta = torch.rand(1, 1, 4, 5), (0.1 * torch.randn(2, 1, 4)).requires_grad_()

    def loss(x, theta):
        return warp(x, Similarity(), theta).square().sum()

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    one, two = compiled(x, theta), loss(x, theta)
    assert torch.allclose(one, two)
    assert torch.allclose(*(torch.autograd.grad(value, theta)[0] for value in (one, two)))


def test_second_derivatives_say_where_to_find_them():
    x, theta = torch.rand(1, 1, 3, 4), torch.full((1, 4), 0.1, requires_grad=True)

    def second():
        (first,) = torch.autograd.grad(warp(x, Similarity(), theta).square().sum(), theta, create_graph=True)
        return torch.autograd.grad(first.sum(), theta)

    with pytest.raises(RuntimeError, match=r"pstn\.kernels\.reference"):
        second()


def test_only_what_is_asked_for_is_computed():
    x, matrix = torch.rand(1, 1, 3, 3), torch.eye(3).flatten().repeat(1, 1, 1)
    image, places = operators.warp_backward(
        torch.rand(1, 1, 1, 3, 3), x, matrix, None, None, "affine", "fill", "linear", False, False
    )
    assert image.numel() == places.numel() == 0


def test_eager_calls_go_around_the_dispatcher_and_agree_with_it():
    x, where = torch.rand(1, 2, 3, 4, requires_grad=True), torch.eye(3).flatten().repeat(2, 1, 1).requires_grad_()
    inputs = (x, where, None, None, "affine", (3, 4), "fill", "linear")
    one, two = operators.warp(*inputs), WARP(*inputs)
    assert "Eager" in type(one.grad_fn).__name__
    assert "Eager" not in type(two.grad_fn).__name__
    assert torch.equal(one, two)
    weights = torch.rand(one.shape)
    for a, b in zip(*(torch.autograd.grad(out, (x, where), weights) for out in (one, two)), strict=True):
        assert torch.equal(a, b)


def test_a_dispatch_mode_sees_the_operator():
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        warp(torch.rand(1, 1, 3, 3), Similarity(), torch.zeros(1, 4))
    assert WARP in seen
