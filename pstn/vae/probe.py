"""How much of the labels a linear classifier finds in codes, and how far a code moves when its picture does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Probe:
    """A linear classifier of codes, :func:`fit_probe` makes it."""

    weight: Float[Tensor, "k f"]
    bias: Float[Tensor, " k"]

    def __call__(self, codes: Float[Tensor, "n f"]) -> Int64[Tensor, " n"]:
        """The most probable classes, (N,)."""
        return (codes.double() @ self.weight.T + self.bias).argmax(1)


def fit_probe(
    codes: Float[Tensor, "n f"], y: Int64[Tensor, " n"], classes: int, *, penalty: float = 1.0, steps: int = 50
) -> Probe:
    r"""Multinomial logistic regression: the minimum of :math:`\sum_i -\log p(y_i|z_i) + \frac\lambda2 \|W\|^2`.

    It is scikit-learn's ``LogisticRegression`` of :math:`C = 1/\lambda`, on whatever device the codes are: in float64,
    by Newton's method, a dozen steps.

    Arguments:
        codes: The codes, (N, F).
        y: Their labels, (N,).
        classes: How many classes.
        penalty: λ.
        steps: The most steps.

    Example:
        >>> codes = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
        >>> fit_probe(codes, torch.tensor([0, 0, 1, 1]), 2)(codes)
        tensor([0, 0, 1, 1])
    """
    if codes.ndim != 2 or y.shape != codes.shape[:1]:
        raise ValueError(f"codes have shape {tuple(codes.shape)} and labels {tuple(y.shape)}; expected (N, F) and (N,)")
    if penalty <= 0:
        raise ValueError(f"penalty is {penalty}; without one, separable classes have no minimum: expected more than 0")
    if not codes.isfinite().all():
        raise ValueError("the codes have NaN or infinite numbers; the network that made them has diverged")
    x = F.pad(codes.detach().double(), (0, 1), value=1.0)  # the last weight is the bias
    ridge = x.new_full((classes, x.shape[1]), penalty)
    ridge[:, -1] = 1e-6  # equal biases for all classes change nothing: something must choose
    true = F.one_hot(y, classes).double()
    weight = torch.zeros_like(ridge)
    loss = _loss(weight, x, y, ridge)
    for _ in range(steps):
        probs = (x @ weight.T).softmax(1)
        slope = (probs - true).T @ x + ridge * weight
        each = (probs[:, :, None] * x[:, None, :]).flatten(1)  # (N, K (F + 1))
        curvature = torch.diag(ridge.flatten()) - each.T @ each
        blocks = curvature.view(classes, x.shape[1], classes, x.shape[1])
        for k, p in enumerate(probs.unbind(1)):
            blocks[k, :, k] += (p[:, None] * x).T @ x
        step = torch.linalg.solve(curvature, slope.flatten()).view_as(weight)
        gain = float((step * slope).sum())
        while (new := _loss(weight - step, x, y, ridge)) > loss and gain > 1e-12 * loss:  # too far: half as far
            step, gain = step / 2, gain / 2
        weight, loss = weight - step, min(new, loss)
        if gain <= 1e-12 * loss:
            break
    return Probe(weight[:, :-1].contiguous(), weight[:, -1].contiguous())


def _loss(weight: Tensor, x: Tensor, y: Tensor, ridge: Tensor) -> float:
    return float(F.cross_entropy(x @ weight.T, y, reduction="sum") + 0.5 * (ridge * weight.square()).sum())


def invariance(codes: Float[Tensor, "n f"], twins: Float[Tensor, "n f"]) -> float:
    r"""How far a code moves when its picture does: the root mean square of :math:`z_i - z'_i` over that of
    :math:`z_i - z_j`, for pictures i, their moved twins i', and any two pictures.

    0 is a code that does not depend on the pose; 1 one in which a picture is as far from its twin as from any other.

    Arguments:
        codes: The codes of the pictures, (N, F).
        twins: The codes of the same pictures, moved.

    Example:
        >>> codes = torch.randn(100, 5)
        >>> invariance(codes, codes)
        0.0
    """
    if codes.shape != twins.shape:
        raise ValueError(f"codes have shape {tuple(codes.shape)} and their twins {tuple(twins.shape)}; expected one")
    codes, twins = codes.detach(), twins.detach()
    apart = 2 * codes.double().var(dim=0, correction=0).sum()  # the mean square distance of two draws
    return float(((codes - twins).double().square().sum(1).mean() / apart.clamp(min=1e-30)).sqrt())
