"""Users' mistakes on the command line, and places that they may not use: one line on stderr, and exit code 2."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from fedml_dapper.errors import DapperError, complaint

_NO_ACCESS = "this account may not use it; change its permissions, or name another place"
_OF_PLACES = {
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EROFS: "nothing can be written there; name another place",
    errno.ELOOP: "links that lead to each other; name the file itself",
    errno.ENOTDIR: "a part of this path is a file; name another place",
    errno.ENAMETOOLONG: "a name that is too long for a file",
}
"""What is wrong with a place that a user named, by the system's error number."""


@contextmanager
def complaining(program: str) -> Iterator[None]:
    """Exit ``program`` with code 2 and one line for a :class:`DapperError`, or a place that cannot be used."""
    try:
        yield
    except DapperError as error:
        _leave(program, str(error))
    except OSError as error:
        if error.errno not in _OF_PLACES or error.filename is None:
            raise
        _leave(program, f"{error.filename}: {_OF_PLACES[error.errno]}")


def _leave(program: str, text: str) -> NoReturn:
    click.echo(complaint(program, text), err=True)
    sys.exit(2)
