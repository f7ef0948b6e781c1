"""Codes: the linear classifier against scikit-learn's, and the measure of invariance."""

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from pstn.vae import fit_probe, invariance


def codes(n=400, width=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    scale = torch.tensor([0.01, 1.0, 1.0, 3.0, 10.0, 1.0])[:width]  # codes are not standardised
    return (torch.randn(n, width, generator=generator) + torch.randn(4, width, generator=generator)[y]) * scale, y


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_it_is_scikit_learns(penalty):
    x, y = codes()
    ours = fit_probe(x, y, 4, penalty=penalty)
    theirs = LogisticRegression(C=1 / penalty, tol=1e-9, max_iter=10_000).fit(x.double().numpy(), y.numpy())
    torch.testing.assert_close(ours.weight, torch.from_numpy(theirs.coef_), atol=1e-4, rtol=1e-4)
    probs = (x.double() @ ours.weight.T + ours.bias).softmax(1)
    torch.testing.assert_close(probs, torch.from_numpy(theirs.predict_proba(x.double().numpy())), atol=1e-4, rtol=0)
    assert (ours(x).numpy() == theirs.predict(x.double().numpy())).all()


def test_a_number_without_information_is_harmless():
    x, y = codes()
    probe = fit_probe(torch.cat([x, torch.ones(len(x), 1)], dim=1), y, 4)
    assert probe.weight.isfinite().all()
    assert torch.equal(probe(torch.cat([x, torch.ones(len(x), 1)], dim=1)), fit_probe(x, y, 4)(x))


def test_bad_codes_are_refused():
    x, y = codes()
    with pytest.raises(ValueError, match="labels"):
        fit_probe(x, y[:-1], 4)
    x[3, 2] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        fit_probe(x, y, 4)


def test_invariance_is_zero_for_twins_and_one_for_strangers():
    z = torch.randn(4000, 5) * torch.tensor([1.0, 2.0, 3.0, 0.1, 1.0]) + 7
    assert invariance(z, z) == 0
    assert invariance(z, z[torch.randperm(4000)]) == pytest.approx(1.0, abs=0.05)
    near = z + 0.1 * z.std(0) * torch.randn(4000, 5)
    assert invariance(z, near) == pytest.approx(0.1 / math.sqrt(2), rel=0.1)
    assert invariance(10 * z, 10 * near) == pytest.approx(invariance(z, near), rel=1e-4)  # of no unit
    with pytest.raises(ValueError, match="shape"):
        invariance(z, z[:3])
