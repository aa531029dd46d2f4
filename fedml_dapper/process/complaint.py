"""Users' mistakes on the command line, and places that they may not use: one line on stderr, and exit code 2."""

from __future__ import annotations

import errno
import os
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
    errno.EEXIST: "a file stands there, where a folder is needed; name another place",
    errno.EISDIR: "a folder stands there, where a file is needed; name another place",
}
"""What is wrong with a place that a user named, by the system's error number."""
_OF_THE_MACHINE = {
    errno.ENOSPC: "the disk is full; make room, then start it again",
    errno.EDQUOT: "this account may fill no more of the disk; make room, then start it again",
    errno.EMFILE: "a process may not open so many files here; raise that limit (ulimit -n), then start it again",
    errno.ENFILE: "the machine has no more files to open; end other programs, then start it again",
}
"""What a machine has run out of, by the system's error number."""


@contextmanager
def complaining(program: str) -> Iterator[None]:
    """Exit ``program`` with code 2 and one line for a :class:`DapperError`, or what the system refuses.

    That is a place that cannot be used, or a disk that is full, also where the output was sent to it.
    """
    try:
        yield
    except DapperError as error:
        _leave(program, str(error))
    except OSError as error:
        reason = _OF_THE_MACHINE.get(error.errno or 0)
        if reason is None and error.filename is not None:
            reason = _OF_PLACES.get(error.errno or 0)
        if reason is None:
            raise
        _drop_what_cannot_be_written()
        _leave(program, reason if error.filename is None else f"{error.filename}: {reason}")


def _drop_what_cannot_be_written() -> None:
    """Forget what stdout does not take, which Python would try to write once more at its end, with a message."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(program: str, text: str) -> NoReturn:
    click.echo(complaint(program, text), err=True)
    sys.exit(2)
