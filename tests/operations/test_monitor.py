"""``/health`` and ``/metrics`` as a scraper sees them."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedml_dapper.errors import ConfigError
from fedml_dapper.operations import status
from fedml_dapper.operations.monitor import MAX_REQUESTS, Monitor
from fedml_dapper.operations.status import CallerFigures, Progress, StatusBoard

from ..platform.processes import free_port
from ..waiting import wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The status board's, which a test moves."""
    made = SimpleNamespace(now=0.0, monotonic=lambda: made.now)
    monkeypatch.setattr(status, "time", made)
    return made


@pytest.fixture
def board(clock: SimpleNamespace) -> StatusBoard:
    board = StatusBoard()
    board.callers = lambda: (
        [
            CallerFigures(name="silo-1", connected=True, heard_s=0.5, bytes_in=1000, bytes_out=2000, refused_calls=0),
            CallerFigures(name="silo-2", connected=False, heard_s=None, bytes_in=0, bytes_out=0, refused_calls=7),
        ],
        12,
    )
    board.post(Progress("round", 3, 10, out={"silo-2": "evicted"}, absent=("silo-2",), refused_uploads=4))
    return board


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def monitor(board: StatusBoard, port: int) -> Iterator[Monitor]:
    running = Monitor("127.0.0.1", port, board.read, stalled_after_s=1.0)
    yield running
    running.close()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_what_a_scraper_reads(monitor: Monitor, port: int) -> None:
    code, text = get(port, "/metrics")
    assert code == 200
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    expected = {
        ("dapper_round",): 3,
        ("dapper_rounds",): 10,
        ("dapper_state", "round"): 1,
        ("dapper_state", "paused"): 0,
        ("dapper_refused_uploads_total",): 4,
        ("dapper_refused_strangers_total",): 12,
        ("dapper_caller_connected", "silo-1"): 1,
        ("dapper_caller_connected", "silo-2"): 0,
        ("dapper_caller_received_bytes_total", "silo-1"): 1000,
        ("dapper_caller_sent_bytes_total", "silo-1"): 2000,
        ("dapper_caller_refused_calls_total", "silo-2"): 7,
        ("dapper_caller_out", "silo-2"): 1,
        ("dapper_caller_absent", "silo-1"): 0,
    }
    assert {key: found[key] for key in expected} == expected
    assert 0.5 <= found["dapper_caller_heard_seconds", "silo-1"] < 2
    assert ("dapper_caller_heard_seconds", "silo-2") not in found
    assert found[("process_resident_memory_bytes",)] > 1e7


def test_health_names_no_caller_and_turns_when_the_loop_stands_still(
    monitor: Monitor, port: int, board: StatusBoard, clock: SimpleNamespace
) -> None:
    code, text = get(port, "/health")
    assert (code, json.loads(text)["state"], "silo" in text) == (200, "round", False)
    clock.now += 1.1
    assert get(port, "/health")[0] == 503
    board.post(Progress("round", 3, 10))
    assert get(port, "/health")[0] == 200


def test_nothing_else_is_there(monitor: Monitor, port: int) -> None:
    for path in ("/", "/metrics/../etc/passwd", "/debug", "/health?x"):
        assert get(port, path)[0] == 404
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"POST /health HTTP/1.0\r\n\r\n")
        assert b"501" in raw.recv(100)


@pytest.mark.long
def test_requests_that_never_come_take_no_more_than_their_places(
    monitor: Monitor, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedml_dapper.operations.monitor._Handler.timeout", 600.0)  # nor leave them meanwhile
    monkeypatch.setattr("fedml_dapper.operations.monitor.REQUEST_SECONDS", 600.0)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MAX_REQUESTS)]
    for one in silent:
        one.setblocking(False)
    wait_until(lambda: sum(map(_is_closed, silent)) >= 2 * MAX_REQUESTS)
    assert sum(map(_is_closed, silent)) == 2 * MAX_REQUESTS
    for one in silent:
        one.close()
    wait_until(lambda: _answers(port))


def test_a_request_that_trickles_in_ends_all_the_same(
    monitor: Monitor, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedml_dapper.operations.monitor.REQUEST_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.setblocking(False)

        def is_over() -> bool:
            try:
                slow.send(b"G")  # each of them within the time that a read may take
            except OSError:
                return True
            return _is_closed(slow)

        wait_until(is_over)
    assert get(port, "/health")[0] == 200


def _answers(port: int) -> bool:
    try:
        return get(port, "/health")[0] == 200
    except OSError:  # there is no place yet
        return False


def _is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_port_that_is_taken_is_said(monitor: Monitor, port: int, board: StatusBoard) -> None:
    with pytest.raises(ConfigError, match=f"monitor_port: cannot listen on 127.0.0.1:{port}"):
        Monitor("127.0.0.1", port, board.read, 1.0)
