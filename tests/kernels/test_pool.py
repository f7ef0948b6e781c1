"""Fused max-pooling, against torch."""

import pytest
import torch
import torch.nn.functional as F

from pstn.kernels.pool import pool


@pytest.mark.parametrize("size", [(6, 8), (5, 7), (1, 9)])
def test_pooling_is_that_of_torch(size):
    """Of equal values the first is the one that gets the gradient, of NaNs the last."""
    x = torch.randint(3, (2, 3, *size)).float()
    x[0, 0, 0, 2:4] = float("nan")
    x.requires_grad_()
    kernel = (min(2, size[0]), 3)
    found, expected = pool(x, kernel), F.max_pool2d(x, kernel)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    direction = torch.randn_like(found)
    assert torch.equal(*(torch.autograd.grad(value, x, direction)[0] for value in (found, expected)))


def test_a_second_derivative_of_the_pooling_says_where_to_find_it():
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    (first,) = torch.autograd.grad(pool(x, (2, 2)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"pstn\.kernels\.reference"):
        torch.autograd.grad(first.sum(), x)


def test_opcheck():
    x, ops = torch.randn(1, 2, 2, 1, 13, requires_grad=True), torch.ops.pstn
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(ops.pool.default, (x, (1, 2)), test_utils=checks)
    values, where = ops.pool.default(x.detach(), (1, 2))
    torch.library.opcheck(ops.unpool.default, (values, where, x.shape[3:], (1, 2)), test_utils=checks)
