"""Errors of a user's own task in training and testing, as one line in place of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from fedml_dapper.datasets.items import describe_user_error
from fedml_dapper.errors import USER_CODE_ERRORS, DapperError
from fedml_dapper.tasks import Task


@contextmanager
def task_blamed(task: Task) -> Iterator[None]:
    """Turn what methods of ``task`` raise in the block into :class:`DapperError`, and let other errors pass."""
    try:
        yield
    except DapperError:
        raise
    except USER_CODE_ERRORS as error:
        if not any(frame.f_locals.get("self") is task for frame, _ in walk_tb(error.__traceback__)):
            raise
        raise DapperError(f"train_args.task: task `{task.name}` fails: {describe_user_error(error)}") from error
