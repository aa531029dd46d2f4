"""How a FedML program ends where something is wrong with what its user wrote: as a command of ours does."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from fedml_dapper.errors import DapperError, complaint

MISTAKE = 2
"""Exit code, as commands have it."""


def end_by_a_line() -> None:
    """From now on one of our own errors that nobody catches ends this process by one line on stderr, without a
    traceback; any other as before."""
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    def __init__(self, otherwise: object) -> None:
        self._otherwise = otherwise

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, DapperError):
            assert callable(self._otherwise)
            self._otherwise(kind, error, trace)
            return
        sys.stderr.write(f"{complaint(program_name(), str(error))}\n")
        sys.exit(MISTAKE)


def program_name() -> str:
    """The program's file, as complaints begin."""
    return Path(sys.argv[0]).name or "fedml_dapper"
