"""The line that tests dial is as bad as it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from .line import Line, Quality


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says what it is told."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        while data := peer.recv(1 << 16):
            peer.sendall(data)

    def accept() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def said(line: Line, size: int) -> int:
    """How many bytes come back of so many."""
    with socket.create_connection(("127.0.0.1", line.port)) as peer:
        threading.Thread(target=_send, args=(peer, size), daemon=True).start()
        found = 0
        while found < size and (data := _received(peer)):
            found += len(data)
    return found


def _send(peer: socket.socket, size: int) -> None:
    with suppress(OSError):  # cut
        peer.sendall(bytes(size))


def _received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1 << 16)
    except OSError:
        return b""


def test_a_line_breaks_after_so_many_bytes_each_time(echo: int) -> None:
    with Line(echo, quality=Quality(cut_after=70_000)) as line:
        assert said(line, 100_000) <= 70_000  # what is under way at the break is lost
        assert line.up == 70_000
        assert said(line, 60_000) == 60_000
        assert line.up == 130_000
        assert line.connections == 2


def test_a_line_delays_and_throttles(echo: int) -> None:
    with Line(echo, quality=Quality(delay_s=0.05)) as line:
        begun = time.monotonic()
        assert said(line, 10) == 10
        assert time.monotonic() - begun >= 0.1
        line.quality = Quality(bytes_per_s=400_000)
        begun = time.monotonic()
        assert said(line, 40_000) == 40_000
        assert time.monotonic() - begun >= 0.1
