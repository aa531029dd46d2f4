"""A TCP line that can be cut, and tells how much it carries: what silos dial in place of the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class Line:
    """Passes on what arrives at ``port`` to ``target``, both on loopback, until it is cut.

    ``passed`` is told of so many bytes before they are passed on, in either direction."""

    def __init__(self, target: int, passed: Callable[[int], None] = lambda size: None) -> None:
        self._target, self._passed = target, passed
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
                    self._ends += [near, far]
                    self._start(self._pass_on, near, far)
                    self._start(self._pass_on, far, near)

    def _dial(self) -> socket.socket | None:
        if not self._connected.is_set():
            return None
        try:
            return socket.create_connection(("127.0.0.1", self._target))
        except ConnectionRefusedError:  # the server has not started, or has left
            return None

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # cut
            while data := source.recv(1 << 16):
                self._passed(len(data))
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()
