"""Searches without training: trials whose accuracies follow from their settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedml_dapper.config import Settings
from fedml_dapper.search.journal import SearchJournal
from fedml_dapper.search.record import SearchPlan, SearchRecord, SeedResult, Trial
from fedml_dapper.search.space import Params, Range
from fedml_dapper.search.trials import propose

SettingsFactory = Callable[..., Settings]

RANGES = {"eps": Range(low=0.01, high=0.5), "gamma": Range(low=1e-5, high=0.1, log=True)}


def made_up_plan(settings: Settings, ranges: dict[str, Range] = RANGES, **changes: Any) -> SearchPlan:
    values: dict[str, Any] = {"seeds": (1,), "sampler": "gp", "prune": False, "suite": settings.data_args.dataset}
    return SearchPlan(settings=settings.model_dump(mode="json"), ranges=ranges, **(values | changes))


def made_up_trial(number: int, params: Params, accuracy: float, test_accuracy: float = 50.0) -> Trial:
    """Its first round is its best."""
    result = SeedResult(
        seed=1, validation=(accuracy, accuracy - 1), chosen_round=1, validation_accuracy=accuracy,
        test_accuracy=test_accuracy, seconds=1.0,
    )  # fmt: skip
    return Trial(number=number, params=params, state="finished", results=(result,))


def made_up_search(plan: SearchPlan, count: int, score: Callable[[Params], float]) -> SearchRecord:
    """``count`` trials of which each was proposed after those before it."""
    trials: list[Trial] = []
    for number in range(1, count + 1):
        params = propose(plan, trials)
        assert params is not None
        trials.append(made_up_trial(number, params, score(params)))
    return SearchRecord(plan=plan, trials=tuple(trials))


def written_down(record: SearchRecord, folder: Path) -> None:
    """Put ``record`` into ``folder``, as a search leaves it."""
    journal = SearchJournal(folder)
    for trial in record.trials:
        journal.add(record.plan, trial)
    journal.plan = record.plan


def near_three_tenths(params: Params) -> float:
    """Best at eps = 0.3, whatever gamma is."""
    return 90 - 1000 * (params["eps"] - 0.3) ** 2
