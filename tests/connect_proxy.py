"""An HTTP proxy that connects to whatever it is asked for, and says what that was."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

END_OF_HEAD = b"\r\n\r\n"


class ConnectProxy:
    """Passes on connections to ``target`` on this machine, whatever host it is asked for, or refuses all of them."""

    def __init__(self, target: int, refuses: bool = False) -> None:
        self._target, self._refuses = target, refuses
        self.asked: list[str] = []
        """The first line of each request."""
        self.passwords: list[str] = []
        """What requests say of who asks, where they say it."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ConnectProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                threading.Thread(target=self._serve, args=self._listener.accept()[:1], daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        head = b""
        while END_OF_HEAD not in head:
            head += near.recv(1 << 12)
        request, *fields = head.decode().split("\r\n")
        self.asked.append(request)
        self.passwords += [field.split()[-1] for field in fields if field.lower().startswith("proxy-authorization:")]
        if self._refuses:
            near.sendall(b"HTTP/1.1 403 Forbidden" + END_OF_HEAD)
            near.close()
            return
        far = socket.create_connection(("127.0.0.1", self._target))
        near.sendall(b"HTTP/1.1 200 Connection established" + END_OF_HEAD)
        threading.Thread(target=_pass_on, args=(far, near), daemon=True).start()
        _pass_on(near, far)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
