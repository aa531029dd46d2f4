"""Whole noise has exactly its probabilities, small and huge, whatever floating point makes of them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from math import exp

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from fedml_dapper.randomness import discrete_gaussian as module
from fedml_dapper.randomness.chacha20 import Noise


@pytest.mark.parametrize("std", [1, 2, 3, 7, 40])
def test_each_number_comes_as_often_as_its_probability_says(std: int) -> None:
    count = 400_000
    drawn = Noise.of_run(3, std).discrete(std, count)
    reach = 3 * std
    inner = np.array([exp(-(y**2) / (2 * std**2)) for y in range(-reach, reach + 1)])
    everything = sum(exp(-(y**2) / (2 * std**2)) for y in range(-40 * std, 40 * std + 1))
    expected = np.append(inner, everything - inner.sum()) * count / everything
    within = np.abs(drawn) <= reach
    seen = np.append(np.bincount(drawn[within] + reach, minlength=2 * reach + 1), count - within.sum())
    assert expected.min() > 20
    assert chisquare(seen, expected).pvalue > 0.01


@pytest.mark.parametrize("std", [10**4, 2**20 + 7, module.LARGEST_STD])
def test_where_it_is_huge_it_is_a_normal_number_cut_off(std: int) -> None:
    drawn = Noise.of_run(5, 1).discrete(std, 300_000)
    assert kstest(drawn / std, "norm").pvalue > 0.01
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01
    if std > 2**20:
        assert chisquare(np.bincount(drawn % 64, minlength=64)).pvalue > 0.01  # also in the last digits


@pytest.mark.parametrize("std", [1, 5, 2**27])
def test_decimal_numbers_decide_as_floating_point_does(std: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Noise.of_run(1, 1).discrete(std, 2000)
    monkeypatch.setattr(module, "_ERROR", 10.0)  # so that it decides nothing
    assert np.array_equal(Noise.of_run(1, 1).discrete(std, 2000), expected)


def test_and_where_64_bits_do_not_say_more_are_drawn() -> None:
    size, std, power = 7, 5, 2
    with localcontext() as context:
        context.prec = 80
        bound = (Decimal(-size * size) / (2 * std * std)).exp() * 4 * power * 2**64 / 5
        first = int(bound)
        second = int((bound - first) * 2**64)

    def told(*words: int) -> Callable[[int], NDArray[np.uint64]]:
        left = iter(words)
        return lambda count: np.array([next(left) for _ in range(count)], dtype=np.uint64)

    assert module._is_below(told(), first - 1, power, size, std)
    assert not module._is_below(told(), first + 1, power, size, std)
    assert module._is_below(told(second - 1), first, power, size, std)
    assert not module._is_below(told(second + 1), first, power, size, std)
    assert module._is_below(told(second, 0), first, power, size, std)
    assert not module._is_below(told(second, 2**64 - 1), first, power, size, std)


def test_no_parameter_that_it_cannot_draw() -> None:
    for std in (0, module.LARGEST_STD + 1):
        with pytest.raises(ValueError, match="std is"):
            Noise.of_run(1).discrete(std, 1)


def test_is_repeated_by_its_key_alone_and_gives_nothing_out_twice() -> None:
    noise = Noise.of_run(1, 1)
    first = noise.discrete(1000, 100)
    assert np.array_equal(first, Noise.of_run(1, 1).discrete(1000, 100))
    assert not np.array_equal(first, noise.discrete(1000, 100))
    assert not np.array_equal(first, Noise.of_run(1, 2).discrete(1000, 100))
    assert not np.array_equal(Noise.secret().discrete(1000, 100), Noise.secret().discrete(1000, 100))
    assert Noise.secret().discrete(1, 0).shape == (0,)
