"""The two-sample t-test from means and deviations, as papers report them, and that of pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Welch:
    """A t-test of the difference of two means.

    Arguments:
        difference: The first mean less the second.
        error: Its standard error.
        freedom: Degrees of freedom; Welch and Satterthwaite's, of two samples.
    """

    difference: float
    error: float
    freedom: float

    @property
    def t(self) -> float:
        """The difference over its standard error."""
        return self.difference / self.error

    @property
    def p(self) -> float:
        """How probable a difference as large as this is, in either direction, if the means are equal."""
        return two_sided(self.t, self.freedom)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the difference is to be expected: from the first number to the second, at a level of confidence."""
        half = quantile(level, self.freedom) * self.error
        return self.difference - half, self.difference + half

    def apart(self, margin: float) -> float:
        """How probable a difference as small as this is, if the means are apart by ``margin`` or more: the larger
        probability of two one-sided tests, which says that means are alike where :attr:`p` only fails to tell them
        apart.

        References:
            A comparison of the two one-sided tests procedure and the power approach (Schuirmann, 1987).

        Example:
            >>> round(Welch(0.1, 0.2, 8).apart(1.0), 4), round(Welch(0.9, 0.2, 8).apart(1.0), 4)
            (0.001, 0.3153)
        """
        t = (margin - abs(self.difference)) / self.error
        beyond = two_sided(t, self.freedom) / 2
        return beyond if t > 0 else 1 - beyond

    def less(self, other: Welch) -> Welch:
        """The test of this difference less another, independent one.

        Example:
            >>> ours, papers = Welch(0.1, 0.2, 8), Welch(0.9, 0.2, 8)
            >>> found = ours.less(papers)
            >>> round(found.t, 3), round(found.freedom, 2), round(found.p, 4)
            (-2.828, 16.0, 0.0121)
        """
        a, b = self.error**2, other.error**2
        freedom = (a + b) ** 2 / (a**2 / self.freedom + b**2 / other.freedom)
        return Welch(self.difference - other.difference, math.sqrt(a + b), freedom)


def welch(mean_a: float, deviation_a: float, n_a: int, mean_b: float, deviation_b: float, n_b: int) -> Welch | None:
    r"""Welch's test, :math:`t = (m_a - m_b) / \sqrt{s_a^2/n_a + s_b^2/n_b}`; two-sided.

    References:
        The generalization of "Student's" problem when several population variances are involved (Welch, 1947).

    Arguments:
        mean_a: Mean of the first sample.
        deviation_a: Its sample deviation, with n - 1.
        n_a: Its size.
        mean_b: Mean of the second sample.
        deviation_b: Its sample deviation.
        n_b: Its size.

    Returns:
        The test; None where it says nothing: a sample of one, or two samples without any deviation.

    Example:
        >>> test = welch(92.7, 0.74, 5, 91.9, 0.77, 5)
        >>> round(test.t, 3), round(test.freedom, 2), round(test.p, 4)
        (1.675, 7.99, 0.1325)
    """
    if min(n_a, n_b) < 2 or not all(map(math.isfinite, (mean_a, deviation_a, mean_b, deviation_b))):
        return None
    a, b = deviation_a**2 / n_a, deviation_b**2 / n_b
    if a + b == 0:
        return None
    freedom = (a + b) ** 2 / (a**2 / (n_a - 1) + b**2 / (n_b - 1))
    return Welch(mean_a - mean_b, math.sqrt(a + b), freedom)


def paired(a: Sequence[float], b: Sequence[float]) -> Welch | None:
    r"""Student's test of pairs, :math:`t = \bar d \sqrt n / s_d` with d the differences; two-sided.

    Where two networks learn from the same examples fold by fold, it does not count what the folds have in common.

    Arguments:
        a: The first of each pair.
        b: The second.

    Returns:
        The test; None where it says nothing: less than two pairs, or differences that are all the same.

    Example:
        >>> test = paired([0.67, 0.70, 0.61], [0.64, 0.66, 0.59])
        >>> round(test.t, 3), test.freedom, round(test.p, 4)
        (5.196, 2, 0.0351)
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return None
    deviation = statistics.stdev(differences)
    if deviation == 0:
        return None
    return Welch(statistics.mean(differences), deviation / math.sqrt(len(differences)), len(differences) - 1)


def within_deviation(first: int, second: int) -> float:
    r"""How probable it is that a second sample's mean is within the first's deviation of its mean, if both are of one
    normal distribution: :math:`P(|t| \le (1/n_1 + 1/n_2)^{-1/2})` with :math:`n_1 - 1` degrees of freedom.

    Arguments:
        first: The size of the first sample, at least two.
        second: The size of the second.

    Example:
        >>> round(within_deviation(5, 5), 3)  # so many of the cells of a table, if it is repeated as it was
        0.811
    """
    return 1 - two_sided((1 / first + 1 / second) ** -0.5, first - 1)


def two_sided(t: float, freedom: float) -> float:
    r"""The probability that a Student-t of ν degrees of freedom is beyond ±t: :math:`I_{\nu/(\nu + t^2)}(\nu/2, 1/2)`.

    Example:
        >>> round(two_sided(2.0, 2), 6)  # 1 - t/sqrt(2 + t²)
        0.183503
    """
    square = t * t
    if square < 1:  # the same by its other end, where the difference from 1 is not lost
        return 1 - incomplete_beta(0.5, freedom / 2, square / (freedom + square))
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square))


def quantile(level: float, freedom: float) -> float:
    """The t within whose ± a Student-t of so many degrees of freedom is with a probability of ``level``.

    Example:
        >>> round(quantile(0.95, 4), 6)
        2.776445
    """
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - level:
        low, high = high, 2 * high
    for _ in range(60):  # halved, until there is nothing between the two
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - level else (low, middle)
    return high


def incomplete_beta(a: float, b: float, x: float) -> float:
    r"""The regularised incomplete beta function :math:`I_x(a, b)`, by its continued fraction.

    Arguments:
        a: First parameter, positive.
        b: Second parameter, positive.
        x: Where, from 0 to 1.

    Example:
        >>> incomplete_beta(1.0, 3.0, 0.5)  # 1 - (1 - x)³
        0.875
    """
    if not 0 <= x <= 1 or a <= 0 or b <= 0:
        raise ValueError(f"I_x(a, b) at x = {x}, a = {a}, b = {b}; expected x from 0 to 1, a and b above 0")
    if x in (0, 1):
        return float(x)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - incomplete_beta(b, a, 1 - x)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """1/(1 + d₁/(1 + d₂/(1 + ...))) by Lentz's method; every even and odd coefficient has its own formula."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or tiny)
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
