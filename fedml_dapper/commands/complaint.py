"""Users' mistakes on the command line: one line on stderr, and exit code 2."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from fedml_dapper.errors import DapperError, complaint


@contextmanager
def complaining(program: str) -> Iterator[None]:
    """Exit ``program`` with code 2 and one line for a :class:`DapperError`, or a name that is too long for a file."""
    try:
        yield
    except DapperError as error:
        _leave(program, str(error))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _leave(program, f"{error.filename}: a name that is too long for a file")


def _leave(program: str, text: str) -> NoReturn:
    click.echo(complaint(program, text), err=True)
    sys.exit(2)
