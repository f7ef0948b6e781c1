"""Steps whose convolutions share the copies that tensor cores read."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from steps import stacked
from torch import nn
from torch.func import vmap

from pstn.kernels import convolve as fused
from pstn.kernels import halves
from pstn.train.fleet.convolve import Products
from pstn.train.fleet.copies import share_copies
from pstn.train.fleet.record import record


@pytest.fixture(autouse=True)
def dense(monkeypatch):
    """Everything goes to the kernels for tensor cores."""
    for name in ("CHANNELS", "TAPS", "PRODUCTS"):
        monkeypatch.setattr(fused, name, 0)
    monkeypatch.setattr(halves, "ROUNDS", 1)  # the interpreter takes long for each


def recorded(step, inputs):
    """A step as it is recorded, and with shared copies; the operators of each."""
    plain = record(step, inputs)
    modules = [plain, share_copies(copy.deepcopy(plain))]
    return modules, [Counter(n.target._opname for n in m.graph.nodes if "pstn" in str(n.target)) for m in modules]


@pytest.mark.parametrize("inplace", [False, True])
def test_images_and_slopes_are_copied_once(inplace):
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace), nn.Conv2d(4, 2, (1, 2)), nn.LeakyReLU(inplace=inplace)]
    step, inputs = stacked(nn.Sequential(*layers), (2, 1, 4, 3))
    (plain, shared), (before, after) = recorded(step, inputs)
    assert before == {"convolve": 2, "convolve_to_weight": 2, "convolve_to_input": 1}
    # the images of two layers and their slopes, each once
    assert after == {"pack": 4, "packed_convolve": 2, "packed_to_weight": 2, "packed_to_input": 1}
    again = [value + 0.1 * torch.randn_like(value) for value in inputs]
    for a, b, c in zip(shared(*again), plain(*again), step(*[v.double() for v in again]), strict=True):
        assert torch.equal(a, b)
        assert (a - c).abs().max() <= 1e-2 * c.abs().max()


class Block(nn.Module):
    """Two ways from an image, both with a stride."""

    def __init__(self):
        super().__init__()
        self.first, self.short = nn.Conv2d(4, 3, 3, 1, 1), nn.Conv2d(3, 2, 1, 2)
        self.one, self.two, self.norm = nn.Conv2d(3, 2, 3, 2, 1), nn.Conv2d(2, 2, 3, 1, 1), nn.BatchNorm2d(2)

    def forward(self, x):
        x = self.first(x)
        return self.two(self.norm(self.one(x)).relu()) + self.short(x)


def test_a_residual_block_with_strides():
    step, inputs = stacked(Block(), (2, 4, 4, 4))
    (plain, shared), (before, after) = recorded(step, inputs)
    assert before == {"convolve": 4, "convolve_to_weight": 4, "convolve_to_input": 3}
    # two ways lead from one image and two to one sum, so that three images are read and three slopes
    assert after["pack"] == 6
    assert after["convolve_to_input"] == 2, "with a stride, slopes are spread before they are copied"
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
    step, inputs = stacked(nn.Conv2d(1, 2, 2), (1, 1, 3, 3))
    _, (before, after) = recorded(step, inputs)
    assert after == before == {"convolve": 1, "convolve_to_weight": 1}
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
        fused.to_weight_parts: (torch.randn(2, 2, 3, 5, 7), x, [3, 2], *how),
    }.items():
        torch.library.opcheck(operator, arguments, test_utils=checks)


def test_kernels_that_are_not_trained_are_constants_of_the_step():
    """A frozen classifier behind what learns: its kernels are no inputs, and slopes go through them all the same."""
    weight = torch.randn(2, 3, 3, 3)

    def one(x, mine, still):
        with Products():
            h = F.conv2d(x, mine, padding=1)
            return F.conv2d(h.relu(), still).square().mean()

    def step(x, mine):
        mine = mine.detach().requires_grad_()
        with torch.enable_grad():
            loss = vmap(one, in_dims=(0, 0, None))(x, mine, weight)
            return loss.detach(), *torch.autograd.grad(loss.sum(), [mine])

    inputs = [torch.randn(2, 2, 1, 5, 4), torch.randn(2, 3, 1, 3, 3)]
    (plain, shared), (before, after) = recorded(step, inputs)
    assert before == {"convolve": 2, "convolve_to_weight": 1, "convolve_to_input": 1}
    assert after == {"pack": 4, "packed_convolve": 2, "packed_to_weight": 1, "packed_to_input": 1}
    for a, b in zip(shared(*inputs), plain(*inputs), strict=True):
        assert torch.equal(a, b)
