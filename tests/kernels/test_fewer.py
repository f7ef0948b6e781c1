"""Steps in words of which a compiler makes few kernels are the same steps."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import stacked
from torch import nn

from pstn.train.fleet.fewer import SMALL, fewer_kernels
from pstn.train.fleet.record import record

BMM = torch.ops.aten.bmm.default


def called(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@settings(deadline=None, max_examples=25)
@given(m=st.integers(1, 3), rows=st.integers(1, 5), columns=st.integers(1, 5), length=st.integers(1, 70))
def test_small_products_are_sums(m, rows, columns, length):
    a, b = torch.randn(m, rows, length), torch.randn(m, length, columns)
    fewer = fewer_kernels(record(torch.bmm, [a, b]))
    assert str(BMM) not in called(fewer)
    torch.testing.assert_close(fewer(a, b), a @ b)


def test_large_products_are_left_alone():
    a, b = torch.randn(1, 2, SMALL // 4 + 1), torch.randn(1, SMALL // 4 + 1, 2)
    plain = record(torch.bmm, [a, b])
    assert fewer_kernels(copy.deepcopy(plain)).code == plain.code


def test_products_with_constants_without_a_shape():
    a, constant = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    plain = record(lambda a: torch.bmm(a, constant), [a])
    for node in plain.graph.nodes:
        if node.op == "get_attr":
            node.meta.pop("val", None)
    torch.testing.assert_close(fewer_kernels(plain)(a), torch.bmm(a, constant))


def test_gradients_to_kernels_are_summed_by_whoever_needs_them():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 36, 2))
    step, inputs = stacked(network, (4, 1, 10, 10), count=3)
    plain = record(step, inputs)
    fewer = fewer_kernels(copy.deepcopy(plain))
    kinds = [called(module) for module in (plain, fewer)]
    assert [sum("to_weight.default" in name for name in names) for names in kinds] == [2, 0]
    assert [sum("to_weight_parts" in name for name in names) for names in kinds] == [0, 2]
    again = [value + 0.1 * torch.randn_like(value) for value in inputs]
    for a, b in zip(fewer(*again), plain(*again), strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def test_what_is_for_tensor_cores_stays(monkeypatch):
    from pstn.kernels import convolve

    for name in ("CHANNELS", "TAPS", "PRODUCTS"):
        monkeypatch.setattr(convolve, name, 0)
    step, inputs = stacked(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (2, 1, 6, 6))
    assert any("to_weight.default" in name for name in called(fewer_kernels(record(step, inputs))))
