"""Capability levels of a network with adapters: how many rank components a level keeps, and how much of the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedml_dapper.config import LevelBudget, PruningArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.pruning.budget import OutOfReachError, solve_widths
from fedml_dapper.pruning.footprint import count_parameters
from fedml_dapper.pruning.layout import ChannelLayout, Widths, without
from fedml_dapper.pruning.scope import size_of

_SETTING = "dapper_args.levels.budgets"
_DIGITS = 6


@dataclass(frozen=True)
class BudgetedLevel:
    """A level's widths, and the share of all parameters that it lacks by them."""

    ratio: float
    widths: Widths


def budgeted_levels(
    layout: ChannelLayout, budgets: Sequence[LevelBudget], pruning: PruningArgs
) -> tuple[BudgetedLevel, ...]:
    """Return what each of ``budgets`` comes to in a network of this ``layout``, strongest level first.

    A level keeps the same number of components of every adapter. Its base is cut as a pruning ratio cuts a network:
    one channel ratio for all groups.

    Raises:
        ConfigError: A rank is larger than the adapters', there are no adapters, a base cannot be cut so far, or two
            levels come to the same.
    """
    components = {name: group.channels for name, group in layout.groups.items() if group.partner is not None}
    base = without(layout, components)
    dense = count_parameters(layout, {})
    levels = list[BudgetedLevel]()
    for number, budget in enumerate(budgets, start=1):
        place = f"{_SETTING}, level {number}"
        widths = {**_base_widths(base, budget, pruning, place), **_ranks(components, budget, place)}
        ratio = round(1 - count_parameters(layout, widths) / dense, _DIGITS)
        known = [level.ratio for level in levels]
        if ratio in known:
            raise ConfigError(f"{place}: comes to the same as level {1 + known.index(ratio)}; give it less, or drop it")
        levels.append(BudgetedLevel(ratio, widths))
    return tuple(levels)


def _ranks(components: Widths, budget: LevelBudget, place: str) -> Widths:
    if budget.rank is None:
        return {}
    if not components:
        raise ConfigError(
            f"{place}: has a rank, and no adapter of this network can be cut; set model_args.adapter, or give `base`"
            " alone"
        )
    largest = max(components.values())
    if budget.rank > largest:
        raise ConfigError(f"{place}: rank {budget.rank} is more than the adapters have, {largest}")
    return {name: budget.rank for name, rank in components.items() if budget.rank < rank}


def _base_widths(base: ChannelLayout, budget: LevelBudget, pruning: PruningArgs, place: str) -> Widths:
    try:
        return solve_widths(base, budget.base, size_of(pruning), pruning.round_to, f"{place}, base")
    except OutOfReachError as error:
        raise ConfigError(str(error)) from error
