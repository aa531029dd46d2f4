"""A worker's end of its pipe, behind which neither the worker nor the process that forked it waits for the other.

What a pipe holds before its writer has to wait is less than a model. So one thread reads what comes, and another writes
what goes, while the worker trains. Neither computes anything, so torch's threads stay with the worker's first one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread


class WorkerPipe:
    """Messages of a worker, read and written behind its back; the process ends once its peer is gone.

    Call it after the fork, as threads do not survive one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._come = SimpleQueue[bytes]()
        self._go = SimpleQueue[bytes | memoryview]()
        for work in (self._read, self._write):
            Thread(target=_ending_with_the_peer, args=(work,), daemon=True).start()

    def receive(self, before_waiting: Callable[[], None]) -> bytes:
        """Return the next message; waits for it, after a call of ``before_waiting``, where it has not come yet."""
        if self._come.empty():
            before_waiting()
        return self._come.get()

    def send(self, message: bytes | memoryview) -> None:
        """Send ``message`` as soon as those before it are sent; does not wait."""
        self._go.put(message)

    def _read(self) -> None:
        while True:
            self._come.put(self._connection.recv_bytes())

    def _write(self) -> None:
        while True:
            self._connection.send_bytes(self._go.get())


def _ending_with_the_peer(work: Callable[[], None]) -> None:
    try:
        work()
    except (EOFError, OSError):  # the parent is gone, or has other plans
        os._exit(0)
