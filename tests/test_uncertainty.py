import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pstn.metrics import accuracy
from pstn.metrics import nll as measured_nll
from pstn.uncertainty import Temperature, conformal, pose_coverage, risk_coverage, selective_accuracy, strangeness


def predictions(n, k=5, seed=0, sharpness=2.0):
    """Probabilities and labels that are drawn from them: a model that is right about itself."""
    generator = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(n, k, generator=generator, dtype=torch.float64)).softmax(-1)
    return probs, probs.multinomial(1, generator=generator).squeeze(1)


# --- conformal sets ---


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_each_example_left_out_is_covered_exactly_as_often_as_the_rank_says(score, coverage):
    # Exchangeability makes the law exact: of n + 1 scores, all different, each in turn the new one, just those up to
    # the k-th smallest are covered, k = ceil((n + 1) c).
    n = 59
    probs, y = predictions(n + 1)
    covered = 0
    for i in range(n + 1):
        rest = torch.arange(n + 1) != i
        sets = conformal(probs[rest], y[rest], coverage, score=score, empty=True)
        covered += int(sets(probs[i : i + 1])[0, y[i]])
    wanted = math.ceil((n + 1) * coverage - 1e-9)
    strange = strangeness(probs, score).gather(1, y[:, None]).squeeze(1)
    if len(strange.unique()) == n + 1:
        assert covered == wanted
    assert covered >= wanted


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_in_sixteen_bits_are_covered_too(dtype, score):
    probs, y = predictions(999)
    probs = probs.to(dtype)
    for coverage in torch.linspace(0.05, 0.95, 19).tolist():
        held = conformal(probs, y, coverage, score=score, empty=True)(probs)
        assert held[torch.arange(999), y].double().mean() >= coverage


@given(st.integers(1, 60), st.floats(0.05, 0.95), st.sampled_from(["lac", "aps"]), st.integers(0, 10))
def test_the_calibration_examples_themselves_are_covered(n, coverage, score, seed):
    probs, y = predictions(n, seed=seed)
    held = conformal(probs, y, coverage, score=score)(probs)
    assert held.any(1).all()
    assert held[torch.arange(n), y].double().mean() >= coverage - 1e-9


def test_a_wrong_model_is_covered_too_by_larger_sets():
    probs, y = predictions(4000, k=10)
    flat = Temperature(4.0)(probs.log())
    sharp = Temperature(0.2)(probs.log())
    for model in (probs, flat, sharp):
        sets = conformal(model[:2000], y[:2000], 0.9)(model[2000:])
        assert abs(float(sets[torch.arange(2000), y[2000:]].double().mean()) - 0.9) < 0.03
    lost = predictions(4000, k=10, seed=1)[0]
    helpful, useless = (conformal(m[:2000], y[:2000], 0.9)(m[2000:]).sum(1).double().mean() for m in (probs, lost))
    assert helpful < 0.7 * useless


def test_too_few_examples_promise_nothing():
    probs, y = predictions(8)
    assert conformal(probs, y, 0.9).threshold == math.inf
    assert conformal(probs, y, 0.9)(probs).all()
    assert conformal(*predictions(9), 0.9).threshold < math.inf


def test_larger_coverage_never_gives_smaller_sets():
    probs, y = predictions(200)
    for score in ("lac", "aps"):
        small, large = (conformal(probs, y, c, score=score)(probs) for c in (0.6, 0.9))
        assert (large | ~small).all()


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1.0, 90.0])
def test_coverage_is_a_probability(coverage):
    with pytest.raises(ValueError, match="coverage is"):
        conformal(*predictions(20), coverage)


# --- who goes to a person ---


def test_the_curve_ends_at_the_accuracy_and_falls_for_an_oracle():
    probs, y = predictions(300)
    curve = risk_coverage(probs, y)
    assert 1 - float(curve.risk[-1]) == pytest.approx(accuracy(probs, y))
    assert curve.accuracy(0.0) == pytest.approx(accuracy(probs, y))
    oracle = risk_coverage(probs, y, (probs.argmax(1) != y).double())
    assert (oracle.risk.diff() >= -1e-12).all()
    assert oracle.area < curve.area
    assert selective_accuracy(probs, y, 0.3) > accuracy(probs, y) + 0.05


def test_equal_uncertainty_means_no_choice():
    probs, y = predictions(50)
    curve = risk_coverage(probs, y, torch.zeros(50))
    torch.testing.assert_close(curve.risk, torch.full_like(curve.risk, 1 - accuracy(probs, y)))
    order = torch.randperm(50)
    unsure = torch.arange(50) // 7
    torch.testing.assert_close(
        risk_coverage(probs, y, unsure).risk, risk_coverage(probs[order], y[order], unsure[order]).risk
    )


def test_shares_that_make_no_sense():
    probs, y = predictions(10)
    with pytest.raises(ValueError, match="handed is 1"):
        selective_accuracy(probs, y, 1.0)
    with pytest.raises(ValueError, match="10 inputs"):
        risk_coverage(probs, y, torch.zeros(9))


# --- temperature ---


@pytest.mark.parametrize("true", [0.3, 1.0, 2.5])
def test_a_temperature_is_found_again(true):
    probs, y = predictions(20_000)
    found = Temperature.fit(probs.log() * true, y)
    assert found.value == pytest.approx(true, rel=0.05)


@given(st.integers(0, 20))
def test_no_other_temperature_is_better(seed):
    probs, y = predictions(100, seed=seed)
    logits = 3 * probs.log()
    best = Temperature.fit(logits, y)
    least = measured_nll(best(logits), y)
    for factor in (0.8, 0.97, 1.03, 1.25):
        assert least <= measured_nll(Temperature(best.value * factor)(logits), y) + 1e-9
    assert torch.equal(best(logits).argmax(1), logits.argmax(1))


def test_logits_in_sixteen_bits_have_a_temperature():
    probs, y = predictions(2_000)
    assert Temperature.fit(probs.log().bfloat16(), y).value == pytest.approx(1, rel=0.1)


def test_impossible_classes_do_no_harm():
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [2.0, 0.0, -torch.inf]])
    assert math.isfinite(Temperature.fit(logits, torch.tensor([2, 0])).value)


# --- poses ---


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_an_honest_posterior_covers_as_often_as_it_says(level):
    generator = torch.Generator().manual_seed(0)
    theta, truth = (torch.randn(*shape, 3, generator=generator) for shape in ((400, 3000), (3000,)))
    found = pose_coverage(theta, truth, level)
    assert (found - level).abs().max() < 0.03
    assert (pose_coverage(0.3 * theta, truth, level) < level - 0.1).all()
    assert (pose_coverage(3 * theta, truth, level) > level + 0.05).all()


def test_angles_are_compared_on_the_circle():
    theta = math.pi + 0.1 * torch.randn(200, 50, 1)
    truth = torch.full((50, 1), -math.pi)
    assert pose_coverage(theta, truth) == 0
    before = theta.clone()
    assert pose_coverage(theta, truth, angles=(0,)) > 0.8
    assert torch.equal(theta, before)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"expected \(S, N, d\)"):
        pose_coverage(torch.zeros(5, 3, 2), torch.zeros(3, 1))
