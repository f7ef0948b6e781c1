"""Many small minimisations at once, each at its own pace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

#: The longest step. Parameters are in units of their prior, where one is already a big change.
_LONGEST = 1.0
#: The first step of all, which has no curvature to go by.
_FIRST = 0.3
#: Pairs of steps and gradient changes that the curvature is read from.
_MEMORY = 10


def minimise(
    cost: Callable[[Tensor], Tensor], start: Float[Tensor, "n d"], evaluations: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    r"""Lower n independent costs :math:`f_i(z_i)` together, each by its own quasi-Newton steps (L-BFGS).

    The problems share nothing but the call: one line search for all of them would go at the pace of the worst. Each
    evaluation of all costs is one trial for each problem: where it lowered the cost enough the problem moves on and
    chooses a new direction, elsewhere it goes back and tries a shorter step the next time. No cost ever rises.

    References:
        Nocedal and Wright, Numerical Optimization, chapter 7, 2006

    Arguments:
        cost: From parameters (n, d) to costs (n,); the i-th cost depends on the i-th parameters alone.
        start: Where to start, (n, d).
        evaluations: How often to evaluate ``cost`` and its gradient.

    Returns:
        The best parameters found, (n, d), and their costs, (n,).

    Example:
        >>> goal = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
        >>> z, f = minimise(lambda z: ((z - goal) * torch.tensor([1.0, 10.0])).square().sum(1), torch.zeros(2, 2), 20)
        >>> (z - goal).abs().max() < 1e-4
        tensor(True)
    """
    z = start.detach()
    f, g = _evaluate(cost, z)
    step, length = _steepest(g), torch.ones_like(f)[:, None]
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(evaluations - 1):
        trial = z + length * step
        f_trial, g_trial = _evaluate(cost, trial)
        better = f_trial <= f + 1e-4 * _dot(length * step, g)[:, 0]
        if not better.any() and float(length.max()) < 1e-4:
            break
        moved = better[:, None]
        change = torch.where(moved, trial - z, 0.0)
        bend = torch.where(moved, g_trial - g, 0.0)
        # a problem that stayed, or saw no upward curvature, has a pair of weight zero here: it does not count
        curvature = _dot(change, bend)
        weight = torch.where(curvature > 1e-10 * _dot(bend, bend), 1 / curvature, 0.0)
        pairs = [*pairs, (change, bend, weight)][-_MEMORY:]
        z, f, g = torch.where(moved, trial, z), torch.where(better, f_trial, f), torch.where(moved, g_trial, g)
        step = torch.where(moved, _newton(g, pairs), step)
        length = torch.where(moved, 1.0, 0.3 * length)
    return z, f


def _evaluate(cost: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        f = cost(z)
        (g,) = torch.autograd.grad(f.sum(), z)
    return f.detach(), g


def _newton(g: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The step that the curvature seen so far suggests: the two loops of L-BFGS."""
    q, parts = g, []
    for change, bend, weight in reversed(pairs):
        part = weight * _dot(change, q)
        parts.append(part)
        q = q - part * bend
    scale = -_steepest(g).norm(dim=1, keepdim=True) / g.norm(dim=1, keepdim=True).clamp_min(1e-30)
    for _, bend, weight in pairs:
        scale = torch.where(weight > 0, -1 / (weight * _dot(bend, bend)), scale)
    q = scale * q
    for (change, bend, weight), part in zip(pairs, reversed(parts), strict=True):
        q = q - change * (part + weight * _dot(bend, q))
    return _at_most(q, _LONGEST)


def _steepest(g: Tensor) -> Tensor:
    return _at_most(-g, _FIRST)


def _at_most(step: Tensor, longest: float) -> Tensor:
    return step * (longest / step.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1.0)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)
