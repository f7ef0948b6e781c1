"""The laws of a warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from pstn.families import Family, Translation
from pstn.grid import Padding
from pstn.warp import warp


class Warp(nn.Module):
    """A warp as a module of (x, theta), for export and compilation."""

    def __init__(self, family: Family, **options: Any) -> None:
        super().__init__()
        self.family = family
        self.options = options

    def forward(self, x: Tensor, theta: Tensor) -> Tensor:
        """The warped arrays."""
        return warp(x, self.family, theta, **self.options)


def assert_warp(
    family: Family, size: Sequence[int], *, channels: int = 2, scale: float = 0.2, seed: int = 0, traces: bool = True
) -> None:
    """Check that warping by a family keeps the laws: raises ``AssertionError`` with the law that it breaks.

    - identity: parameters of zero return the array, for every padding, mode and fill, with and without anti-aliasing;
    - samples: S warps at once are S single warps, in any order;
    - gradients: to parameters and to the array, against finite differences in float64; ``vmap`` and ``vmap(grad)``
      agree with a loop, whether or not the array needs a gradient;
    - linearity in the array, and a constant array stays constant inside;
    - dtypes: float16 and bfloat16 arrays agree with float32 to their precision and keep their dtype; autocast
      changes nothing;
    - far out: NaN, infinite and enormous parameters give finite values and gradients;
    - sizes: any output size; an empty batch gives an empty batch;
    - ``torch.compile`` without a graph break, ``torch.export``.

    Arguments:
        family: The family.
        size: The spatial size of the arrays, (L,), (H, W) or (D, H, W).
        channels: How many channels they have.
        scale: The deviation of the random parameters.
        seed: The seed.
        traces: Whether to check ``torch.compile`` and ``torch.export``.

    Example:
        >>> from pstn.families import Rotation
        >>> assert_warp(Rotation(), (5, 8), traces=False)
    """
    generator = torch.Generator().manual_seed(seed)
    name, batch, k = f"{family} on {tuple(size)}", 3, len(size)
    x = torch.rand(batch, channels, *size, generator=generator, dtype=torch.float64)
    theta = scale * torch.randn(2, batch, family.dim, generator=generator, dtype=torch.float64)
    color = torch.rand(channels, generator=generator, dtype=torch.float64)

    for padding in get_args(Padding):
        for options in ({"mode": "nearest"}, {"mode": "linear"}, {"antialias": True}, {"fill": 0.7}, {"fill": color}):
            same = warp(x, family, family.zeros(batch, dtype=x.dtype), padding=padding, **options)
            assert _far(same, x) < 1e-12, (
                f"{name}: theta = 0 changes the array by {_far(same, x)} ({padding}, {options})"
            )
            several = warp(x, family, theta, padding=padding, **options)
            single = torch.stack([warp(x, family, t, padding=padding, **options) for t in theta])
            assert _far(several, single) < 1e-12, f"{name}: S samples differ from single warps ({padding}, {options})"
    single_precision = warp(x.float(), family, family.zeros(batch))
    assert _far(single_precision.double(), x) < 1e-5, f"{name}: theta = 0 is not the identity in float32"

    assert _far(warp(x, family, theta.flip(0)), warp(x, family, theta).flip(0)) == 0, f"{name}: order of samples"
    straight = warp(x, family, theta)
    assert _far(warp(3 * x - 1, family, theta, fill=-1.0), 3 * straight - 1) < 1e-12, f"{name}: not linear"
    flat = warp(torch.full_like(x, 0.4), family, theta, padding="border", antialias=True)
    assert _far(flat, torch.full_like(flat, 0.4)) < 1e-12, f"{name}: a constant array does not stay constant"

    ok = torch.autograd.gradcheck(
        lambda t, a: warp(a, family, t, size=[2] * k),
        (theta.clone().requires_grad_(), x.clone().requires_grad_()),
        raise_exception=False,
    )
    assert ok, f"{name}: gradients differ from finite differences"

    def loss(t: Tensor, a: Tensor) -> Tensor:
        return warp(a[None], family, t[None]).square().sum()

    for shared in (False, True):
        arrays = x[:1].expand_as(x) if shared else x
        mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None if shared else 0))(
            theta[0], x[0] if shared else x
        )
        t = theta[0].clone().requires_grad_()
        (looped,) = torch.autograd.grad(torch.stack([loss(a, b) for a, b in zip(t, arrays, strict=True)]).sum(), t)
        assert _far(mapped, looped) < 1e-9, f"{name}: vmap(grad) differs from a loop (shared array: {shared})"

    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        low = warp(x.to(dtype), family, theta)
        assert low.dtype == dtype, f"{name}: {dtype} becomes {low.dtype}"
        high = warp(x.to(dtype).double(), family, theta)
        assert _far(low.double(), high) < tolerance, f"{name}: {dtype} misses by {_far(low.double(), high)}"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = warp(x.float(), family, theta.float())
    assert _far(cast, warp(x.float(), family, theta.float())) == 0, f"{name}: autocast changes the geometry"

    for value in (torch.nan, torch.inf, -torch.inf, 1e30, -1e30):
        wild = torch.full((batch, family.dim), value, requires_grad=True)
        for padding in get_args(Padding):
            there = warp(x.float(), family, wild, padding=padding)
            (gradient,) = torch.autograd.grad(there.sum(), wild)
            assert there.isfinite().all(), f"{name}: theta = {value} gives values that are not finite"
            assert gradient.isfinite().all(), f"{name}: theta = {value} gives a gradient that is not finite"

    for other in ([1] * k, [n + 1 for n in size]):
        assert warp(x, family, theta, size=other).shape == (2, batch, channels, *other), f"{name}: size {other}"
    assert warp(x[:0], family, theta[:, :0]).shape == (2, 0, channels, *size), f"{name}: an empty batch"

    if traces:
        module, arguments = Warp(family), (x.float(), theta[0].float())
        expected = module(*arguments)
        torch.compiler.reset()  # the code that is compiled is shared: families before this one count as recompilations
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        assert _far(compiled(*arguments), expected) < 1e-6, f"{name}: differs when compiled"
        dynamic = {0: torch.export.Dim("batch")}
        program = torch.export.export(module, arguments, dynamic_shapes=(dynamic, dynamic))
        doubled = tuple(torch.cat([a, a]) for a in arguments)
        assert _far(program.module()(*doubled), module(*doubled)) < 1e-6, f"{name}: differs when exported"


def assert_integer_shift(size: Sequence[int], *, seed: int = 0) -> None:
    """Check that a shift by whole pixels moves pixels exactly, along each axis and in both modes.

    Example:
        >>> assert_integer_shift((5, 8))
    """
    x = torch.rand(1, 1, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    k = len(size)
    for axis in range(k):
        theta = torch.zeros(1, k, dtype=x.dtype)
        theta[0, k - 1 - axis] = 2 / size[axis]  # one pixel
        expected = torch.zeros_like(x)
        n = size[axis]
        expected.narrow(2 + axis, 0, n - 1).copy_(x.narrow(2 + axis, 1, n - 1))
        for mode in ("linear", "nearest"):
            moved = warp(x, Translation(k), theta, mode=mode)
            assert _far(moved, expected) < 1e-12, f"a shift by one pixel along axis {axis} of {tuple(size)} ({mode})"


def _far(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item() if a.numel() else 0.0
