"""Whether everything that an experiment names is there, before anything is loaded: all mistakes at once."""

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
    """Raises :class:`ConfigError` for names of methods, tasks, data, networks and rules that stand for nothing, and for
    settings of methods that these do not have. What a program passes needs no name."""
    mistakes = []
    for look in _looks(settings, passes_model, passes_data):
        try:
            look()
        except ConfigError as error:
            mistakes.append(str(error))
    if len(mistakes) == 1:
        raise ConfigError(mistakes[0])
    if mistakes:
        raise ConfigError(counted(mistakes, "names, and settings of methods"))


def _looks(settings: Settings, passes_model: bool, passes_data: bool) -> Iterator[Callable[[], object]]:
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
    """The method of that name, which may be somebody's own under the name of one that is built in."""
    try:
        return METHODS.find(name)
    except ConfigError:
        return None
