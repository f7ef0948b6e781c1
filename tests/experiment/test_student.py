"""The t-test against closed forms and against scipy."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import special, stats

from pstn.experiment.student import Welch, incomplete_beta, paired, quantile, two_sided, welch, within_deviation

POSITIVE = st.floats(0.05, 200)


@given(a=POSITIVE, b=POSITIVE, x=st.floats(0, 1))
def test_the_incomplete_beta_function_is_scipys(a, b, x):
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-12)


@given(t=st.floats(-50, 50), freedom=st.floats(0.5, 500))
def test_the_tail_is_scipys(t, freedom):
    assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 12.706204736432095, 1e4])
def test_the_tails_with_closed_forms(t):
    assert two_sided(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-8)  # Cauchy
    assert two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)
    assert two_sided(-t, 2) == two_sided(t, 2)


def test_a_table_value():
    assert two_sided(2.776445105, 4) == pytest.approx(0.05, rel=1e-8)  # the 97.5 % point of four degrees of freedom


SAMPLE = st.tuples(st.floats(-100, 100), st.floats(0.01, 10), st.integers(2, 30))


@given(a=SAMPLE, b=SAMPLE)
def test_welch_is_scipys(a, b):
    test, known = welch(*a, *b), stats.ttest_ind_from_stats(*a, *b, equal_var=False)
    assert test.t == pytest.approx(known.statistic, rel=1e-9, abs=1e-12)
    assert test.p == pytest.approx(known.pvalue, rel=1e-7, abs=1e-300)


@given(a=SAMPLE, b=SAMPLE, level=st.floats(0.5, 0.999))
def test_intervals_are_scipys(a, b, level):
    test = welch(*a, *b)
    known = stats.t.interval(level, test.freedom, test.difference, test.error)
    assert test.interval(level) == pytest.approx(known, rel=1e-7, abs=1e-9)


@given(level=st.floats(0.01, 0.9999), freedom=st.floats(0.5, 500))
def test_the_quantile_is_scipys(level, freedom):
    assert quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-7)


@given(a=SAMPLE, b=SAMPLE)
def test_the_difference_of_two_means_is_welchs(a, b):
    """A mean is a difference from nothing: the two tests are one."""
    one, other = (Welch(mean, deviation / math.sqrt(n), n - 1) for mean, deviation, n in (a, b))
    found, known = one.less(other), welch(*a, *b)
    for name in ("difference", "error", "freedom"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=1e-9, abs=1e-12)


@given(pairs=st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=20))
def test_paired_is_scipys(pairs):
    a, b = zip(*pairs, strict=True)
    differences = [x - y for x, y in pairs]
    assume(statistics.stdev(differences) > 1e-6 * (1 + max(map(abs, differences))))
    test, known = paired(a, b), stats.ttest_rel(a, b)
    assert test.t == pytest.approx(known.statistic, rel=1e-6, abs=1e-9)
    assert test.p == pytest.approx(known.pvalue, rel=1e-5, abs=1e-300)


@pytest.mark.parametrize("sizes", [(5, 5), (2, 3), (10, 5)])
def test_means_of_repeats_are_within_a_deviation_as_often_as_that(sizes):
    draws = np.random.default_rng(0).normal(size=(200_000, sum(sizes)))
    first, second = draws[:, : sizes[0]], draws[:, sizes[0] :]
    near = abs(first.mean(1) - second.mean(1)) <= first.std(1, ddof=1)
    assert within_deviation(*sizes) == pytest.approx(near.mean(), abs=0.004)


@pytest.mark.parametrize("pairs", [([1.0], [2.0]), ([1.0, 2.0], [0.0, 1.0]), ([1.0, math.nan], [0.0, 1.0])])
def test_pairs_that_say_nothing(pairs):
    assert paired(*pairs) is None


@pytest.mark.parametrize("figures", [(1, 0, 5, 2, 0, 5), (1, 0.1, 1, 2, 0.1, 5), (1, math.nan, 5, 2, 0.1, 5)])
def test_where_nothing_can_be_said_nothing_is(figures):
    assert welch(*figures) is None


@pytest.mark.parametrize("arguments", [(1, 1, 1.1), (0, 1, 0.5), (1, -1, 0.5)])
def test_outside_of_its_domain_it_is_an_error(arguments):
    with pytest.raises(ValueError, match="expected x from 0 to 1"):
        incomplete_beta(*arguments)
