"""Steps whose long sums are split, and whose slopes are summed before pooling spreads them out."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap

from pstn.train.fleet.convolve import Products
from pstn.train.fleet.record import record
from pstn.train.fleet.sums import FEW, LONG, PIECE, shorten_sums

BMM, SUM = torch.ops.aten.bmm.default, torch.ops.aten.sum.dim_IntList


def shortened(step, inputs):
    """A step as it is recorded, and with shorter sums."""
    plain = record(step, inputs)
    return plain, shorten_sums(copy.deepcopy(plain))


def called(module, target):
    return [node for node in module.graph.nodes if node.target is target]


@settings(deadline=None, max_examples=25)
@given(
    m=st.integers(1, 3),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    length=st.sampled_from([LONG - 1, LONG, LONG + 1, 5 * PIECE - 1, 2511, 7581]),
    turned=st.booleans(),
)
def test_products_of_any_shape_are_the_same(m, rows, columns, length, turned):
    a, b = torch.randn(m, rows, length), torch.randn(m, length, columns)
    if turned:  # as weights come, and slopes
        a, b = a.transpose(1, 2).contiguous().transpose(1, 2), b.transpose(1, 2).contiguous().transpose(1, 2)
    _, short = shortened(torch.bmm, [a, b])
    (product,) = called(short, BMM)
    assert (product.args[0].target is torch.ops.aten.reshape.default) == (length >= LONG)
    exact = a.double() @ b.double()
    assert (short(a, b) - exact).abs().max() <= 1e-6 * length * (a.abs().max() * b.abs().max())


def test_a_networks_sums_do_not_depend_on_its_company():
    a, b = torch.randn(3, 4, 3000), torch.randn(3, 3000, 5)
    together = shortened(torch.bmm, [a, b])[1](a, b)
    for one, x, y in zip(together, a, b, strict=True):
        assert torch.equal(shortened(torch.bmm, [x[None], y[None]])[1](x[None], y[None])[0], one)


def test_large_products_are_left_alone():
    a, b = torch.randn(1, FEW // 64, LONG), torch.randn(1, LONG, 65)
    plain, short = shortened(torch.bmm, [a, b])
    assert short.code == plain.code


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1)])
def test_slopes_are_summed_before_pooling_spreads_them_out(pool):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), pool, nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 2))
    weights = [torch.randn(3, *p.shape) for p in network.parameters()]
    names = [name for name, _ in network.named_parameters()]

    def step(x, *weights):
        weights = [w.detach().requires_grad_() for w in weights]
        with torch.enable_grad():
            loss = vmap(one)(x, dict(zip(names, weights, strict=True)))
            return torch.autograd.grad(loss.sum(), weights)

    def one(x, weights):
        with Products():
            return functional_call(network, weights, (x,)).square().mean()

    inputs = [torch.randn(3, 2, 1, 10, 10), *weights]
    plain, short = shortened(step, inputs)
    before, after = ([n.args[0] for n in called(module, SUM) if len(n.args[1]) == 3] for module in (plain, short))
    assert [node.args[1][-2:] for node in before] == [[8, 8]]
    assert [node.args[1][-2:] for node in after] == [[4, 4]], "a number a window"
    again = [value + 0.1 * torch.randn_like(value) for value in inputs]
    for a, b in zip(short(*again), plain(*again), strict=True):
        torch.testing.assert_close(a, b)


def test_sums_over_other_axes_are_left_alone():
    from pstn.kernels.pool import unpool

    slopes, where = torch.randn(2, 3, 2, 2), torch.zeros(2, 3, 2, 2, dtype=torch.int8)

    def step(slopes):
        spread = unpool(slopes, where, (4, 4), (2, 2), (2, 2), (0, 0))
        return spread.sum((0, 1)), spread.sum((0, 2)), spread.view(2, 3, 16).sum((2,))

    plain, short = shortened(step, [slopes])
    assert short.code == plain.code
