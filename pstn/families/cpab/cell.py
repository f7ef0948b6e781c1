r"""The exact flow inside one simplex, for many at once.

The barycentric coordinates obey :math:`\dot b = M b`. By Cayley and Hamilton, with
:math:`M^{k+1} = \sum_j P_j M^{k+1-j}`, the solution needs k scalar functions only,
:math:`b(s) = b + \sum_{i=1}^k f_i(s) M^i b`. All of them come from one, with
:math:`\beta^{(k)} = 1 + \sum_j P_j \beta^{(k-j)}` and :math:`\beta(0) = \dots = \beta^{(k-1)}(0) = 0`:
:math:`f_{k-m} = \beta^{(m)} - \sum_{j \le m} P_j \beta^{(m-j)}`. Its Taylor series has no small denominators, so zero,
nilpotent and singular matrices are nothing special.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: The longest step, in units of 1 / spectral radius, and how many terms the series need for it in float64.
REACH, TERMS = 1.0, 18


def solution(invariants: Tensor, s: Tensor) -> list[Tensor]:
    """The functions f_1 ... f_k at s, from the series of beta and its derivatives."""
    k = len(invariants)
    p = _powers(invariants, s)
    sums, last = [torch.ones_like(s).div_(math.factorial(k - i)) for i in range(k)], [torch.ones_like(s)]
    for n in range(k + 1, k + TERMS):
        last = [combine(p[: len(last)], last), *last[: k - 1]]
        for i, total in enumerate(sums):
            sums[i] = accumulate(total, last[0], math.factorial(n - i))
    found, scale = [], s
    for m in range(k - 1, -1, -1):
        for j in range(1, m + 1):
            sums[m] = sums[m] - p[j - 1] * sums[m - j]
        found.append(sums[m] * scale)
        scale = scale * s
    return found


def differentiate(functions: list[Tensor], invariants: Tensor, one: float = 1.0) -> list[Tensor]:
    """f' by f: f_1' = 1 + P_k f_k and f_i' = f_(i-1) + P_(k-i+1) f_k; higher derivatives without the 1."""
    last, k = functions[-1], len(functions)
    first = invariants[k - 1] * last + one
    return [first, *(torch.addcmul(functions[i - 1], invariants[k - 1 - i], last) for i in range(1, k))]


def sensitivities(invariants: Tensor, s: Tensor) -> list[list[Tensor]]:
    r"""The derivatives of f_1 ... f_k by P_j, for each j.

    :math:`\partial \beta / \partial P_j = \gamma^{(k-j)}` where :math:`\gamma^{(k)} = \beta + \sum_j P_j
    \gamma^{(k-j)}`: one more series. The rest is the definition of the f_i, differentiated.
    """
    k = len(invariants)
    p = _powers(invariants, s)
    sums = [torch.full_like(s, 1 / math.factorial(2 * k - i)) for i in range(k)]
    betas, gammas = [torch.ones_like(s)], [torch.ones_like(s)]
    for n in range(2 * k + 1, 2 * k + TERMS):
        betas = [combine(p[: len(betas)], betas), *betas[: k - 1]]
        gammas = [combine(p[: len(gammas)], gammas, betas[0]), *gammas[: k - 1]]
        for i, total in enumerate(sums):
            sums[i] = accumulate(total, gammas[0], math.factorial(n - i))
    gamma = [total * s ** (2 * k - i) for i, total in enumerate(sums)]

    def slope(m: int, j: int) -> Tensor:  # of f_(k-m) by P_j
        if j <= m:
            return combine(list(invariants[m:]), [gamma[k - j + m - a] for a in range(m + 1, k + 1)])
        found = gamma[k - j + m].clone()
        for a in range(1, m + 1):
            found.addcmul_(invariants[a - 1], gamma[k - j + m - a], value=-1)
        return found

    return [[slope(k - i, j) for i in range(1, k + 1)] for j in range(1, k + 1)]


def characteristic(rates: Tensor, k: int) -> list[Tensor]:
    """P_1 ... P_k of the characteristic polynomial, from the traces of powers by Newton's identities."""
    traces: list[Tensor] = []
    found: list[Tensor] = []
    power = rates
    for j in range(1, k + 1):
        traces.append(power.diagonal().sum(-1))
        known = [found[i] * traces[j - 2 - i] for i in range(j - 1)]
        found.append((traces[-1] - sum(known)) / j)
        power = matmul(power, rates) if j < k else power
    return found


def _powers(invariants: Tensor, s: Tensor) -> list[Tensor]:
    found, scale = [], s
    for p in invariants:
        found.append(p * scale)
        scale = scale * s
    return found


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrices (i, j, n) times matrices (j, l, n)."""
    found = a[:, :1] * b[0]
    for j in range(1, len(b)):
        found.addcmul_(a[:, j, None], b[j])
    return found


def matvec(matrix: Tensor, b: Tensor) -> Tensor:
    """Matrices (i, j, n) times vectors (j, n)."""
    found = matrix[:, 0] * b[0]
    for j in range(1, len(b)):
        found.addcmul_(matrix[:, j], b[j])
    return found


def combine(weights: list[Tensor], values: list[Tensor], start: Tensor | None = None) -> Tensor:
    """start + weights · values, as far as both go."""
    pairs = zip(weights, values, strict=False)
    if start is None:
        weight, value = next(pairs)
        found = weight * value
    else:
        found = start.clone()
    for weight, value in pairs:
        found.addcmul_(weight, value)
    return found


def accumulate(total: Tensor, term: Tensor, factorial: int) -> Tensor:
    """total + term / factorial."""
    if torch.compiler.is_compiling():
        return total + term / factorial  # exported graphs have numbers in float32: whole ones are exact where it counts
    return total.add_(term, alpha=1 / factorial)
