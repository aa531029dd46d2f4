"""One thread handles everything a manager is told; the transport only delivers.

FedML calls handlers from whatever thread its transport runs in: training in an MQTT callback starves the connection's
keep-alive, and an exception there is lost. Here messages queue up for the main thread, which also keeps deadlines.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fedml.core.distributed.communication.base_com_manager import BaseCommunicationManager
from fedml.core.distributed.fedml_comm_manager import FedMLCommManager

from fedml_dapper.errors import DapperError
from fedml_dapper.operations.allowance import Allowance

LOGGER = logging.getLogger(__name__)
STOP_SECONDS = 5.0
"""How long the transport's thread may take to end."""
_CALL = object()
"""Type of an event that is no message, but something to do."""
_LATE_SECONDS = 1.0
"""A deadline that is seen to pass so much too late was not watched: the process was halted, or the machine slept."""
_DROPS_AT_ONCE = 100.0
_DROPS_PER_SECOND = 1.0
"""Dropped messages that the log tells of: who sends them could fill a disk otherwise."""


class EventLoop(FedMLCommManager):  # type: ignore[misc]  # fedml is untyped
    """Stands before FedML's own class among a manager's bases, between its transport and its handlers."""

    def __init__(self, connect: Callable[[], BaseCommunicationManager]) -> None:
        self._connect = connect
        self._events: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._deadline: float | None = None
        self._stopped = False
        self._drops_logged = Allowance(_DROPS_AT_ONCE, _DROPS_PER_SECOND)

    def _init_manager(self) -> None:
        """FedML's hook, called by its constructor: connect."""
        self.com_manager = self._connect()
        self.com_manager.add_observer(self)

    def receive_message(self, msg_type: Any, msg_params: Any) -> None:
        """FedML's hook, called from the transport's threads: queue the message."""
        self._events.put((msg_type, msg_params))

    def on_deadline(self) -> None:
        """The time set by :meth:`set_deadline` has passed."""

    def queued(self, message_type: Any) -> list[Any]:
        """The messages of this type that wait behind the present one."""
        with self._events.mutex:
            return [message for kind, message in self._events.queue if kind == message_type]

    def call(self, work: Callable[[], str]) -> Future[str]:
        """Have ``work`` done on the loop's thread. A :class:`DapperError` of it is the future's alone; any other error
        ends the loop too."""
        future: Future[str] = Future()
        self._events.put((_CALL, (work, future)))
        return future

    def on_turn(self) -> None:
        """The loop has dealt with an event, or waited for half a second."""

    def set_deadline(self, seconds: float | None) -> None:
        """Call :meth:`on_deadline` once, that many seconds from now; None cancels."""
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
        """Say in the log that a peer's message is dropped, unless it has said so too often."""
        if self._drops_logged.take():
            LOGGER.warning(text, *values)

    def _turn(self) -> None:
        wait = 0.5 if self._deadline is None else min(0.5, max(0.0, self._deadline - time.monotonic()))
        try:
            message_type, message = self._events.get(timeout=wait)
        except queue.Empty:
            late = 0.0 if self._deadline is None else time.monotonic() - self._deadline
            if self._deadline is None or late < 0:
                return
            if late > _LATE_SECONDS:
                LOGGER.warning("this process was halted, or very busy, for %.0f s; others get these to answer", late)
                self.set_deadline(late)
            else:
                self._deadline = None
                self.on_deadline()
        else:
            if message_type is _CALL:
                _do(*message)
            elif message_type in self.message_handler_dict:
                super().receive_message(message_type, message)  # FedML's dispatch to the registered handler
            else:  # where FedML would end the run, at the word of any peer
                kind = str(message_type)
                sender = message.get_sender_id()
                self.note_drop("dropped a message of unknown type %.60r from rank %s", kind, sender)


def _do(work: Callable[[], str], future: Future[str]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except DapperError as error:
        future.set_exception(error)
    except Exception as error:
        future.set_exception(error)
        raise
