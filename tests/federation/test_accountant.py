"""Epsilon is opacus', agrees with what is published of it, and is never below what the mechanism gives away."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, sqrt

import pytest
from opacus.accountants import RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from fedml_dapper.federation.privacy.accountant import epsilon, spent, with_noise_for
from fedml_dapper.methods import Privacy

CENTRAL = Privacy("server", 1.0, 1.1, 1e-5, is_secret=False)


def exact(noise_multiplier: float, uses: int, delta: float) -> float:
    """Of a Gaussian mechanism used so often (Balle and Wang, ICML 2018, Theorem 8)."""
    mu = sqrt(uses) / noise_multiplier
    given_away = lambda eps: norm.cdf(mu / 2 - eps / mu) - exp(eps) * norm.cdf(-mu / 2 - eps / mu)  # noqa: E731
    return float(brentq(lambda eps: given_away(eps) - delta, 0, 400))


def test_the_installed_accountant_gives_the_figure_that_its_project_publishes() -> None:
    accountant = RDPAccountant()  # opacus/tests/accountants_test.py: 90 epochs at rate 0.04, noise 1.5
    for _ in range(int(90 / 0.04)):
        accountant.step(noise_multiplier=1.5, sample_rate=0.04)
    assert accountant.get_epsilon(delta=1e-5) == pytest.approx(7.32911117143, abs=1e-9)


@pytest.mark.parametrize(("noise_multiplier", "uses"), [(1.1, 1), (1.1, 12), (4.0, 50), (0.5, 3), (20.0, 100)])
def test_is_the_accountant_s_for_clients_that_take_part_in_full(noise_multiplier: float, uses: int) -> None:
    accountant = RDPAccountant()
    for _ in range(uses):
        accountant.step(noise_multiplier=noise_multiplier, sample_rate=1.0)
    found = epsilon(replace(CENTRAL, noise_multiplier=noise_multiplier), uses)
    assert found <= accountant.get_epsilon(delta=1e-5) + 1e-9  # of more orders, the best is no worse
    assert found == pytest.approx(accountant.get_epsilon(delta=1e-5), rel=0.02)
    assert exact(noise_multiplier, uses, 1e-5) <= found <= 1.25 * exact(noise_multiplier, uses, 1e-5)


def test_a_client_s_own_noise_hides_any_other_data_in_its_place() -> None:
    local = replace(CENTRAL, where="client")
    assert epsilon(local, 3) == epsilon(replace(CENTRAL, noise_multiplier=0.55), 3)


def test_no_noise_promises_nothing_and_no_use_costs_nothing() -> None:
    silent = replace(CENTRAL, noise_multiplier=0.0, delta=None)
    assert epsilon(silent, 1) == inf
    assert epsilon(CENTRAL, 0) == 0
    assert spent(silent, None, {0: 1}).epsilon is None


def test_the_client_that_was_asked_most_often_decides() -> None:
    first = spent(CENTRAL, None, {0: 1, 1: 1})
    second = spent(CENTRAL, first, {1: 1, 2: 1})
    assert second.rounds == {0: 1, 1: 2, 2: 1}
    assert second.epsilon == epsilon(CENTRAL, 2)
    assert spent(CENTRAL, second, {0: 1}).epsilon == second.epsilon


@pytest.mark.parametrize(("target", "uses"), [(0.5, 12), (8.0, 12), (8.0, 1000), (300.0, 2)])
def test_the_smallest_noise_for_a_target_reaches_it_and_hardly_less_does(target: float, uses: int) -> None:
    found = with_noise_for(CENTRAL, target, uses)
    assert found is not None
    assert found.is_for_target
    assert epsilon(found, uses) <= target
    assert epsilon(replace(found, noise_multiplier=0.999 * found.noise_multiplier), uses) > target


def test_a_target_out_of_reach_is_none() -> None:
    assert with_noise_for(replace(CENTRAL, delta=1e-30), 1e-12, 1000) is None
