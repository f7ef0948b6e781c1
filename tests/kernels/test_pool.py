"""Fused max-pooling, against torch."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
import triton.language as tl
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pstn.kernels import pool as pooling
from pstn.kernels.pool import pool
from pstn.train.fleet.convolve import Products

#: size, kernel, stride, padding
CASES = {
    "side by side": ((6, 9), (2, 3), (2, 3), (0, 0)),
    "side by side, a rest": ((5, 7), (2, 3), (2, 3), (0, 0)),
    "a line": ((1, 9), (1, 3), (1, 3), (0, 0)),
    "a line, overlapping": ((1, 10), (1, 4), (1, 3), (0, 2)),
    "overlapping": ((9, 7), (3, 3), (2, 2), (0, 0)),
    "overlapping, a rest": ((8, 6), (3, 3), (2, 2), (0, 0)),
    "overlapping and padded": ((8, 7), (3, 3), (2, 2), (1, 1)),
    "all places": ((5, 6), (3, 2), (1, 1), (1, 0)),
    "an axis each": ((11, 9), (5, 2), (2, 3), (2, 1)),
    "several windows down": ((9, 4), (7, 1), (2, 1), (3, 0)),
    "a stride beyond the windows": ((8, 11), (2, 1), (3, 4), (0, 0)),
    "a stride beyond the windows, padded": ((7, 9), (2, 3), (5, 4), (1, 1)),
    "side by side and padded": ((6, 8), (2, 4), (2, 4), (1, 2)),
    "the window covers all": ((3, 4), (3, 4), (1, 1), (0, 0)),
    "more windows than pixels": ((1, 2), (2, 2), (1, 1), (1, 1)),
    "less than a window": ((3, 2), (6, 4), (1, 2), (3, 2)),
}
#: What images may hold, given random numbers: of equals the first is found, of NaNs the last, and never the padding.
IMAGES = {
    "numbers": lambda x: x,
    "equals": lambda x: x.round(),
    "NaNs": lambda x: x.round().where(x < 0.5, float("nan")),
    "infinities": lambda x: x.where(x.abs() < 0.5, float("inf") * x.sign()),
    "all that is least": lambda x: torch.full_like(x, float("-inf")),
    "hardly more": lambda x: torch.full_like(x, -3e38),
}


def compared(x, *how):
    """Values and gradients, and those of torch."""
    x = x.detach().requires_grad_()
    values = pool(x, *how), F.max_pool2d(x, *how)
    direction = torch.randn_like(values[0])
    return [(value.nan_to_num(7), *torch.autograd.grad(value, x, direction)) for value in values]


@pytest.mark.parametrize("name", CASES)
def test_pooling_is_that_of_torch(name):
    """To the last digit: the gradients of windows that share a pixel are summed in the same order."""
    size, *how = CASES[name]
    found, expected = compared(torch.stack([make(torch.randn(4, *size)) for make in IMAGES.values()]), *how)
    for a, b in zip(found, expected, strict=True):
        wrong = [kind for kind, *each in zip(IMAGES, a, b, strict=True) if not torch.equal(*each)]
        assert not wrong


def test_windows_are_side_by_side_unless_told():
    x = torch.randn(2, 7, 8)
    assert torch.equal(pool(x, (2, 3)), F.max_pool2d(x, (2, 3)))
    assert torch.equal(pool(x, (2, 3), (1, 2)), F.max_pool2d(x, (2, 3), (1, 2)))


@pytest.mark.parametrize("word", [None, tl.int64])
def test_images_of_any_strides_and_several_programs(word, monkeypatch):
    if word is not None:
        monkeypatch.setattr(pooling, "_word", lambda *_: word)
    x = torch.randn(2, 17, 19, 9).permute(0, 3, 2, 1)
    assert x.numel() > 4 * pooling.BLOCK
    for a, b in zip(*compared(x, (3, 3), (2, 2), (1, 1)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dims", [0, 2])
@pytest.mark.parametrize("name", ["side by side, a rest", "overlapping and padded"])
def test_vmap_of_grad_is_a_loop(name, dims):
    size, *how = CASES[name]
    x = torch.randn(2, 3, *size)
    slope = grad(lambda x, function: function(x, *how).pow(3).sum())
    found = vmap(lambda x: slope(x, pool), in_dims=dims)(x.movedim(0, dims))
    assert torch.equal(found, torch.stack([slope(each, F.max_pool2d) for each in x]))


#: Poolings of a stack of networks, which the kernels do and which they leave to torch.
TAKEN = {
    "ResNet's": lambda x: F.max_pool2d(x, 3, 2, 1),
    "side by side": lambda x: F.max_pool2d(x, (2, 3)),
    "by name": lambda x: F.max_pool2d(x, kernel_size=3, stride=(1, 2), padding=(0, 1)),
    "a module's": torch.nn.MaxPool2d(3, 2),
    "a line": lambda x: F.max_pool1d(x.flatten(2), 5, 2, 2),
    "written to": lambda x: F.max_pool2d(x, 3, 2).relu_(),
    "a line written to": lambda x: F.max_pool1d(x.flatten(2), 3).relu_(),
}
LEFT = {
    "sizes rounded up": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "dilated": lambda x: F.max_pool2d(x, 3, 2, dilation=2),
    "large windows": lambda x: F.max_pool1d(x.flatten(2), 65, 1),
    "no batch": lambda x: F.max_pool2d(x[0], 3, 2),
}


@pytest.mark.parametrize("name", [*TAKEN, *LEFT])
def test_poolings_of_stacked_networks_go_to_the_kernel(name):
    x = torch.randn(3, 2, 2, 9, 8, requires_grad=True)
    network = {**TAKEN, **LEFT}[name]

    def slopes(x):
        out = vmap(network)(x)
        return out, *torch.autograd.grad(out.pow(3).sum(), x)

    with Products():
        graph = make_fx(slopes)(x)
    used = [node.target._opname for node in graph.graph.nodes if "pstn" in str(node.target)]
    assert used == (["pool", "unpool"] if name in TAKEN else [])
    for a, b in zip(graph(x), slopes(x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "how", [(3, 0), (3, 2, 2), (11, 2), (3, -1)], ids=["no stride", "much padding", "too large", "a negative stride"]
)
def test_what_torch_refuses_is_refused(how):
    x = torch.randn(2, 2, 2, 9, 8)
    with pytest.raises(RuntimeError), Products():
        vmap(lambda x: torch.max_pool2d(x, *how))(x)


def test_a_second_derivative_of_the_pooling_says_where_to_find_it():
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    (first,) = torch.autograd.grad(pool(x, (2, 2)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"pstn\.kernels\.reference"):
        torch.autograd.grad(first.sum(), x)


def test_opcheck():
    x, ops, how = torch.randn(1, 2, 2, 1, 13, requires_grad=True), torch.ops.pstn, ((1, 3), (1, 2), (0, 1))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(ops.pool.default, (x, *how), test_utils=checks)
    values, where = ops.pool.default(x.detach(), *how)
    torch.library.opcheck(ops.unpool.default, (values, where, x.shape[3:], *how), test_utils=checks)


#: Prints how often the PTX of both kernels reads, for windows side by side and for those that overlap, and divides.
SCRIPT = """
import re
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pstn.kernels import pool

POINTERS = {"where": "*i8", "count": "i32"}
for kernel in (pool.pool_kernel, pool.unpool_kernel):
    for size, target, window, stride, padding in (
        ((96, 96), (48, 48), (2, 2), (2, 2), (0, 0)), ((95, 95), (48, 48), (3, 3), (2, 2), (1, 1))
    ):
        own = dict(
            SIZE=size, TARGET=target, KERNEL=window, STRIDE=stride, PADDING=padding, BLOCK=pool.BLOCK, WORD=tl.uint32
        )
        names = kernel.arg_names
        signature = {each: "constexpr" if each in own else POINTERS.get(each, "*fp32") for each in names}
        values = {(names.index(each),): value for each, value in own.items()}
        attributes = {(n,): [["tt.divisibility", 16]] for n, each in enumerate(names) if each not in own}
        source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
        print(len(re.findall(r"\\bld\\.global", ptx)), len(re.findall(r"\\b(?:div|rem)\\.", ptx)))
"""


def test_compiled_kernels_read_only_what_they_need_and_do_not_divide(tmp_path):
    settings = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    settings.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    reads, divisions = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    each = pooling.BLOCK // 128  # pixels that a thread has
    assert reads == (4 * each, 9 * each, 2 * each, 2 * 4 * each)
    assert not any(divisions)
