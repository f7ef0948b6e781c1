"""Spatial transformers that bend: STN and P-STN with CPAB warps train on a hundred digits, on a CPU, in seconds."""

import pytest
import torch

from pstn import STN, Compose, Gaussian, Point, Similarity, elbo, nets, param_groups, predict
from pstn.data import Normalise, digits
from pstn.families.cpab import CPAB
from pstn.train.seed import seeded

STEPS, BATCH, HOLD = 36, 25, 8


@pytest.fixture(scope="module")
def few():
    data = digits().balanced_subset(10, seed=0)
    how = Normalise(mean=0.1307, std=0.3081)
    return data.normalised(how), how.fill


def smooth():
    """The Gaussian posterior against the smoothness prior of the fields."""
    return Gaussian(covariance=CPAB((3, 3)).prior(length_scale=0.5, variance=0.01).covariance_matrix, spread=0.03)


def train(model, data, samples):
    """The losses of a few dozen steps. The localizer learns fast here, since there is little time."""
    optimizer = torch.optim.Adam(param_groups(model, lr=3e-3, localizer=1.0))
    losses = []
    for step in range(STEPS):
        batch = torch.arange(BATCH * step, BATCH * (step + 1)) % len(data)
        loss = elbo(model(data.x[batch], samples=samples), data.y[batch], kl_weight=1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("family", "posterior"),
    [(CPAB((3, 3)), Point()), (CPAB((3, 3)), smooth()), (Compose(Similarity(), CPAB((2, 2))), Point())],
    ids=["STN", "P-STN", "similarity and STN"],
)
def test_it_learns_to_bend(few, family, posterior):
    data, fill = few
    with seeded(0):
        model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), family, posterior, fill=fill)
        if family.dim == 34:
            assert (model(data.x[:5], samples=0).theta == 0).all(), "it starts at the identity"
        losses = train(model, data, samples=1)
    assert all(loss == loss for loss in losses)
    first, last = sum(losses[:HOLD]) / HOLD, sum(losses[-HOLD:]) / HOLD
    assert last < 0.8 * first, losses

    model.eval()
    with torch.no_grad(), seeded(1):
        out = model(data.x, samples=2)
        centre = model(data.x, samples=0).theta[0]
        p = predict(model, data.x[:20], samples=2)
    assert p.probs.isfinite().all()
    assert out.warped.isfinite().all()
    assert centre.abs().max() > 0.01, "the warps are still the identity"
    assert centre.std(0).max() > 1e-3, "every digit gets the same warp"

    # invertible: there and back, and the area is nowhere turned over
    points = 1.9 * torch.rand(64, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.95
    theta = out.theta.flatten(0, 1).double()
    there = family(theta, points)
    torch.testing.assert_close(family.invert(theta, there), points.expand_as(there), atol=1e-8, rtol=0)
    if isinstance(family, CPAB):
        swell = family.log_det(theta, points)
        assert swell.isfinite().all()
        assert swell.abs().max() > 1e-3
        assert there.abs().max() <= 1, "the border stays the border"
