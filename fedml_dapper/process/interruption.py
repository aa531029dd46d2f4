"""Handling of Ctrl-C and SIGTERM: a program ends in order, or at once where that takes too long.

Files of a run are on the disk whole or not at all, so ending at any moment loses nothing but time.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, the same as that of shells."""
GRACE_S = 8
"""How long the end may take: senders of SIGTERM (docker, systemd, ...) often kill after ten seconds."""
GOING_ON = "interrupted; the same command starts it again, and with --output FOLDER --resume a run goes on where it was"
"""Advice after a run, and after what takes so little time that it is started again."""
SAME_COMMAND = "interrupted; the same command goes on where it was"
"""Advice after commands that find by themselves what is finished, such as a bench."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption(KeyboardInterrupt):
    """Exception that the signals raise.

    A plain KeyboardInterrupt that passes through ``exec``, which imports use, makes CPython end the process by SIGINT
    instead of with the exit code, even if it is caught later.
    """


@contextmanager
def ending_in_order(program: str, advice: str = GOING_ON) -> Iterator[None]:
    """Raise :class:`Interruption` at the first Ctrl-C or SIGTERM in this block, and ignore later ones.

    An interruption that leaves the block ends the process with a line on stderr, ``program`` and then ``advice``, and
    with exit code :data:`INTERRUPTED`. So does one after which the process still runs :data:`GRACE_S` later, because a
    library swallowed it or a thread hangs. During an import the process ends at once: an import leaves nothing behind
    to tidy up, and compiled modules turn the exception into an error of their own, or an abort.

    It is for the main thread. Within another such block it gives its own advice in place of the outer one's. A process
    that is forked in the block, e.g. by ``multiprocessing.Pool``, has the system's default handling of both signals.
    """

    previous = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGALRM)}
    signal.signal(signal.SIGALRM, _leave_as(program, advice))
    _handle_by(_interrupt)
    try:
        with reraising_interruption():
            yield
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: {advice}\n")
        sys.exit(INTERRUPTED)
    finally:
        if not signal.getitimer(signal.ITIMER_REAL)[0]:  # otherwise the process is ending, and the timer has to stay
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def reraising_interruption() -> Iterator[None]:
    """Raise an interruption again that a library turned into an error of its own.

    Compiled code does so where it calls Python: in one sixth of the time in which safetensors reads a tensor, torch
    raises ``could not determine the shape`` of the file's storage.
    """
    try:
        yield
    except Exception as error:
        if _is_pending():
            raise Interruption from error
        raise


def take_time() -> None:
    """Allow more time after an interruption that was dealt with; the next one counts as the first."""
    signal.alarm(0)
    _handle_by(_interrupt)


def ignore_further_interruptions() -> None:
    """Ignore further interruptions, and have the process end within :data:`GRACE_S`."""
    _handle_by(disregard)
    signal.alarm(GRACE_S)


@atexit.register  # registered before all libraries, so it is called after their functions
def _exit_without_teardown() -> None:
    """End an interrupted process without the teardown of libraries, in which no signal handler would run any more."""
    if _is_pending():
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # the shell closed it, we did, or nobody reads it
                stream.flush()
        os._exit(INTERRUPTED)


def _is_pending() -> bool:
    """Return whether an interruption came and was not dealt with."""
    return any(signal.getsignal(number) is disregard for number in _SIGNALS)


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    if _importing(frame):
        signal.raise_signal(signal.SIGALRM)  # its handler ends the process at once
    ignore_further_interruptions()
    raise Interruption


def _importing(frame: FrameType | None) -> bool:
    """Return whether this frame is called by an import statement, however deep."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _leave_as(program: str, advice: str) -> Callable[[int, FrameType | None], None]:
    def leave(_signal: int, _frame: FrameType | None) -> None:
        os.write(2, f"{program}: {advice}\n".encode())  # past sys.stderr, which may be in the middle of a write
        os._exit(INTERRUPTED)

    return leave


def disregard(_signal: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Unlike SIG_IGN, programs that this process starts do not inherit it."""


def _handle_by(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # shells set it for programs in the background
            signal.signal(number, handler)


class _Forking(threading.local):
    """Signals that a thread had blocked before it forks; None where it is not forking."""

    blocked: set[int] | None = None


_FORKING = _Forking()


def _hold_back() -> None:
    """Block the signals before a fork, until the child has its own handlers.

    In its first moments a child forgets a signal whose handler is a Python function.
    """
    if any(_is_ours(number) for number in _SIGNALS):
        _FORKING.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_through() -> None:
    if _FORKING.blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.blocked)
        _FORKING.blocked = None


def _leave_to_system() -> None:
    for number in _SIGNALS:
        if _is_ours(number):
            signal.signal(number, signal.SIG_DFL)
    _let_through()


def _is_ours(number: int) -> bool:
    return signal.getsignal(number) in (_interrupt, disregard)


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_leave_to_system)
