"""What stands in the place of torch's own layers where networks are stacked on a GPU."""

import copy

import pytest
import torch
from subject import CONFIG
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from pstn import STN
from pstn.kernels.exactness import as_convolved
from pstn.train.fleet import convolve
from pstn.train.fleet.channels import Channels
from pstn.train.fleet.convolve import Products
from pstn.train.fleet.lane import recording_stream
from pstn.train.fleet.stack import Stack, Unit


def test_products_in_place_of_convolutions_are_as_exact_as_these():
    before = torch.get_float32_matmul_precision()
    assert before == "highest"
    with as_convolved():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with as_convolved():
            assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


@pytest.mark.parametrize("training", [True, False])
def test_batch_normalisation_of_stacked_images_does_not_ask_for_cudnn(training, monkeypatch):
    layer = nn.BatchNorm2d(3).train(training)
    x, mean = torch.randn(2, 4, 3, 5, 5), torch.zeros(2, 3)

    def forbidden(*arguments):
        pytest.fail("torch asks for cuDNN here, which is an error for stacked images on a GPU")

    def one(x, mean, var):
        with Products():
            return torch.func.functional_call(layer, {"running_mean": mean, "running_var": var}, (x,))

    wanted = [copy.deepcopy(layer)(each) for each in x]
    monkeypatch.setattr(torch, "batch_norm", forbidden)
    found = torch.vmap(one)(x, mean, torch.ones(2, 3))
    torch.testing.assert_close(found, torch.stack(wanted))
    assert bool(mean.any()) is training, "statistics are kept"


@pytest.mark.parametrize(("width", "large"), [(16, False), (64, True)])
def test_large_convolutions_are_noticed(width, large, monkeypatch):
    """Where some become matrix products, these are to be as exact as convolutions."""
    monkeypatch.setattr(convolve, "_at_hand", lambda *tensors: True)
    monkeypatch.setattr(convolve, "fused", lambda x, weight, bias, stride, padding: F.conv1d(x, weight, bias))
    body = nn.Sequential(nn.Conv1d(1, width, 3), nn.Conv1d(width, width, 3), nn.Flatten(), nn.LazyLinear(2))
    body(torch.zeros(1, 1, 8))
    stack = Stack([Unit(STN(body), None, CONFIG, None) for _ in range(2)], torch.device("cpu"))
    inputs = torch.randn(2, 4, 1, 8), torch.zeros(2, 4, dtype=torch.int64), (), torch.zeros(2)
    stack.differentiate(*inputs)
    assert not stack.multiplies, "on a CPU there are none"
    stack.faster = Products
    stack.differentiate(*inputs)
    assert stack.multiplies is large


@pytest.mark.parametrize("stride", [1, 2, (2, 3)])
def test_single_taps_with_a_stride_look_at_the_pixels_they_need(stride):
    """With the stride left to it, oneDNN damaged the heap on CPUs without AVX-512."""

    def one(x, weight):
        with Channels():
            return torch.conv2d(x, weight, None, stride)

    given = [torch.randn(3, 4, 2, 7, 8, requires_grad=True), torch.randn(3, 5, 2, 1, 1, requires_grad=True)]
    found = torch.vmap(one)(*given)
    wanted = torch.stack([torch.conv2d(*pair, None, stride) for pair in zip(*given, strict=True)])
    slope = torch.randn_like(wanted)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, given, slope), torch.autograd.grad(wanted, given, slope))
    nodes = make_fx(torch.vmap(one))(*given).graph.nodes
    assert [node.args[3] for node in nodes if node.target is torch.ops.aten.convolution.default] == [[1, 1]]


#: batch, channels in and out, side, kernel: where to copy windows out pays
PAYS = {
    "many channels": ((64, 32, 64, 12, 5), True),
    "not so many": ((256, 32, 32, 10, 7), False),
    "data": ((256, 1, 64, 28, 9), False),
    "few channels": ((64, 1, 16, 96, 7), False),
    "few images": ((8, 10, 20, 12, 5), False),
    "almost as many windows as pixels": ((64, 16, 31, 45, 7), False),
    "too much to copy": ((100, 32, 64, 38, 7), False),
}


@pytest.mark.parametrize("name", PAYS)
def test_windows_are_copied_out_where_it_pays(name, monkeypatch):
    (batch, channels, filters, side, kernel), pays = PAYS[name]
    x = torch.empty(batch, channels, side, side, device="meta")
    weight = torch.empty(filters, channels, kernel, kernel, device="meta")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    how = (x, weight, None, (1, 1), (0, 0))
    assert convolve._suited(*how, shared=False) is not pays
    assert convolve._suited(*how, shared=True), "with kernels in common there is no product to make of them"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert convolve._suited(*how, shared=False), "tensor cores leave nothing to the products"


def test_what_is_large_is_for_tensor_cores_in_one_dimension_too(monkeypatch):
    how = torch.empty(16, 164, 145, device="meta"), torch.empty(256, 164, 8, device="meta"), None, (1,), (0,)
    assert convolve._suited(*how, shared=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not convolve._suited(*how, shared=False)


def test_fleets_are_recorded_on_a_stream_that_no_other_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: f"aside on {device}, {priority}")
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    device = torch.device("cuda", 7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "a thread's own")
    assert recording_stream(device) == "a thread's own"
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "default")
    assert recording_stream(device) == "aside on cuda:7, 0"
    assert recording_stream(device, urgent=True) == "aside on cuda:7, -1"
