"""The laws of a family of transformations."""

from __future__ import annotations

import torch
from torch import Tensor

from pstn.families.base import Family
from pstn.families.compose import Compose


def assert_family(
    family: Family, *, scale: float = 0.2, batch: int = 3, points: int = 7, seed: int = 0, compiles: bool = True
) -> None:
    r"""Check that a family keeps the laws: raises ``AssertionError`` with the law that it breaks.

    - identity: :math:`T_0(p) = p` to float precision, in float32 and float64;
    - gradients: to :math:`\theta` and to the points, against finite differences in float64, also at :math:`\theta = 0`;
    - inverse: :math:`T_\theta^{-1}(T_\theta(p)) = p` by :meth:`Family.invert`, and by :meth:`Family.inverse` and
      :math:`T_{inverse(\theta)}` where the family has one;
    - composition: :math:`T_{compose(a, b)} = T_a \circ T_b` where the family has it;
    - batches: a batch is its members one by one, for (B, d) and (S, B, d), under ``vmap`` too;
    - precision: float32 agrees with float64, float16 parameters are accepted, and where parameters and points have two
      precisions the finer is taken;
    - far out: every :math:`\theta`, NaN and infinity included, gives finite points and gradients;
    - messages: parameters and points of the wrong width are refused;
    - ``torch.compile`` without a graph break.

    Arguments:
        family: The family.
        scale: The deviation of the random parameters; small enough for the maps to be invertible.
        batch: How many random parameters.
        points: How many random points.
        seed: The seed of both.
        compiles: Whether to check ``torch.compile``.

    Example:
        >>> from pstn.families import Crop
        >>> assert_family(Crop())
    """
    generator = torch.Generator().manual_seed(seed)
    name = f"{family}"

    def parameters(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, family.dim, generator=generator, dtype=torch.float64)

    theta, other = parameters(batch), parameters(batch)
    p = 1.8 * torch.rand(points, family.ndim, generator=generator, dtype=torch.float64) - 0.9

    assert len(family.names) == family.dim, f"{name}: {len(family.names)} names for {family.dim} parameters"
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        still = family(family.zeros(batch, dtype=dtype), p.to(dtype))
        assert still.dtype == dtype, f"{name}: {dtype} parameters and points give {still.dtype}"
        assert _far(still, p.to(dtype)) <= tolerance, f"{name}: theta = 0 moves points by {_far(still, p.to(dtype))}"

    moved = family(theta, p)
    assert moved.shape == (batch, points, family.ndim), f"{name}: shape {tuple(moved.shape)}"
    assert not torch.equal(moved, p.expand_as(moved)), f"{name}: random parameters move nothing"
    for at, where in ((theta, "at random parameters"), (0 * theta, "at the identity")):
        ok = torch.autograd.gradcheck(
            family, (at.clone().requires_grad_(), p.clone().requires_grad_()), raise_exception=False
        )
        assert ok, f"{name}: gradients differ from finite differences {where}"

    back = family.invert(theta, moved)
    assert _far(back, p) < 1e-8, f"{name}: invert misses by {_far(back, p)}"
    if type(family).inverse is not Family.inverse:
        far = _far(family(family.inverse(theta), moved), p)
        assert far < 1e-8, f"{name}: the inverse misses by {far}"
    if type(family).compose is not Family.compose:
        far = _far(family(family.compose(theta, other), p), family(theta, family(other, p)))
        assert far < 1e-8, f"{name}: composition misses by {far}"

    several = parameters(2, batch)
    one_by_one = torch.stack([torch.stack([family(t, p) for t in row]) for row in several])
    assert _far(family(several, p), one_by_one) < 1e-12, f"{name}: a batch differs from its members"
    own = p + 0.01 * torch.arange(batch, dtype=p.dtype).view(batch, 1, 1)
    each = torch.stack([family(t, q) for t, q in zip(theta, own, strict=True)])
    assert _far(family(theta, own), each) < 1e-12, f"{name}: points of their own differ from one by one"
    mapped = torch.func.vmap(family, in_dims=(0, None))(theta, p)
    assert _far(mapped, moved) < 1e-12, f"{name}: vmap differs from a batch"
    mapped = torch.func.vmap(family.invert)(theta, moved)
    assert _far(mapped, back) < 1e-12, f"{name}: vmap of invert differs from a batch"

    single = family(theta.float(), p.float())
    assert _far(single.double(), moved) < 1e-5, f"{name}: float32 misses by {_far(single.double(), moved)}"
    assert family(theta.half(), p.float()).dtype == torch.float32, f"{name}: float16 parameters"
    for call in (family, family.invert):
        for t, q in ((theta.float(), p), (theta, p.float())):
            assert call(t, q).dtype == torch.float64, f"{name}: {t.dtype} parameters and {q.dtype} points"

    for value in (torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 1e4, -1e4):
        wild = torch.full((family.dim,), value, dtype=torch.float64, requires_grad=True)
        there = family(wild, p)
        (gradient,) = torch.autograd.grad(there.sum(), wild)
        assert there.isfinite().all(), f"{name}: theta = {value} gives points that are not finite"
        assert gradient.isfinite().all(), f"{name}: theta = {value} gives a gradient that is not finite"

    for bad in (torch.zeros(batch, family.dim + 1), torch.zeros(batch, family.dim, dtype=torch.long)):
        assert _refused(lambda bad=bad: family(bad, p)), f"{name}: accepts theta of {bad.dtype}, {tuple(bad.shape)}"
    assert _refused(lambda: family(theta, torch.zeros(points, family.ndim + 1))), f"{name}: accepts points too wide"
    for lacking in ("compose", "inverse"):
        if getattr(type(family), lacking) is getattr(Family, lacking):
            arguments = (theta, other) if lacking == "compose" else (theta,)
            assert _refused(lambda a=arguments, n=lacking: getattr(family, n)(*a)), f"{name}: {lacking} does not refuse"

    if compiles:
        torch.compiler.reset()  # the code that is compiled is shared: families before this one count as recompilations
        compiled = torch.compile(family, fullgraph=True, backend="aot_eager")
        assert _far(compiled(theta, p), moved) < 1e-12, f"{name}: differs when compiled"
    if not isinstance(family, Compose):
        assert Compose(family, family).dim == 2 * family.dim, f"{name}: does not chain"


def _far(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def _refused(call: object) -> bool:
    try:
        call()  # type: ignore[operator]
    except (ValueError, TypeError):
        return True
    return False
