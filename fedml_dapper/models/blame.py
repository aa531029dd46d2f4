"""Errors of users' networks in training and testing, as one line in place of a traceback."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from traceback import walk_tb

from torch.autograd import graph

from fedml_dapper.errors import USER_CODE_ERRORS, DapperError
from fedml_dapper.models.passing import called
from fedml_dapper.models.running import first_line

_NOT_THEIRS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "site-packages", "<frozen")
_FORWARD = called.__code__
_BACKWARD = graph._engine_run_backward.__code__


@contextmanager
def blamed(what: str, *hints: str, backward: bool = False) -> Iterator[None]:
    """Turn errors of a user's network in the block into :class:`DapperError`, and let other errors pass.

    Args:
        what: Start of the error.
        hints: Ends of the error.
        backward: Whether errors of the backward pass count as the network's too.
    """
    try:
        yield
    except DapperError:
        raise
    except USER_CODE_ERRORS as error:
        codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
        if _FORWARD not in codes and not (backward and _BACKWARD in codes):
            raise
        said = "; ".join((f"{first_line(error)}{place_in_own_code(error)}", *hints))
        raise DapperError(f"{what}: {said}") from error


def place_in_own_code(error: BaseException) -> str:
    """Return the user's own line in which a network raised ``error``, in brackets; empty if it was a library's."""
    within = dropwhile(lambda frame: frame[0].f_code not in (_FORWARD, _BACKWARD), walk_tb(error.__traceback__))
    places = [(frame.f_code.co_filename, line) for frame, line in within]
    theirs = [(file, line) for file, line in places if not any(each in file for each in _NOT_THEIRS)]
    return f" ({Path(theirs[-1][0]).name}, line {theirs[-1][1]})" if theirs else ""
