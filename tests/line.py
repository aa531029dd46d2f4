"""A TCP line that can be cut, slowed and counted: what silos and devices dial in place of the server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

READ_BYTES = 1 << 14
"""Most bytes that are passed on at once."""


@dataclass
class Quality:
    """How bad a line is. It may be changed while the line is used, and counts for what comes next."""

    cut_after: int | None = None
    """Bytes after which each connection breaks, counted in each direction by itself; never if None."""
    delay_s: float = 0.0
    """Seconds that each piece of data takes, either way."""
    bytes_per_s: float | None = None
    """Speed of each connection, in each direction by itself; that of the machine if None."""


class Line:
    """Passes on what arrives at ``port`` to ``target``, both on loopback, until it is cut.

    ``passed`` is told of so many bytes before they are passed on, in either direction."""

    def __init__(
        self, target: int, passed: Callable[[int], None] = lambda size: None, quality: Quality | None = None
    ) -> None:
        self._target, self._passed = target, passed
        self.quality = quality or Quality()
        self.up = self.down = 0
        """Bytes that went to the target, and that came from it, in all."""
        self.connections = 0
        """Connections that were made, in all."""
        self._ends: list[socket.socket] = []
        self._connected = threading.Event()
        self._connected.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections and refuse new ones until :meth:`mend`."""
        self._connected.clear()
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):  # its peer was faster
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def mend(self) -> None:
        self._connected.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = self._listener.accept()
                far = self._dial()
                if far is None:
                    near.close()
                else:
                    self.connections += 1
                    self._ends += [near, far]
                    self._start(self._pass_on, near, far, self._count_up)
                    self._start(self._pass_on, far, near, self._count_down)

    def _dial(self) -> socket.socket | None:
        if not self._connected.is_set():
            return None
        try:
            return socket.create_connection(("127.0.0.1", self._target))
        except ConnectionRefusedError:  # the server has not started, or has left
            return None

    def _pass_on(self, source: socket.socket, sink: socket.socket, count: Callable[[int], None]) -> None:
        carried = 0
        with suppress(OSError):  # cut
            while data := source.recv(READ_BYTES):
                data = data[: self._left(carried)]
                self._passed(len(data))
                time.sleep(self._seconds_for(len(data)))
                sink.sendall(data)
                carried += len(data)
                count(len(data))
                if not self._left(carried):
                    break
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _left(self, carried: int) -> int:
        """Bytes that a connection may still carry after so many."""
        limit = self.quality.cut_after
        return READ_BYTES if limit is None else max(0, limit - carried)

    def _seconds_for(self, size: int) -> float:
        speed = self.quality.bytes_per_s
        return self.quality.delay_s + (0.0 if speed is None else size / speed)

    def _count_up(self, size: int) -> None:
        self.up += size

    def _count_down(self, size: int) -> None:
        self.down += size

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()
