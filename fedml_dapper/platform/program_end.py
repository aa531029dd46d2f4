"""End of a FedML program at one of our own errors, or at Ctrl-C: by one line and an exit code, as a command ends."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from fedml_dapper.errors import DapperError, complaint
from fedml_dapper.process.interruption import INTERRUPTED

MISTAKE = 2
"""Exit code for a mistake of the user, the same as that of commands."""
_GOING_ON = "interrupted; its run goes on where it was if its runner is given run_dir=FOLDER, resume=True"


def end_by_a_line() -> None:
    """Let our own errors that nobody catches, and Ctrl-C, end this process by one line on stderr, without a traceback.

    Other errors end it as before.
    """
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    def __init__(self, before: object) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.write(f"{program_name()}: {_GOING_ON}\n")
            sys.exit(INTERRUPTED)
        if not isinstance(error, DapperError):
            assert callable(self._before)
            self._before(kind, error, trace)
            return
        sys.stderr.write(f"{complaint(program_name(), str(error))}\n")
        sys.exit(MISTAKE)


def program_name() -> str:
    """Return the name of the program's file, with which error messages begin."""
    return Path(sys.argv[0]).name or "fedml_dapper"
