"""Tests by ranks, for samples in which a network or two lie far from all others."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

#: How far from the median is far, in median distances from it times what makes these a deviation of normal numbers.
FAR, DEVIATION = 10.0, 1.4826
#: Of fewer numbers, most may lie together by chance, and others seem far from them.
FEWEST = 8


@dataclass(frozen=True)
class Ranks:
    """A test of whether numbers of one sample tend to be larger than those of another.

    Arguments:
        ahead: The part of all pairs in which the first sample's number is the larger one, equal ones counted half.
        p: How probable ranks as far from even as these are, in either direction, if the samples are alike.
        least: The least that such samples could give, however far apart they are.
    """

    ahead: float
    p: float
    least: float


def strays(values: Sequence[float]) -> bool:
    """Whether one of these numbers is far from most of them, as that of a network that has failed.

    A mean and its deviation say little then: one such number moves the first and widens the second. Of fewer than
    eight numbers it is not told.

    Example:
        >>> most = [83.1, 82.6, 81.4, 83.5, 82.9, 80.2, 83.7]
        >>> strays([*most, 7.4]), strays([*most, 81.5])
        (True, False)
    """
    if len(values) < FEWEST:
        return False
    middle = statistics.median(values)
    distances = [0.0 if value == middle else abs(value - middle) for value in values]  # both may be infinite
    return max(distances) > FAR * DEVIATION * statistics.median(distances)


def rank_sum(a: Sequence[float], b: Sequence[float]) -> Ranks | None:
    """The exact test of Mann and Whitney, equal numbers sharing their ranks; None without a number in each sample.

    References:
        On a test of whether one of two random variables is stochastically larger than the other (Mann & Whitney, 1947).

    Example:
        >>> test = rank_sum([84.2, 86.3, 85.1, 84.9], [83.1, 82.6, 7.4, 83.5])
        >>> test.ahead, round(test.p, 4), round(test.least, 4)
        (1.0, 0.0286, 0.0286)
    """
    if not a or not b:
        return None
    ranks = _doubled_ranks([*a, *b])
    # how many ways there are to choose so many of the ranks, by their sum
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in a)]
    for rank in ranks:
        for count in range(len(a), 0, -1):
            for total, number in ways[count - 1].items():
                ways[count][total + rank] = ways[count].get(total + rank, 0) + number
    found = sum(ranks[: len(a)])
    ahead = (found / 2 - len(a) * (len(a) + 1) / 2) / (len(a) * len(b))
    return Ranks(ahead, *_chances(ways[-1], found, len(a) * (len(ranks) + 1), comb(len(ranks), len(a))))


def signed_rank(differences: Sequence[float]) -> Ranks | None:
    """Wilcoxon's exact test of pairs by their differences, of which those of zero are left out; None if all are.

    References:
        Individual comparisons by ranking methods (Wilcoxon, 1945).

    Example:
        >>> test = signed_rank([0.3, 0.1, 0.4, 0.2, 0.5, 30.0])
        >>> round(test.ahead, 2), test.p
        (1.0, 0.03125)
    """
    told = [value for value in differences if value]
    if not told:
        return None
    ranks = _doubled_ranks([abs(value) for value in told])
    ways = {0: 1}
    for rank in ranks:
        more = dict(ways)
        for total, number in ways.items():
            more[total + rank] = more.get(total + rank, 0) + number
        ways = more
    found, most = sum(rank for rank, value in zip(ranks, told, strict=True) if value > 0), sum(ranks)
    ahead = (sum(value > 0 for value in differences) + (len(differences) - len(told)) / 2) / len(differences)
    return Ranks(ahead, *_chances(ways, found, most / 2, 2 ** len(ranks)))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each, from 1, where equal numbers share what they take up."""
    order = sorted(values)
    first = {value: n for n, value in reversed(list(enumerate(order)))}
    return [2 * first[value] + order.count(value) + 1 for value in values]


def _chances(ways: dict[int, int], found: float, middle: float, total: int) -> tuple[float, float]:
    """How probable a sum is that is as far from the middle as the one found, and the least that can be."""
    distances = (abs(found - middle), max(abs(each - middle) for each in ways))
    far = [sum(n for each, n in ways.items() if abs(each - middle) >= distance) for distance in distances]
    return far[0] / total, far[1] / total
