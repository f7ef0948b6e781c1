"""Steps whose long sums are split, and whose slopes are summed before pooling spreads them out."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import stacked
from torch import nn

from pstn.kernels.pool import unpool
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
    assert (short(a, b) - exact).abs().max() <= 1e-7 * length * (a.abs().max() * b.abs().max())


def test_a_networks_sums_do_not_depend_on_its_company():
    a, b = torch.randn(3, 4, 3000), torch.randn(3, 3000, 5)
    together = shortened(torch.bmm, [a, b])[1](a, b)
    for one, x, y in zip(together, a, b, strict=True):
        assert torch.equal(shortened(torch.bmm, [x[None], y[None]])[1](x[None], y[None])[0], one)


def test_products_with_constants():
    """A recorded step keeps those that are used as they are, which may have no shape on record."""
    a, constant = torch.randn(2, 3, LONG), torch.randn(2, LONG, 4)
    plain, short = shortened(lambda a: torch.bmm(a, constant), [a])
    torch.testing.assert_close(short(a), plain(a), atol=1e-3, rtol=0)
    for node in plain.graph.nodes:
        if node.op == "get_attr":
            node.meta.pop("val", None)
    torch.testing.assert_close(shorten_sums(plain)(a), torch.bmm(a, constant))


def test_large_products_are_left_alone():
    a, b = torch.randn(1, FEW // 64, LONG), torch.randn(1, LONG, 65)
    plain, short = shortened(torch.bmm, [a, b])
    assert short.code == plain.code


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1)])
def test_slopes_are_summed_before_pooling_spreads_them_out(pool):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), pool, nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 2))
    step, inputs = stacked(network, (2, 1, 10, 10), count=3)
    plain, short = shortened(step, inputs)
    before, after = ([n.args[0] for n in called(module, SUM) if len(n.args[1]) == 3] for module in (plain, short))
    assert [node.args[1][-2:] for node in before] == [[8, 8]]
    assert [node.args[1][-2:] for node in after] == [[4, 4]], "a number a window"
    again = [value + 0.1 * torch.randn_like(value) for value in inputs]
    for a, b in zip(short(*again), plain(*again), strict=True):
        torch.testing.assert_close(a, b)


def spread_out(slopes):
    """What pooling of 4 × 4 pixels to 2 × 2 brings back."""
    return unpool(slopes, torch.zeros(slopes.shape, dtype=torch.int8), (4, 4), (2, 2), (2, 2), (0, 0))


@pytest.mark.parametrize("axes", [None, [], [-1, 1, -2]])
def test_sums_name_their_axes_or_none(axes):
    slopes = torch.randn(2, 3, 2, 2)
    plain, short = shortened(lambda x: SUM(spread_out(x), axes, True), [slopes])
    assert not [node for node in short.graph.nodes if "unpool" in str(node.target)]
    torch.testing.assert_close(short(slopes), plain(slopes))


def test_slopes_are_summed_as_pooling_got_them():
    """Not as they are once somebody has written to them."""

    def step(slopes):
        slopes = slopes.clone()
        spread = spread_out(slopes)
        slopes.mul_(2)
        return spread.sum((2, 3)), slopes

    slopes = torch.randn(2, 3, 2, 2)
    plain, short = shortened(step, [slopes])
    for a, b in zip(short(slopes), plain(slopes), strict=True):
        torch.testing.assert_close(a, b)


def test_sums_over_other_axes_are_left_alone():
    slopes = torch.randn(2, 3, 2, 2)

    def step(slopes):
        spread = spread_out(slopes)
        return spread.sum((0, 1)), spread.sum((0, 2)), spread.view(2, 3, 16).sum((2,))

    plain, short = shortened(step, [slopes])
    assert short.code == plain.code
