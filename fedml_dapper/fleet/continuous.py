"""Levels as fine as a fleet needs: one per size that is the largest which some client's device can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import ceil, floor
from typing import Any

from fedml_dapper.config import Settings
from fedml_dapper.fleet.demand import Demand, DemandCounter
from fedml_dapper.fleet.fitting import Budget, Means, use_of
from fedml_dapper.fleet.planning import equip
from fedml_dapper.methods import Method
from fedml_dapper.pruning import Device

STEPS = 100
"""Steps of a ratio: whole hundredths, except for the ratios of the first and the last level."""


def with_fitted_levels(
    settings: Settings, devices: Sequence[Device], build: Callable[[Settings], Method[Any]]
) -> Settings:
    """Return ``settings`` with the levels that a continuous fleet of ``devices`` needs.

    These are the first and the last of the levels that are set, and between them the largest size that each client can
    run. Settings without a continuous fleet are returned unchanged. Applied to its own result, the function changes
    nothing: what a size needs is counted with the first and the last level alone.

    Args:
        build: Makes the method of some settings.
    """
    fleet = settings.dapper_args.fleet
    levels = settings.dapper_args.levels
    if fleet is None or not fleet.continuous or len(levels.ratios) < 2:
        return settings
    first = levels.ratios[0]
    last = levels.ratios[-1]
    method = build(settings.with_ratios((first, last)))
    found = {first, last}
    if method.takes_part(2):
        counter = DemandCounter(method)
        budget = Budget(fleet.round_s, fleet.memory_share)

        @cache
        def demand(ratio: float) -> Demand:
            # every size but the first counts as level 2: what a client runs depends on its ratio alone
            return counter.demand(1 if ratio == first else 2, ratio)

        equipped = equip(fleet, method, settings.model_args, devices)
        for means in {(one.profile, one.means.num_samples): one.means for one in equipped}.values():
            fits = partial(_fits, demand=demand, means=means, budget=budget)
            found.add(smallest_ratio(fits, first, last))
    return settings.with_ratios(tuple(sorted(found)))


def smallest_ratio(fits: Callable[[float], bool], first: float, last: float) -> float:
    """Return the smallest ratio from ``first`` to ``last``, in hundredths, that ``fits``; ``last`` where none does."""
    if fits(first):
        return first
    too_small = floor(first * STEPS)
    fitting = ceil(last * STEPS)
    while fitting - too_small > 1:
        between = (too_small + fitting) // 2
        if fits(between / STEPS):
            fitting = between
        else:
            too_small = between
    return min(fitting / STEPS, last)


def _fits(ratio: float, demand: Callable[[float], Demand], means: Means, budget: Budget) -> bool:
    return not use_of(demand(ratio), means, budget).limits
