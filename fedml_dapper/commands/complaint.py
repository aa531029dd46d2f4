"""What users hear of their mistakes: one line on stderr, and exit code 2."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from fedml_dapper.errors import DapperError

_LONGEST_WORD, _SHOWN = 400, 100
"""Longer words are shown up to so many letters: a value that was quoted may be anything."""


@contextmanager
def complaining(program: str) -> Iterator[None]:
    """Ends ``program`` by one of our own errors in the block, or by a name that no file can have."""
    try:
        yield
    except DapperError as error:
        _leave(program, str(error))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _leave(program, f"{error.filename}: a name that is too long for a file")


def _leave(program: str, text: str) -> NoReturn:
    shown = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:_SHOWN]}...", text)
    click.echo(f"{program}: {shown}", err=True)
    sys.exit(2)
