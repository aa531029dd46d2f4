from math import sqrt

import pytest

from fedml_dapper.benches.statistics import estimate, holm, paired_difference, paired_p, ratio_of_means


def test_mean_std_and_interval_by_hand():
    found = estimate([60.0, 62.0, 67.0])

    assert (found.n, found.mean) == (3, 63.0)
    assert found.std == pytest.approx(sqrt((9 + 1 + 16) / 2))
    reach = 4.302653 * found.std / sqrt(3)  # t of 2 degrees of freedom, 97.5 %
    assert (found.interval.low, found.interval.high) == pytest.approx((63 - reach, 63 + reach), abs=1e-4)


def test_one_seed_has_no_spread():
    found = estimate([60.0])

    assert (found.n, found.mean, found.std, found.interval) == (1, 60.0, None, None)
    assert not found.is_clear


def test_equal_values_have_an_interval_of_no_width():
    found = estimate([60.0, 60.0])

    assert (found.std, found.interval.low, found.interval.high) == (0, 60, 60)


def test_differences_are_taken_seed_by_seed():
    ours, theirs = {1: 50.0, 2: 60.0, 3: 70.0}, {3: 71.0, 2: 61.5, 1: 50.5}

    found = paired_difference(theirs, ours)

    assert (found.n, found.mean) == (3, 1.0)
    assert found.std == pytest.approx(0.5)  # although the seeds themselves are 10 points apart
    assert found.interval.low < 0 < found.interval.high  # 4.30 * 0.5 / sqrt(3) is 1.24
    assert not found.is_clear


def test_only_shared_seeds_are_paired():
    found = paired_difference({1: 5.0, 2: 7.0, 9: 100.0}, {1: 4.0, 2: 5.0, 3: -100.0})

    assert (found.n, found.mean) == (2, 1.5)
    assert paired_difference({1: 5.0}, {2: 5.0}) is None


@pytest.mark.parametrize(
    ("values", "clear"), [([3.0, 3.2, 2.8], True), ([-3.0, -3.2, -2.8], True), ([3, -1, 1], False)]
)
def test_clear_means_that_the_interval_excludes_zero(values, clear):
    assert estimate(values).is_clear == clear


def test_a_ratio_of_means_and_fiellers_interval_by_hand():
    found = ratio_of_means([3.0, 4.0, 5.0], [5.0, 6.0, 7.0])

    assert found.mean == pytest.approx(4 / 6)
    # means 4 and 6, variances and covariance 1; t^2 / n = 4.302653^2 / 3 = 6.170942
    a, b, c = 36 - 6.170942, 24 - 6.170942, 16 - 6.170942
    ends = ((b - sqrt(b * b - a * c)) / a, (b + sqrt(b * b - a * c)) / a)
    assert (found.interval.low, found.interval.high) == pytest.approx(ends, abs=1e-5)
    assert found.interval.low < found.mean < found.interval.high


def test_a_ratio_has_no_interval_where_its_whole_may_be_nothing():
    assert ratio_of_means([3.0, -4.0, 5.0], [-5.0, 6.0, 7.0]).interval is None
    assert ratio_of_means([3.0], [6.0]).interval is None
    assert ratio_of_means([3.0], [6.0]).mean == 0.5


def test_a_paired_p_value_by_hand():
    ours, theirs = {1: 51.0, 2: 62.0, 3: 73.0}, {1: 50.0, 2: 60.0, 3: 70.0}

    # t = 2 / (1 / sqrt(3)) = 3.4641 at two degrees of freedom: 1 - t / sqrt(2 + t^2)
    assert paired_p(ours, theirs) == pytest.approx(1 - sqrt(12 / 14))
    assert paired_p(theirs, ours) == paired_p(ours, theirs)
    assert paired_p({1: 5.0}, {1: 4.0}) is None
    assert paired_p({1: 5.0, 2: 6.0}, {1: 4.0, 2: 5.0}) is None


def test_holms_correction_by_hand():
    """The smallest counts three times, the next twice, and none gets less than one before it."""
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"b": 0.03, "c": 0.06, "a": 0.06})
    assert holm({"a": 0.9, "b": 0.6}) == {"b": 1.0, "a": 1.0}
    assert holm({}) == {}
