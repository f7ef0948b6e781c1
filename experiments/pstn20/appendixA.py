"""P-STN 2020 (preprint), Appendix A: a transformation is linear in the picture; scales that are drawn for digits."""

from dataclasses import dataclass
from typing import Any

import torch

from experiments.mnist import PREPRINT, Subset, gaussian
from experiments.posed import NAN, look
from pstn import STN
from pstn.data import Data
from pstn.experiment import Experiment, Split, Table, classified, histograms, listed
from pstn.warp import warp

#: Draws for each digit.
DRAWS = 10


@dataclass(frozen=True)
class Seen:
    """Digits that are looked at again after training on them, as the appendix does."""

    n: int

    def __call__(self, fold: int) -> Split:
        train, validation, _ = Subset(self.n)(fold)
        return Split(train, validation, train)


@torch.no_grad()
def drawn(model: STN, data: Data) -> dict[str, Any]:
    """The scales of θ ~ q(θ|x), and T(x + n) - T(x) - T(n) for noise n, T drawn for the digit x, summed over pixels."""
    mode = model.training
    theta = model.eval()(data.x, samples=DRAWS).theta
    model.train(mode)
    scale = theta[..., model.family.names.index("log-scale")].exp().flatten()
    noise = torch.randn_like(data.x)
    both, one, other = (warp(x, model.family, theta[0]) for x in (data.x + noise, data.x, noise))
    residual = both - (one + other)
    low, middle, high = scale.quantile(torch.tensor([0.005, 0.5, 0.995], device=scale.device)).tolist()
    numbers = {"scale_low": low, "scale_median": middle, "scale_high": high}
    numbers |= {"residual_sum": residual.sum((1, 2, 3)).abs().mean(), "residual_max": residual.abs().max()}
    return {**classified(model, data), **numbers, "rotation": look(model, data)[0][:, 0].std(), "scales": listed(scale)}


def row(scale: float, **options: Any) -> Experiment:
    label = f"P-STN, σp = {scale:g}"
    shown = {"label": label, "samples": DRAWS, "measure": drawn, "grid": {"prior_scale": (scale,)}}
    return Experiment(f"pstn-{scale:g}", Seen(100), gaussian, PREPRINT, **{**shown, **options})


TABLE = Table(
    "pstn20/appendixA",
    "P-STN 2020, Appendix A: linearity, and the scales that are drawn",
    [row(0.05, paper={"residual_sum": (1.2e-5, NAN)}), row(0.1), row(0.4)],
    metrics=("residual_sum", "residual_max", "scale_low", "scale_median", "scale_high", "rotation", "accuracy"),
    figures={"scales": histograms("scales", "scale")},
    note="On the 100 digits that were trained on, 10 draws each; the scale's 0.5, 50 and 99.5 per cent quantiles. The "
    "residual is |Σ T(x + n) - T(x) - T(n)| over the pixels of a digit x, n ~ N(0, 1), mean over the digits. The empty "
    "surroundings count as 0 for it: with any other fill, T is affine.",
)
