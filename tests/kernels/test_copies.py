"""Steps whose convolutions share the copies that tensor cores read."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from pstn.kernels import convolve as fused
from pstn.kernels import halves
from pstn.nets import resnet18
from pstn.train.fleet.convolve import Products
from pstn.train.fleet.copies import share_copies
from pstn.train.fleet.record import record


@pytest.fixture(autouse=True)
def dense(monkeypatch):
    """Everything goes to the kernels for tensor cores."""
    for name in ("CHANNELS", "TAPS", "PRODUCTS"):
        monkeypatch.setattr(fused, name, 0)


def recorded(step, inputs):
    """A step as it is recorded, and with shared copies; the operators of each."""
    modules = [record(step, inputs), share_copies(record(step, inputs))]
    return modules, [Counter(n.target._opname for n in m.graph.nodes if "pstn" in str(n.target)) for m in modules]


def stacked(network, shape, count=2):
    """A step of stacked copies of a network with weights of their own, and its inputs."""
    weights = [torch.randn(count, *p.shape) for p in network.parameters()]
    names = [name for name, _ in network.named_parameters()]
    still = {name: b.detach().clone().expand(count, *b.shape).clone() for name, b in network.named_buffers()}

    def step(x, *weights):
        weights = [w.detach().requires_grad_() for w in weights]
        kept = {name: value.clone() for name, value in still.items()}
        with torch.enable_grad():
            loss = vmap(one)(x, dict(zip(names, weights, strict=True)), kept)
            return loss.detach(), *torch.autograd.grad(loss.sum(), weights)

    def one(x, weights, still):
        with Products():
            return functional_call(network, (weights, still), (x,)).square().mean()

    return step, [torch.randn(count, *shape), *weights]


@pytest.mark.parametrize("inplace", [False, True])
def test_images_and_slopes_are_copied_once(inplace):
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace), nn.Conv2d(4, 5, 3), nn.LeakyReLU(inplace=inplace)]
    step, inputs = stacked(nn.Sequential(*layers, nn.Conv2d(5, 2, (1, 2))), (2, 1, 6, 5))
    (plain, shared), (before, after) = recorded(step, inputs)
    assert before == {"convolve": 3, "convolve_to_weight": 3, "convolve_to_input": 2}
    # the images of three layers and their slopes, each once
    assert after == {"pack": 6, "packed_convolve": 3, "packed_to_weight": 3, "packed_to_input": 2}
    again = [value + 0.1 * torch.randn_like(value) for value in inputs]
    for a, b, c in zip(shared(*again), plain(*again), step(*[v.double() for v in again]), strict=True):
        assert torch.equal(a, b)
        assert (a - c).abs().max() <= 1e-2 * c.abs().max()


def test_a_residual_network_with_strides():
    step, inputs = stacked(resnet18(2, width=4, small=True), (2, 3, 8, 8))
    (plain, shared), (before, after) = recorded(step, inputs)
    assert before["convolve"] == before["convolve_to_weight"] == 20
    assert after["pack"] < 40, "a block's shortcut reads the same image as its first layer"
    assert after["convolve_to_input"] > 0, "with a stride, slopes are spread before they are copied"
    for a, b in zip(shared(*inputs), plain(*inputs), strict=True):
        assert torch.equal(a, b)


def test_what_is_written_to_is_copied_again():
    kernels = torch.randn(2, 4, 3, 2, 2)

    def step(x):
        x = x.clone()
        view = x.view(2, 2, 3, 25)
        before = fused.convolve(x, kernels, None, (1, 1), (0, 0))
        view.mul_(2)
        return before, fused.convolve(x, kernels, None, (1, 1), (0, 0))

    x = torch.randn(2, 2, 3, 5, 5)
    (_, shared), (_, after) = recorded(step, [x])
    assert after["pack"] == 2
    once, twice = shared(x)
    torch.testing.assert_close(twice, 2 * once)


def test_other_convolutions_are_left_alone(monkeypatch):
    monkeypatch.setattr(fused, "PRODUCTS", 10**9)
    step, inputs = stacked(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 3)), (2, 1, 6, 5))
    _, (before, after) = recorded(step, inputs)
    assert after == before
    assert "pack" not in recorded(lambda x: F.relu(x), [torch.randn(3)])[1][1]


@pytest.mark.parametrize("count", [1, 5, 8192, 8193, 20_000])
def test_the_largest_number(count):
    x = torch.randn(3, count)
    x[1, count // 2] = -1e30
    top = torch.empty(3)
    halves.largest(top, x)
    assert torch.equal(top, x.abs().amax(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.0, 1e-45, -0.0])
def test_the_largest_number_of_odd_ones(value):
    x, top = torch.zeros(2, 9), torch.empty(2)
    x[0, 3] = value
    halves.largest(top, x)
    torch.testing.assert_close(top, x.abs().amax(1), rtol=0, atol=0, equal_nan=True)


def test_the_largest_number_wherever_it_lies():
    whole = torch.randn(2, 6, 7, 8)
    ways = {
        "turned": whole.transpose(1, 3), "a part": whole[:, 1:5, ::2, 3:], "repeated": whole[:, :1].expand(2, 6, 7, 8),
        "every other": whole[:, :, :, ::2], "one for all": whole[:1].expand(4, 6, 7, 8),
    }  # fmt: skip
    for name, x in ways.items():
        top = torch.empty(len(x))
        halves.largest(top, x)
        assert torch.equal(top, x.abs().amax((1, 2, 3))), name


def test_operators_say_the_shapes_that_they_return():
    x, weight = torch.randn(2, 2, 2, 5, 6), torch.randn(2, 3, 2, 3, 2)
    across = halves.columns(weight.shape, (1, 1))
    image, slopes = fused.pack(x, across, 1), fused.pack(torch.randn(2, 2, 3, 5, 7), 1, 0)
    checks = ("test_schema", "test_faketensor")
    how = ([1, 1], [1, 1])
    for operator, arguments in {
        fused.pack: (x, across, 1),
        fused.packed_forward: (*image, weight, None, [5, 7], *how),
        fused.packed_to_input: (*slopes, weight, [5, 6], [1, 1]),
        fused.packed_to_weight: (*slopes, *image, [3, 2, 3, 2], *how),
    }.items():
        torch.library.opcheck(operator, arguments, test_utils=checks)
