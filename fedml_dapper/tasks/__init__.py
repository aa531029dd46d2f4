"""Tasks: loss, metrics and the meaning of outputs, independent of methods, models and data."""

from __future__ import annotations

import inspect

from fedml_dapper.config import TrainArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.metric import TOP_1, Metric
from fedml_dapper.registry import Registry
from fedml_dapper.tasks.classification import Classification
from fedml_dapper.tasks.contract import Task
from fedml_dapper.tasks.language_modelling import LanguageModelling, NextToken
from fedml_dapper.tasks.segmentation import Segmentation


def _fits(found: object) -> str:
    """Reason why ``found`` is no task; see :class:`Registry`."""
    if not isinstance(found, type) or not issubclass(found, Task):
        return "no task; derive a class from fedml_dapper.tasks.Task (docs/own_task.md)"
    missing = [name for name in ("name", "headline") if not hasattr(found, name)]
    missing += sorted(found.__abstractmethods__)
    return f"a task without `{missing[0]}`; give its class one (docs/own_task.md)" if missing else ""


TASKS: Registry[type[Task]] = Registry(
    "train_args.task",
    "task",
    {task.name: task for task in (Classification, Segmentation, LanguageModelling, NextToken)},
    _fits,
)
"""Tasks by the names that ``train_args.task`` takes."""

__all__ = [
    "TASKS",
    "TOP_1",
    "Classification",
    "LanguageModelling",
    "Metric",
    "NextToken",
    "Segmentation",
    "Task",
    "build_task",
]


def build_task(args: TrainArgs) -> Task:
    """Make the task that ``args`` name.

    Raises:
        ConfigError: Its arguments do not fit.
    """
    task = TASKS.find(args.task)
    try:
        inspect.signature(task).bind(**args.task_arguments)
        return task(**args.task_arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"train_args.task_arguments: do not fit task `{task.name}`: {error}") from error
