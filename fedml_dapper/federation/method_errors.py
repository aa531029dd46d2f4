"""Errors of a user's own method, as one line in place of a traceback."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import Any

from fedml_dapper.datasets.items import describe_user_error
from fedml_dapper.errors import USER_CODE_ERRORS, DapperError
from fedml_dapper.methods import Method


@contextmanager
def method_blamed(method: Method[Any], where: str) -> Iterator[None]:
    """Turn what the code of a user's own ``method`` raises in the block into :class:`DapperError`, and let other errors
    pass.

    Args:
        method: The method; errors of built-in ones are ours, and pass.
        where: Where in the run the block is, such as ``client 3, round 1``.
    """
    kind = type(method)
    try:
        yield
    except DapperError:
        raise
    except USER_CODE_ERRORS as error:
        if kind.__module__.startswith("fedml_dapper."):
            raise
        file = inspect.getsourcefile(kind)
        if not any(frame.filename == file for frame in extract_tb(error.__traceback__)):
            raise
        raise DapperError(
            f"{where}: dapper_args.method: method `{method.name}` fails: {describe_user_error(error, file)}"
        ) from error
