"""Levels by what training costs: ratios of memory or of multiply-accumulates, solved for ratios of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet.demand import Demand, DemandCounter
from fedml_dapper.methods import METHODS, Method, MethodParams, Problem
from fedml_dapper.methods.contract.base import SIZE

STEPS = 1000
"""Steps of a ratio of parameters: thousandths."""
Build = Callable[[Settings], Method[Any]]
"""Function that makes the method of some settings."""
Cost = Callable[[Demand], int]

_COSTS: dict[str, Cost] = {
    "training_flops": lambda demand: demand.round_macs,
    "memory": lambda demand: demand.memory_bytes,
}
_IN_WORDS = {"training_flops": "multiply-accumulates of a round of training", "memory": "peak memory of training"}
_PROBES = (0.1, 0.9)
"""Two ratios of parameters, by which a method is found to have models of several sizes."""


def with_solved_levels(settings: Settings, problem: Problem, build: Build) -> Settings:
    """Return ``settings`` whose levels have ratios of parameters that cost what their ratios ask for.

    Each ratio is the smallest, in thousandths, at which a client's training costs no more than that share of what it
    costs to train the full model as FedAvg does. Level by level, the weakest is solved first, as clients may train
    weaker levels' models beside their own. Settings whose ratios are of sizes are returned unchanged, so that the
    function changes nothing of its own result. Methods whose clients all train the full model keep the ratios.

    Args:
        problem: The run's, with the network as it is before a method changes it.

    Raises:
        ConfigError: A ratio is out of the method's reach, which the message names, or its sizes follow from something
            else.
    """
    ratio_of = settings.dapper_args.pruning.ratio_of
    if ratio_of not in _COSTS:
        return settings
    levels = settings.dapper_args.levels
    sized = _with_ratios(settings, levels.ratios)
    method = METHODS.find(settings.dapper_args.method)
    if method.ratios_are_of == ratio_of:
        return sized
    if method.ratios_are_of != SIZE:
        raise ConfigError(
            f"dapper_args.pruning.ratio_of: `{ratio_of}` cannot be solved for `{method.name}`, whose sizes follow from"
            f" {method.ratios_are_of}; choose parameters"
        )
    full = _full_model(problem)
    return _with_ratios(settings, _Solver(sized, build, ratio_of, _COSTS[ratio_of](full)).solved(levels.ratios))


def with_asked_levels(begun: Settings, asked: Settings) -> Settings:
    """Return the settings of a run that has begun with the levels that were ``asked`` of it.

    A run writes down the ratios of parameters that its levels have come to. Settings whose levels are not solved are
    returned unchanged.
    """
    pruning = asked.dapper_args.pruning
    if pruning.ratio_of not in _COSTS or begun.dapper_args.pruning.ratio_of == pruning.ratio_of:
        return begun
    return _with_levels(begun, asked.dapper_args.levels.ratios, pruning.ratio_of)


class FullModel(Method[MethodParams]):
    """The full model on every client, without anything else: what others' costs are shares of."""

    name = "the full model"
    Params = MethodParams


def _full_model(problem: Problem) -> Demand:
    whole = replace(problem, slims=False, pruning=problem.pruning.model_copy(update={"ratio_of": "parameters"}))
    return DemandCounter(FullModel(MethodParams(), whole)).demand(1, 0.0)


@dataclass(frozen=True)
class _Solver:
    """Looks for ratios of parameters."""

    settings: Settings
    """Settings whose ratios are of parameters."""
    build: Build
    ratio_of: str
    full: int
    """Cost of the full model."""

    def solved(self, ratios: Sequence[float]) -> tuple[float, ...]:
        """Return a ratio of parameters for each of ``ratios``."""
        if not self._whole.slims and not self._is_made_for_levels:
            return tuple(ratios)
        found: dict[float, float] = {}
        for ratio in sorted({one for one in ratios if one > 0}, reverse=True):
            found[ratio] = self._solve(ratio, sorted(found.values()))
        return tuple(found.get(ratio, 0.0) for ratio in ratios)

    @cached_property
    def _whole(self) -> Method[Any]:
        return self.build(_with_ratios(self.settings, (0.0,)))

    @cached_property
    def _follows_ratios(self) -> bool:
        """Whether one method's object has models of several sizes, by the ratio that it is asked for."""
        counter = DemandCounter(self._whole)
        return len({self._cost(counter, ratio) for ratio in _PROBES}) > 1

    @cached_property
    def _is_made_for_levels(self) -> bool:
        """Whether the method's one model is made for the levels that it is built with."""
        return len({self._rebuilt(ratio) for ratio in _PROBES}) > 1

    def _solve(self, ratio: float, weaker: Sequence[float]) -> float:
        budget = (1 - ratio) * self.full
        cost_at = self._costs_beside(weaker)
        costs = dict[int, int]()
        low = -1
        high = STEPS
        while high - low > 1:
            between = (low + high) // 2
            cost = cost_at(between / STEPS)
            if cost is not None:
                costs[between] = cost
            if cost is None or cost <= budget:
                high = between
            else:
                low = between
        if high not in costs:
            largest = cost_at(0.0)
            reached = [*costs.values(), *([] if largest is None else [largest])]
            raise self._out_of_reach(ratio, min(reached), max(reached))
        return high / STEPS

    def _costs_beside(self, weaker: Sequence[float]) -> Callable[[float], int | None]:
        """Return the cost of a level by its ratio of parameters, beside weaker levels; None where there is no model."""
        if not self._follows_ratios:
            return self._rebuilt
        counter = DemandCounter(self.build(_with_ratios(self.settings, (0.0, *weaker))))
        return lambda ratio: self._cost(counter, ratio)

    def _rebuilt(self, ratio: float) -> int | None:
        try:
            method = self.build(_with_ratios(self.settings, (0.0, ratio)))
        except ConfigError:
            return None
        return self._cost(DemandCounter(method), ratio)

    def _cost(self, counter: DemandCounter, ratio: float) -> int | None:
        try:
            return _COSTS[self.ratio_of](counter.demand(2, ratio))
        except ConfigError:
            return None

    def _out_of_reach(self, ratio: float, least: int, most: int) -> ConfigError:
        shares = [f"{100 * cost / self.full:.1f}" for cost in dict.fromkeys((least, most))]
        method = self.settings.dapper_args.method
        largest = int(1000 * (1 - least / self.full)) / 1000
        reach = f"ratios up to {largest:g} can be met" if largest > 0 else "no ratio but 0 can be met"
        return ConfigError(
            f"dapper_args.levels.ratios: ratio {ratio:g} asks for {100 * (1 - ratio):.1f} % of the full model's"
            f" {_IN_WORDS[self.ratio_of]}; `{method}` takes {' to '.join(shares)} % here, so {reach}. Choose another"
            " ratio, pruning.scope or ratio_of"
        )


def _with_ratios(settings: Settings, ratios: tuple[float, ...]) -> Settings:
    """Return settings of levels at these ratios of parameters."""
    return _with_levels(settings, ratios, "parameters")


def _with_levels(settings: Settings, ratios: tuple[float, ...], ratio_of: str) -> Settings:
    args = settings.dapper_args
    update = {
        "levels": args.levels.model_copy(update={"ratios": ratios}),
        "pruning": args.pruning.model_copy(update={"ratio_of": ratio_of}),
    }
    return settings.model_copy(update={"dapper_args": args.model_copy(update=update)})
