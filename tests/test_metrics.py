import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pstn.families import Similarity
from pstn.metrics import Reliability, accuracy, brier, ece, nll, overlap, reliability, summary


def predictions(n=200, classes=5, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(n, classes, generator=generator)).softmax(-1)
    return probs, torch.randint(classes, (n,), generator=generator)


def test_by_hand():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64)
    y = torch.tensor([0, 2, 2])
    assert accuracy(probs, y) == pytest.approx(2 / 3)
    assert nll(probs, y) == pytest.approx(-torch.tensor([0.7, 0.3, 0.8]).log().mean().item())
    assert brier(probs, y) == pytest.approx((0.14 + 0.74 + 0.06) / 3)
    # bins of width a half: (0.4) right never, (0.7, 0.8) right always
    assert ece(probs, y, bins=2) == pytest.approx((0.4 + 2 * 0.25) / 3)


def test_a_perfect_and_a_perfectly_wrong_prediction():
    probs = torch.eye(3)
    right, wrong = torch.arange(3), torch.tensor([1, 2, 0])
    assert summary(probs, right) == pytest.approx({"accuracy": 1, "nll": 0, "brier": 0, "ece": 0}, abs=1e-6)
    assert summary(probs, wrong) == pytest.approx({"accuracy": 0, "nll": float("inf"), "brier": 2, "ece": 1})


@settings(max_examples=40)
@given(
    st.integers(1, 300), st.integers(2, 12), st.integers(1, 40), st.sampled_from([0.1, 2.0, 200.0]), st.integers(0, 99)
)
def test_scores_are_what_their_definitions_say(n, classes, bins, sharpness, seed):
    """One prediction after the other, in Python's own numbers."""
    probs, y = predictions(n, classes, seed, sharpness)
    edges = torch.linspace(0, 1, bins + 1).tolist()
    gaps, right = [0.0] * bins, 0
    for row, label in zip(probs.tolist(), y.tolist(), strict=True):
        confidence = max(row)
        hit = row.index(confidence) == label
        inside = max(k for k in range(bins) if edges[k] <= confidence)  # sharp ones are sure to exactly one: the last
        gaps[inside] += hit - confidence
        right += hit
    assert accuracy(probs, y) == pytest.approx(right / n)
    assert ece(probs, y, bins) == pytest.approx(math.fsum(map(abs, gaps)) / n, abs=1e-6)
    assert reliability(probs, y, bins).count.sum() == n


def test_accuracy_is_scikit_learns():
    from sklearn.metrics import accuracy_score

    probs, y = predictions(500)
    assert accuracy(probs, y) == pytest.approx(accuracy_score(y, probs.argmax(-1)))


def test_a_confidence_of_one_is_in_the_last_bin():
    probs, y = torch.tensor([[1.0, 0.0], [0.9, 0.1]]), torch.tensor([1, 0])  # sure and wrong, less sure and right
    table = reliability(probs, y, bins=2)
    assert table.count.tolist() == [0, 2]
    assert table.ece == pytest.approx(0.45)
    assert ece(probs, y, bins=2) == pytest.approx(0.45)


def test_what_is_left_of_the_error_by_chance_is_the_binomials_own_spread():
    from scipy.stats import binom

    for n, p in ((1, 0.3), (2, 0.5), (7, 0.0), (7, 1.0), (50, 0.9), (4000, 0.999)):
        table = Reliability(torch.tensor([0.0, 1.0]), torch.tensor([p]), torch.tensor([0.5]), torch.tensor([n]))
        exact = binom(n, table.confidence.item()).expect(lambda right, n=n, p=p: abs(right / n - p))
        assert table.chance == pytest.approx(exact, rel=1e-4, abs=1e-6)


def test_exact_confidences_have_the_error_of_chance():
    probs = torch.rand(4000, 3).softmax(-1)
    found = [reliability(probs, torch.multinomial(probs, 1).squeeze(1)) for _ in range(60)]
    wanted = sum(table.chance for table in found) / len(found)
    assert sum(table.ece for table in found) / len(found) == pytest.approx(wanted, rel=0.1)
    assert reliability((3 * probs.log()).softmax(-1), torch.multinomial(probs, 1).squeeze(1)).ece > 5 * wanted


def test_empty_bins_add_nothing():
    probs = torch.full((6, 2), 0.5)
    assert reliability(probs, torch.zeros(6, dtype=torch.int64), bins=4).chance == pytest.approx(
        reliability(probs, torch.zeros(6, dtype=torch.int64), bins=1).chance
    )


def test_the_table():
    probs, y = predictions()
    table = reliability(probs, y, bins=10)
    confidence, named = probs.max(-1)
    torch.testing.assert_close(table.edges, torch.linspace(0, 1, 11))
    for k in range(10):
        inside = (confidence >= table.edges[k]) & (confidence < table.edges[k + 1])
        assert table.count[k] == inside.sum()
        if inside.any():
            torch.testing.assert_close(table.confidence[k], confidence[inside].mean())
            torch.testing.assert_close(table.accuracy[k], (named == y)[inside].float().mean())
        else:
            assert table.confidence[k].isnan()
            assert table.accuracy[k].isnan()
    assert not table.count[0]  # with five classes nobody is less sure than a fifth
    total = (table.accuracy.nan_to_num() * table.count).sum() / 200
    assert total.item() == pytest.approx(accuracy(probs, y))


def test_calibrated_predictions_have_little_error():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(50_000, 4, generator=generator).softmax(-1)
    y = torch.multinomial(probs, 1, generator=generator).squeeze(-1)
    assert ece(probs, y) < 0.01
    assert ece((5 * probs.log()).softmax(-1), y) > 0.2  # too sure
    assert nll(probs, y) < nll((5 * probs.log()).softmax(-1), y)
    assert brier(probs, y) < brier((0.2 * probs.log()).softmax(-1), y)


def test_several_labels_an_input_are_as_many_predictions():
    probs, y = predictions(60)
    assert summary(probs.view(20, 3, 5), y.view(20, 3)) == summary(probs, y)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 5e-2)])
def test_half_precision_probabilities(dtype, tolerance):
    probs, y = predictions()
    assert summary(probs.to(dtype), y) == pytest.approx(summary(probs, y), abs=tolerance)


def test_a_probability_just_below_zero_is_zero():
    assert nll(torch.tensor([[1.0, -1e-7]]), torch.tensor([1])) == math.inf


def test_a_tiny_probability_does_not_overflow():
    assert nll(torch.tensor([[1e-30, 1.0]]), torch.tensor([0])) == pytest.approx(69.0776, rel=1e-4)


@pytest.mark.parametrize("metric", [accuracy, nll, brier, ece, reliability, summary])
@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda p, y: (p[:, 0], y), ValueError, "expected \\(N, K\\) and \\(N,\\)"),
        (lambda p, y: (p, y[:5]), ValueError, "expected \\(N, K\\) and \\(N,\\)"),
        (lambda p, y: (p[:0], y[:0]), ValueError, "no predictions"),
        (lambda p, y: (p.log(), y), ValueError, "200 of 200 predictions are not probabilities"),
        (lambda p, y: (2 * p, y), ValueError, "sum to 1"),
        (lambda p, y: (p.masked_fill(p > 0.9, torch.nan), y), ValueError, "not finite"),
        (lambda p, y: (p.long(), y), TypeError, "probabilities are torch.int64"),
        (lambda p, y: (p, y.float()), TypeError, "labels are torch.float32"),
        (lambda p, y: (p, y + 1), ValueError, "labels go from 1 to 5; 5 classes need 0 ... 4"),
        (lambda p, y: (p, y - 1), ValueError, "labels go from -1 to 3"),
    ],
)
def test_bad_input(metric, spoil, error, message):
    with pytest.raises(error, match=message):
        metric(*spoil(*predictions()))


@pytest.mark.parametrize("metric", [ece, reliability, summary])
def test_bad_bins(metric):
    with pytest.raises(ValueError, match="bins is 0"):
        metric(*predictions(), bins=0)


def test_windows_that_are_points_have_nothing_in_common():
    family = Similarity(scale="linear")
    point, whole = torch.tensor([0.0, -1.0, 0.0, 0.0]), torch.zeros(4)
    pairs = [(point, point), (point, whole), (whole, point), (whole, whole)]
    found = overlap(family, *(torch.stack(each) for each in zip(*pairs, strict=True)))
    assert found.tolist() == [0.0, 0.0, 0.0, 1.0]
