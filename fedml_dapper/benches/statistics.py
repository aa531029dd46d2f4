"""Statistics over seeds: means, their confidence intervals, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import covariance, fmean, stdev, variance

from scipy.special import stdtr, stdtrit

from fedml_dapper.federation.run_folder.records import Record

CONFIDENCE = 0.95


class Interval(Record):
    """Confidence interval of 95 % for the mean, if seeds scatter normally."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


class Estimate(Record):
    """A number over seeds. One seed has no spread: ``std`` and ``interval`` are None, not zero."""

    n: int
    mean: float
    std: float | None
    """Sample standard deviation (n - 1)."""
    interval: Interval | None
    """Interval by Student's t."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero; for differences."""
        return self.interval is not None and self.interval.excludes_zero


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate from one value per seed, with at least one seed."""
    mean = fmean(values)
    n = len(values)
    if n == 1:
        return Estimate(n=1, mean=mean, std=None, interval=None)
    std = stdev(values)
    reach = _quantile(n) * std / sqrt(n)
    return Estimate(n=n, mean=mean, std=std, interval=Interval(low=mean - reach, high=mean + reach))


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Estimate | None:
    """Estimate ``values - reference``, both by seed, over the seeds that both have; None where they share none.

    Equal seeds mean equal partitions, levels, initial weights and batches, so what these add to both cancels.
    """
    shared = sorted(values.keys() & reference.keys())
    return estimate([values[seed] - reference[seed] for seed in shared]) if shared else None


def paired_p(values: Mapping[int, float], reference: Mapping[int, float]) -> float | None:
    """Return the two-sided p-value of Student's t for ``values - reference``, both by seed.

    It is None where they share less than two seeds, or differ by the same in all of them.
    """
    shared = sorted(values.keys() & reference.keys())
    differences = [values[seed] - reference[seed] for seed in shared]
    if len(differences) < 2 or (spread := stdev(differences)) == 0:
        return None
    t = fmean(differences) / (spread / sqrt(len(differences)))
    return float(2 * stdtr(len(differences) - 1, -abs(t)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values that hold for all of several comparisons at once (Holm, 1979), by name."""
    adjusted = dict[str, float]()
    largest = 0.0
    left = len(p_values)
    for name, p_value in sorted(p_values.items(), key=lambda entry: entry[1]):
        largest = max(largest, min(1.0, left * p_value))
        adjusted[name] = largest
        left -= 1
    return adjusted


def ratio_of_means(parts: Sequence[float], wholes: Sequence[float]) -> Estimate:
    """Estimate mean of ``parts`` / mean of ``wholes``, paired by seed, with Fieller's interval (1954).

    The interval holds every ratio r for which ``parts - r * wholes`` may have mean 0. It is None for one seed, and
    where the mean of ``wholes`` may be 0 itself, so that no ratio is excluded. A ratio has no ``std`` over seeds.
    """
    part = fmean(parts)
    whole = fmean(wholes)
    n = len(parts)
    ratio = part / whole
    if n == 1:
        return Estimate(n=1, mean=ratio, std=None, interval=None)
    reach = _quantile(n) ** 2 / n
    # the interval ends where a r^2 - 2 b r + c = 0
    a = whole**2 - reach * variance(wholes)
    b = part * whole - reach * covariance(parts, wholes)
    c = part**2 - reach * variance(parts)
    if a <= 0:
        return Estimate(n=n, mean=ratio, std=None, interval=None)
    half = sqrt(max(0.0, b**2 - a * c))
    return Estimate(n=n, mean=ratio, std=None, interval=Interval(low=(b - half) / a, high=(b + half) / a))


def _quantile(n: int) -> float:
    """Quantile of Student's t for the mean of ``n`` values."""
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
