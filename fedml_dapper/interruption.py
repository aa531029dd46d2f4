"""Ctrl-C and SIGTERM: a program ends in order, and where that takes too long, all the same.

What a run writes is on the disk whole or not at all, so leaving at any moment loses nothing but time.
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
"""Exit code after Ctrl-C or SIGTERM, as shells have it."""
PATIENCE_S = 8
"""How long the end may take. Whoever sends SIGTERM (docker, systemd, ...) often kills after ten seconds."""
GOING_ON = "interrupted; the same command starts it again, and with --output FOLDER --resume a run goes on where it was"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption(KeyboardInterrupt):
    """What the signals raise.

    A plain KeyboardInterrupt that passes through ``exec``, as imports use it, lets CPython end the process by SIGINT
    whoever catches it later, instead of with the exit code.
    """


@contextmanager
def ending_in_order(program: str) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM in this block raises :class:`Interruption`, later ones nothing.

    One that leaves the block becomes a line on stderr that begins with ``program``, and :data:`INTERRUPTED`. So does
    one after which the process is still there :data:`PATIENCE_S` later: because a library swallowed it, or a thread
    hangs. One that comes during an import ends the process on the spot: an import leaves nothing behind to tidy up,
    and compiled modules make an error of their own, or an abort, of what is raised in them. For the main thread.

    A process that is forked in the block, as by ``multiprocessing.Pool``, ends by such a signal as the system ends it.
    """

    previous = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGALRM)}
    signal.signal(signal.SIGALRM, _leave_as(program))
    _answer_with(_interrupt)
    try:
        with undisguised():
            yield
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: {GOING_ON}\n")
        sys.exit(INTERRUPTED)
    finally:
        if not signal.getitimer(signal.ITIMER_REAL)[0]:  # else the process is on its way out
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def undisguised() -> Iterator[None]:
    """An interruption that leaves this block as an error of a library's is one again.

    Compiled code puts an error of its own in its place where it calls Python: one sixth of the time in which
    safetensors reads a tensor, torch says ``could not determine the shape`` of the file's storage.
    """
    try:
        yield
    except Exception as error:
        if _is_pending():
            raise Interruption from error
        raise


def take_time() -> None:
    """An interruption has been dealt with, and what follows may take long; the next one counts as the first."""
    signal.alarm(0)
    _answer_with(_interrupt)


def hurry() -> None:
    """What :func:`take_time` was for is done: the process ends."""
    _answer_with(disregard)
    signal.alarm(PATIENCE_S)


@atexit.register  # before all that is loaded later, hence called after what that registers
def _leave_at_once() -> None:
    """Spares an interrupted process the teardown of libraries, in which no handler could end it in time any more."""
    if _is_pending():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # closed, or nobody reads it
                stream.flush()
        os._exit(INTERRUPTED)


def _is_pending() -> bool:
    """Whether an interruption came and was not dealt with."""
    return any(signal.getsignal(number) is disregard for number in _SIGNALS)


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    if _importing(frame):
        signal.raise_signal(signal.SIGALRM)  # what is done when patience ends
    hurry()
    raise Interruption


def _importing(frame: FrameType | None) -> bool:
    """Whether this frame belongs to an import statement, however deep."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _leave_as(program: str) -> Callable[[int, FrameType | None], None]:
    def leave(_signal: int, _frame: FrameType | None) -> None:
        os.write(2, f"{program}: {GOING_ON}\n".encode())  # past sys.stderr, which may be in the middle of a write
        os._exit(INTERRUPTED)

    return leave


def disregard(_signal: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN, which programs started from here would inherit."""


def _answer_with(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # whoever started us in the background wants it so
            signal.signal(number, handler)


class _Forking(threading.local):
    """What of the two signals a thread had blocked before it forks."""

    blocked: set[int] | None = None


_FORKING = _Forking()


def _hold_back() -> None:
    """A child forgets, in its first moments, a signal that a handler in Python was to answer. It waits till then."""
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
