"""Check of the names in an experiment's settings, before anything is loaded; it reports all mistakes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fedml_dapper.config import LIBRARIES, Settings, counted
from fedml_dapper.datasets import SUITES
from fedml_dapper.errors import ConfigError
from fedml_dapper.methods import METHODS, Method
from fedml_dapper.models import MODELS
from fedml_dapper.pruning import LEVEL_RULES
from fedml_dapper.tasks import TASKS


def check_names(settings: Settings, passes_model: bool, passes_data: bool) -> None:
    """Check that all methods, tasks, data, networks and rules that ``settings`` name exist, and methods' own settings.

    Args:
        settings: The experiment's.
        passes_model: Whether a program passes the network, so that no name is needed.
        passes_data: Whether a program passes the data.

    Raises:
        ConfigError: Names stand for nothing, or settings of methods do not exist; the error lists all of them.
    """
    mistakes = []
    for check in _checks(settings, passes_model, passes_data):
        try:
            check()
        except ConfigError as error:
            mistakes.append(str(error))
    if len(mistakes) == 1:
        raise ConfigError(mistakes[0])
    if mistakes:
        raise ConfigError(counted(mistakes, "names, and settings of methods"))


def _checks(settings: Settings, passes_model: bool, passes_data: bool) -> Iterator[Callable[[], object]]:
    args = settings.dapper_args
    data = settings.data_args.dataset
    network = settings.model_args.model
    yield lambda: METHODS.find(args.method)
    chosen = _method(args.method)
    for name, values in args.params.items():
        if chosen is not None and chosen.name == name:
            yield partial(chosen.check_params, values)
        elif name in METHODS:
            yield partial(METHODS[name].check_params, values)
    yield lambda: TASKS.find(settings.train_args.task)
    if data is not None and not passes_data:
        yield lambda: SUITES.find(data)
    if network is not None and not passes_model and network.partition(":")[0] not in LIBRARIES:
        yield lambda: MODELS.find(network)
    rule = args.levels.assignment
    if isinstance(rule, str):
        yield lambda: LEVEL_RULES.find(rule)


def _method(name: str) -> type[Method[Any]] | None:
    """Return the method of that name, which may be a user's own that hides a built-in one; None where there is none."""
    try:
        return METHODS.find(name)
    except ConfigError:
        return None
