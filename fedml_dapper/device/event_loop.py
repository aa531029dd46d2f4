"""Event loop of a process: one thread handles all messages and deadlines, and the transport only queues messages.

Handlers that a transport's own threads call would starve the connection's keep-alive while they train, and their errors
would be lost.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fedml_dapper.errors import DapperError
from fedml_dapper.operations.rate_limiter import RateLimiter
from fedml_dapper.secure_grpc import AnyMessage, Transport

LOGGER = logging.getLogger(__name__)
STOP_SECONDS = 5.0
"""How long the transport's thread may take to end."""
_CALL = object()
"""Type of an event that is no message but a function to call."""
_DEADLINE = object()
"""Type of an event that says that the deadline in it has passed."""
_LATE_SECONDS = 1.0
"""Delay after which a passed deadline was not watched: the process was halted, or the machine slept. Then clients get
the lost time on top, as they may have been halted too."""
_DROPS_AT_ONCE = 100.0
_DROPS_PER_SECOND = 1.0
"""Dropped messages that are logged, at once and per second; without a limit their sender could fill the disk."""


class EventLoop(ABC):
    """Base class of a process that answers messages, between the transport and the handlers.

    A subclass sets ``com_manager``, as FedML calls the transport, and adds itself to the transport's observers.
    """

    com_manager: Transport

    def __init__(self) -> None:
        self._events: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._deadline: float | None = None
        self._passed: float | None = None
        """The deadline of which the latest event that it has passed tells."""
        self._stopped = False
        self._drops_logged = RateLimiter(_DROPS_AT_ONCE, _DROPS_PER_SECOND)

    @abstractmethod
    def handles(self, kind: Any, message: AnyMessage) -> bool:
        """Handle ``message`` if there is a handler for messages of ``kind``; return whether there is."""

    def receive_message(self, msg_type: Any, msg_params: Any) -> None:
        """Queue a message; called from the transport's threads."""
        self._events.put((msg_type, msg_params))

    def on_deadline(self) -> None:  # noqa: B027  # a hook for processes that set deadlines
        """Called when the time set by :meth:`set_deadline` has passed."""

    def queued(self, message_type: Any) -> list[Any]:
        """Return the messages of this type that wait behind the present one."""
        with self._events.mutex:
            return [message for kind, message in self._events.queue if kind == message_type]

    def delivered(self) -> int:
        """Return how many bytes of the latest large message the other side has."""
        return self.com_manager.delivered()

    def call(self, work: Callable[[], str]) -> Future[str]:
        """Call ``work`` on the loop's thread; safe to use from any thread.

        Its errors are raised by the future's ``result()``; all but :class:`DapperError` end the loop as well.
        """
        future: Future[str] = Future()
        self._events.put((_CALL, (work, future)))
        return future

    def on_turn(self) -> None:  # noqa: B027  # a hook, too
        """Called after every event, and at least every half second."""

    def set_deadline(self, seconds: float | None) -> None:
        """Have :meth:`on_deadline` called once, so many seconds from now; None cancels.

        What has come by then is handled first, what comes later after it.
        """
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def stop(self) -> None:
        """End :meth:`loop` after the present event."""
        self._stopped = True

    def loop(self) -> None:
        """Handle events until :meth:`stop`; an exception in a handler ends the loop and is raised here."""
        failure: list[BaseException] = []

        def receive() -> None:
            try:
                self.com_manager.handle_receive_message()
            except Exception as error:  # noqa: BLE001  # handed over to the main thread, which raises it
                failure.append(error)

        thread = threading.Thread(target=receive, name="transport", daemon=True)
        thread.start()
        try:
            while not self._stopped:
                self._turn()
                self.on_turn()
                if failure:
                    raise failure[0]
        finally:
            self.com_manager.stop_receive_message()
            thread.join(STOP_SECONDS)

    def note_drop(self, text: str, *values: object) -> None:
        """Log that a peer's message is dropped, unless that was logged too often."""
        if self._drops_logged.take():
            LOGGER.warning(text, *values)

    def _turn(self) -> None:
        self._watch_deadline()
        # Half a second at most, so that the loop soon notices that the transport has failed.
        wait = 0.5 if self._deadline is None else min(0.5, max(0.0, self._deadline - time.monotonic()))
        try:
            message_type, message = self._events.get(timeout=wait)
        except queue.Empty:
            return
        if message_type is _CALL:
            _run(*message)
        elif message_type is _DEADLINE:
            if message == self._deadline:  # no other was set meanwhile
                self._deadline = None
                self.on_deadline()
        elif not self.handles(message_type, message):  # not the end of the run, which any peer could bring about
            kind = str(message_type)
            sender = message.get_sender_id()
            self.note_drop("dropped a message of unknown type %.60r from rank %s", kind, sender)

    def _watch_deadline(self) -> None:
        """Queue the event that the deadline has passed, behind what has come in time and before what comes too late.

        So a peer that sends without end cannot keep it from being noticed.
        """
        late = -1.0 if self._deadline is None else time.monotonic() - self._deadline
        if late < 0 or self._deadline == self._passed:
            return
        if late > _LATE_SECONDS:
            LOGGER.warning("this process was halted, or very busy, for %.0f s; others get these to answer", late)
            self.set_deadline(late)
        else:
            self._passed = self._deadline
            self._events.put((_DEADLINE, self._deadline))


def _run(work: Callable[[], str], future: Future[str]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except DapperError as error:
        future.set_exception(error)
    except Exception as error:
        future.set_exception(error)
        raise
