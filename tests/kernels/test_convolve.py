"""Fused convolutions of stacked networks, against torch in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pstn import kernels
from pstn.kernels import convolve as fused
from pstn.kernels import halves, slide
from pstn.kernels import pool as pooling
from pstn.train.fleet.convolve import Products

#: channels in and out, size, kernel, stride, padding
CASES = {
    "like the papers' first": (1, 5, (28, 28), (5, 5), (1, 1), (0, 0)),
    "like the papers' second": (2, 3, (12, 12), (5, 5), (1, 1), (0, 0)),
    "stride and padding": (3, 5, (7, 9), (3, 2), (2, 1), (1, 1)),
    "a stride beyond the kernel": (2, 3, (9, 8), (1, 2), (3, 3), (0, 1)),
    "a padding beyond the kernel": (2, 1, (3, 4), (2, 2), (1, 2), (3, 2)),
    "a line": (2, 3, (1, 13), (1, 4), (1, 3), (0, 2)),
    "more channels than a program keeps": (3, 18, (4, 3), (2, 1), (1, 1), (0, 0)),
    "more taps than a program keeps": (1, 2, (13, 12), (11, 11), (1, 1), (0, 0)),
    "the kernel covers all": (2, 3, (4, 5), (4, 5), (1, 1), (0, 0)),
}
#: Those that are for tensor cores alone.
DENSE = {
    "many channels": (9, 17, (5, 4), (3, 2), (1, 1), (0, 1)),
    "many channels, a stride": (5, 3, (8, 7), (3, 3), (2, 3), (1, 1)),
    "few channels, a stride down": (2, 3, (8, 7), (3, 4), (2, 1), (1, 2)),
}


@pytest.fixture(autouse=True)
def broad(monkeypatch):
    """The interpreter takes as long for one lane as for many, and longer for many programs than for few."""
    monkeypatch.setattr(slide, "LANES", 512)
    monkeypatch.setattr(slide, "FEW", 0)


def problem(name, count=2, batch=2):
    c, o, size, kernel, stride, padding = {**CASES, **DENSE}[name]
    x, weight, bias = torch.randn(count, batch, c, *size), torch.randn(count, o, c, *kernel), torch.randn(count, o)
    return [value.requires_grad_() for value in (x, weight, bias)], stride, padding


def truth(x, weight, bias, stride, padding):
    b = [None] * len(x) if bias is None else bias
    return torch.stack([F.conv2d(*each, stride, padding) for each in zip(x, weight, b, strict=True)])


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 2e-6 * b.abs().max()


@pytest.fixture
def dense(monkeypatch):
    """Everything goes to the kernels for tensor cores."""
    for name in ("CHANNELS", "TAPS", "PRODUCTS"):
        monkeypatch.setattr(fused, name, 0)
    monkeypatch.setattr(fused, "slide", None)


def compared(inputs, how, direction=None):
    """Values and gradients, and those of torch in float64."""
    exact = [value.detach().double().requires_grad_() for value in inputs]
    out, expected = fused.convolve(*inputs, *how), truth(*exact, *how)
    direction = torch.randn_like(out) if direction is None else direction(out)
    found = torch.autograd.grad(out, inputs, direction)
    return (out, *found), (expected, *torch.autograd.grad(expected, exact, direction.double()))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torch(name):
    inputs, *how = problem(name)
    close(*compared(inputs, how))


@pytest.mark.parametrize("name", [name for name in CASES if "papers' first" not in name])
def test_small_programs_give_the_same_numbers(name, monkeypatch):
    """A network's numbers must not depend on how many others there are, by which the size of programs is chosen."""
    inputs, *how = problem(name)
    with torch.no_grad():
        large = fused.convolve(*inputs, *how)
        back = fused.to_input(large, inputs[1], inputs[0].shape[3:], *how)
        sizes = []
        shape = slide.Shape.of
        monkeypatch.setattr(slide, "FEW", 10**9)
        monkeypatch.setattr(slide.Shape, "of", lambda *how: sizes.append(how[0]) or shape(*how))
        assert torch.equal(fused.convolve(*inputs, *how), large)
        assert torch.equal(fused.to_input(large, inputs[1], inputs[0].shape[3:], *how), back)
        assert sizes[1::2] == [slide.SMALL] * 2
        sizes.clear()
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "somewhere")  # the GPU is shared with other processes
        fused.convolve(*inputs, *how)
        assert slide.SMALL not in sizes


@pytest.mark.parametrize("name", [*CASES, *DENSE])
def test_tensor_cores_are_exact_for_small_whole_numbers(name, dense):
    inputs, *how = problem(name)
    whole = [value.detach().mul(3).round().requires_grad_() for value in inputs]
    for a, b in zip(*compared(whole, how, lambda out: torch.randint(-5, 6, out.shape).float()), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a.double(), b)


@pytest.mark.parametrize("size", [1e-30, 1e-4, 1.0, 1e9])
def test_tensor_cores_have_the_digits_of_tf32_whatever_the_size(size, dense):
    inputs, *how = problem("many channels")
    sized = [(value.detach() * size).requires_grad_() for value in inputs[:2]]
    for a, b in zip(*compared([*sized, inputs[2]], how, lambda out: torch.randn_like(out) / size), strict=True):
        assert (a - b).abs().max() <= 2**-10 * b.abs().max()


def test_each_network_has_a_scale_of_its_own(dense):
    inputs, *how = problem("many channels")
    sizes = torch.tensor([1e-20, 1e10]).view(2, 1, 1, 1, 1)
    sized = [(value.detach() * sizes).requires_grad_() for value in inputs[:2]]
    for found, expected in zip(
        *compared([*sized, inputs[2]], how, lambda out: torch.randn_like(out) * sizes), strict=True
    ):
        for a, b in zip(found, expected, strict=True):
            assert (a - b).abs().max() <= 2**-10 * b.abs().max()


def test_numbers_far_below_the_largest_are_kept(dense):
    """Down to 2⁻²⁸ of the largest, with all digits: slopes of pictures that a network is sure of."""
    inputs, *how = problem("many channels")
    sizes = torch.tensor([1.0, 2.0**-26]).view(1, 2, 1, 1, 1)
    x = (inputs[0].detach().clamp(-4, 4) * sizes).requires_grad_()
    out = fused.convolve(x, inputs[1], None, *how)
    exact = truth(x.detach().double(), inputs[1].detach().double(), None, *how)
    assert (out - exact)[:, 1].abs().max() <= 2**-9 * exact[:, 1].abs().max()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, of the interpreter
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(value, dense):
    inputs, *how = problem("many channels")
    inputs[0].data[0, 0, 0, 0, 0] = value
    out = fused.convolve(*inputs, *how)
    assert not out[0].isfinite().all()
    assert out[1].isfinite().all(), "the other network has nothing to do with it"
    blank = fused.convolve(torch.zeros_like(inputs[0]), *inputs[1:], *how)
    assert torch.equal(blank, inputs[2].detach()[:, None, :, None, None].expand_as(blank))


def test_strides_of_any_kind_and_no_bias():
    x = torch.randn(2, 8, 9, 3, 4).permute(0, 3, 4, 2, 1)  # channels last, and transposed
    weight = torch.randn(2, 50)[:, 1:49].view(2, 2, 4, 3, 2)  # a part of longer rows
    shared = x[:1].expand(2, -1, -1, -1, -1)
    for each in (x, shared):
        out = fused.convolve(each, weight, None, (1, 1), (1, 0))
        close([out], [truth(each.double(), weight.double(), None, (1, 1), (1, 0))])
        slope = torch.randn(2, 3, 2, 1, 1).expand(out.shape)
        close(
            [fused.to_weight(slope, each, (3, 2), (1, 1), (1, 0))],
            [fused.to_weight(slope.contiguous(), each.contiguous(), (3, 2), (1, 1), (1, 0)).double()],
        )


def test_many_positions_are_summed_in_parts(monkeypatch):
    """The gradient to the weights is summed in several programs; that of a network does not depend on the others."""
    monkeypatch.setattr(slide, "LANES", 32)
    monkeypatch.setattr(slide, "LENGTH", 64)
    x, slope = torch.randn(2, 13, 1, 8, 8), torch.randn(2, 13, 5, 6, 6)
    assert 13 * -(-6 // slide.HIGH) * 6 > 2 * slide.LENGTH
    found = fused.to_weight(slope, x, (3, 3), (1, 1), (0, 0))
    weight = torch.zeros(2, 5, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    out = truth(x.double(), weight, None, (1, 1), (0, 0))
    close([found], torch.autograd.grad(out, weight, slope.double()))
    assert torch.equal(found[:1], fused.to_weight(slope[:1], x[:1], (3, 3), (1, 1), (0, 0)))


@pytest.mark.parametrize("channels", [2, 5])
def test_tensor_cores_sum_in_parts_and_take_any_strides(dense, monkeypatch, channels):
    monkeypatch.setattr(halves, "FEWEST", 64)
    x = torch.randn(2, 8, 9, channels, 20).permute(0, 4, 3, 2, 1)  # (2, 20, C, 9, 8), of which no axis is in order
    weight = torch.randn(2, channels, 2, 3, 18).permute(0, 4, 1, 3, 2)
    slope = torch.randn(2, 20, 18, 7, 1).expand(-1, -1, -1, -1, 7)
    exact = [value.double().detach().requires_grad_() for value in (x, weight)]
    out = truth(*exact, None, (1, 1), (0, 0))
    found = [
        fused.convolve(x, weight, None, (1, 1), (0, 0)),
        fused.to_input(slope, weight, (9, 8), (1, 1), (0, 0)),
        fused.to_weight(slope, x, (3, 2), (1, 1), (0, 0)),
    ]
    for a, b in zip(found, (out, *torch.autograd.grad(out, exact, slope.double())), strict=True):
        assert (a - b).abs().max() <= 2**-10 * b.abs().max()
    alone = (
        fused.convolve(x[1:], weight[1:], None, (1, 1), (0, 0)),
        fused.to_input(slope[1:], weight[1:], (9, 8), (1, 1), (0, 0)),
        fused.to_weight(slope[1:], x[1:], (3, 2), (1, 1), (0, 0)),
    )
    for a, b in zip(found, alone, strict=True):
        assert torch.equal(a[1:], b), "it does not depend on the company"


@pytest.mark.parametrize("allowed", [True, False])
def test_tensor_cores_are_for_those_who_allow_them(monkeypatch, allowed):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    assert fused.dense((32, 1, 9, 9), 100_000) is allowed
    assert not fused.dense((32, 1, 9, 9), 1000), "a few windows are quicker without"
    assert not fused.dense((10, 1, 9, 9), 1_000_000), "so are a few channels"
    assert not fused.dense((32, 1, 3, 3), 1_000_000), "and a few taps"


def test_gpus_before_tf32_do_without(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        for capability, able in (((7, 5), False), ((8, 0), True)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
            fused._cores.cache_clear()
            assert fused.dense((32, 1, 9, 9), 100_000) is able
    finally:
        fused._cores.cache_clear()


@pytest.mark.parametrize("name", ["stride and padding", "a line"])
def test_second_derivatives(name):
    inputs, *how = problem(name)
    exact = [value.detach().double().requires_grad_() for value in inputs]

    def second(function, inputs):
        first = torch.autograd.grad(function(*inputs, *how).pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    for a, b in zip(second(fused.convolve, inputs), second(truth, exact), strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def test_only_what_is_asked_for_is_computed(monkeypatch):
    (x, weight, bias), *how = problem("a line")
    out = fused.convolve(x.detach(), weight, bias, *how)
    monkeypatch.setattr(fused, "to_input", None)
    assert torch.autograd.grad(out.sum(), weight)[0].shape == weight.shape


@pytest.mark.parametrize("dims", [(0, 0, 0), (None, 0, 0), (0, None, None), (1, 2, 0)])
def test_vmap_of_grad_is_a_loop(dims):
    (x, weight, bias), *how = problem("a line", count=1)
    every = [
        torch.stack([value.detach() + i for i in range(3)], dim=d or 0)
        for value, d in zip((x, weight, bias), dims, strict=True)
    ]
    inputs = [value if d is not None else value.select(0, 0) for value, d in zip(every, dims, strict=True)]

    def loss(function, *inputs):
        return function(*inputs, *how).square().sum()

    found = vmap(grad(lambda *v: loss(fused.convolve, *v), argnums=(0, 1, 2)), in_dims=dims)(*inputs)
    rows = [[v if d is None else v.select(d, i) for v, d in zip(inputs, dims, strict=True)] for i in range(3)]
    looped = [grad(lambda *v: loss(truth, *v), argnums=(0, 1, 2))(*(v.double() for v in row)) for row in rows]
    for a, b in zip(found, (torch.stack(parts) for parts in zip(*looped, strict=True)), strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def network(x, weight, bias, second):
    h = F.relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=1), 2))
    return F.max_pool1d(F.conv1d(h.flatten(2), second, stride=2), 3).square().sum()


def step(x, *weights):
    weights = [w.detach().requires_grad_() for w in weights]
    with torch.enable_grad():
        losses = vmap(network)(x, *weights)
        return losses.detach(), *torch.autograd.grad(losses.sum(), weights)


def test_a_recorded_step_of_stacked_networks():
    inputs = [torch.randn(3, *shape) for shape in ((2, 1, 9, 8), (4, 1, 3, 3), (4,), (5, 4, 3))]

    def go(*inputs):
        with Products():
            return step(*inputs)

    graph = make_fx(go)(*inputs)
    used = [node.target._opname for node in graph.graph.nodes if "pstn" in str(node.target)]
    assert sorted(used) == sorted(
        ["convolve", "pool"] * 2 + ["convolve_to_weight", "unpool"] * 2 + ["convolve_to_input"]  # none to the data
    )
    # an index into a stack has a copy among zeros for a gradient
    assert not any("select_backward" in str(node.target) for node in graph.graph.nodes)
    again = [value + 0.1 * torch.randn_like(value) for value in inputs]
    for a, b in zip(graph(*again), step(*(value.double() for value in again)), strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def test_what_the_kernels_do_not_take_goes_to_the_products(monkeypatch):
    inputs = [torch.randn(2, *shape) for shape in ((2, 1, 9, 8), (4, 1, 3, 3), (4,), (5, 4, 3))]
    monkeypatch.setattr(fused, "convolve", None)
    monkeypatch.setattr(pooling, "pool", None)
    expected = step(*inputs)
    with kernels.reference(), Products():
        found = step(*inputs)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    wide = torch.randn(2, 1, 64, 1, 3), torch.randn(2, 33, 64, 1, 3)  # too many channels
    with Products():
        torch.testing.assert_close(vmap(F.conv2d)(*wide), truth(*wide, None, 1, 0), rtol=1e-4, atol=1e-4)
        double = [value.double() for value in inputs]
        torch.testing.assert_close(step(*double), step(*double))


def test_kernels_in_common():
    """A frozen classifier's kernels are one for all networks; only the images differ."""
    x, weight = torch.randn(3, 2, 1, 9, 8, requires_grad=True), torch.randn(4, 1, 3, 3)

    def run(x):
        return vmap(lambda x: F.conv2d(x, weight, padding=1))(x)

    with Products():
        graph = make_fx(lambda x: torch.autograd.grad(run(x).pow(3).sum(), x))(x)
    used = [node.target._opname for node in graph.graph.nodes if "pstn" in str(node.target)]
    assert sorted(used) == ["convolve", "convolve_to_input"]  # none to the weight
    torch.testing.assert_close(graph(x), torch.autograd.grad(run(x).pow(3).sum(), x), rtol=1e-4, atol=1e-4)


def test_large_kernels_in_common_are_left_to_torch():
    x, weight = torch.randn(2, 1, 64, 1, 5), torch.randn(33, 64, 1, 3)
    with Products() as mode:
        out = vmap(lambda x: F.conv2d(x, weight))(x)
    assert not mode.multiplied
    torch.testing.assert_close(out, torch.stack([F.conv2d(each, weight) for each in x]), rtol=1e-4, atol=1e-4)


def test_opcheck():
    (x, weight, bias), *how = problem("a line", count=1, batch=2)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    slope = torch.randn_like(fused.convolve(x, weight, bias, *how))
    ops = torch.ops.pstn
    torch.library.opcheck(ops.convolve.default, (x, weight, bias, *how), test_utils=checks)
    torch.library.opcheck(ops.convolve.default, (x, weight, None, *how), test_utils=checks)
    torch.library.opcheck(ops.convolve_to_input.default, (slope, weight, x.shape[3:], *how), test_utils=checks)
    torch.library.opcheck(ops.convolve_to_weight.default, (slope, x, weight.shape[3:], *how), test_utils=checks)
