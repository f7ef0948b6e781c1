"""Tests by ranks, against all ways to choose, against scipy, and their laws."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pstn.experiment.ranks import rank_sum, signed_rank, strays

#: Few values, so that many are equal.
TIED = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=5)
ANY = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)


@given(a=ANY, b=ANY)
def test_without_equal_numbers_both_are_scipys(a, b):
    if len({*a, *b}) == len(a) + len(b):
        wanted, found = stats.mannwhitneyu(a, b, method="exact"), rank_sum(a, b)
        assert found.p == pytest.approx(wanted.pvalue)
        assert found.ahead * len(a) * len(b) == pytest.approx(wanted.statistic)
    if len({abs(x) for x in a} - {0.0}) == len(a):
        assert signed_rank(a).p == pytest.approx(stats.wilcoxon(a, method="exact").pvalue)


@given(a=TIED, b=TIED)
def test_with_equal_numbers_it_is_how_many_ways_to_choose_are_as_uneven(a, b):
    ranks = stats.rankdata([*a, *b])
    sums = [sum(chosen) for chosen in itertools.combinations(ranks, len(a))]
    middle = len(a) * (len(ranks) + 1) / 2
    far = [abs(each - middle) >= abs(sum(ranks[: len(a)]) - middle) for each in sums]
    assert rank_sum(a, b).p == pytest.approx(sum(far) / len(far))


@given(values=TIED.map(lambda each: [x - 2 for x in each]))
def test_pairs_with_equal_differences_count_all_signs(values):
    told = [x for x in values if x]
    if not told:
        assert signed_rank(values) is None
        return
    ranks = stats.rankdata([abs(x) for x in told])
    middle = sum(ranks) / 2
    found = sum(rank for rank, x in zip(ranks, told, strict=True) if x > 0)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    far = [abs(each - middle) >= abs(found - middle) for each in sums]
    assert signed_rank(values).p == pytest.approx(sum(far) / len(far))


@given(a=ANY, b=ANY)
def test_who_comes_first_is_all_that_a_swap_changes(a, b):
    one, other = rank_sum(a, b), rank_sum(b, a)
    assert (one.p, one.least) == (pytest.approx(other.p), pytest.approx(other.least))
    assert one.ahead == pytest.approx(1 - other.ahead)
    assert one.least <= one.p * (1 + 1e-12)


def test_how_far_does_not_matter():
    a, b = [84.0, 86.0, 85.0, 83.5], [83.0, 82.0, 81.0, 7.4]
    assert rank_sum(a, b) == rank_sum(a, [*b[:3], -math.inf])
    assert rank_sum(a, b).p == 2 / math.comb(8, 4)
    assert signed_rank([1.0, 2.0, 3.0]) == signed_rank([1.0, 2.0, math.inf])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([], False),
        ([1.0] * 8, False),
        ([1.0] * 7 + [1.1], True),  # all others are the same
        ([1.0] * 6 + [1.1], False),  # too few
        ([*range(8), 15], False),
        ([*range(8), 60], True),
        ([*range(8), math.inf], True),
        ([math.inf] * 8, False),
        ([math.inf] * 8 + [1.0], True),
    ],
)
def test_what_is_far_from_the_others(values, wanted):
    assert strays(values) is wanted


def test_nothing_says_nothing():
    assert rank_sum([], [1.0]) is None
    assert signed_rank([0.0, 0.0]) is None
