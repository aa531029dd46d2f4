"""HTTP endpoints ``/health`` and ``/metrics`` of a running server, on a port of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedml_dapper.config.addresses import join_address
from fedml_dapper.errors import ConfigError
from fedml_dapper.operations.status import STATES, ServerStatus

LOGGER = logging.getLogger(__name__)
REQUEST_SECONDS = 5.0
"""How long a request may take, to come and to be answered, however slowly its bytes come."""
MAX_REQUESTS = 8
"""Most requests at a time; more are closed at once."""


class Monitor:
    """Answers requests from the status that ``read`` returns, until :meth:`close`.

    ``/health`` answers 503 where the server's loop has done nothing for more than ``stalled_after_s`` seconds.

    Raises:
        ConfigError: The port is taken.
    """

    def __init__(self, host: str, port: int, read: Callable[[], ServerStatus], stalled_after_s: float) -> None:
        registry = CollectorRegistry()
        registry.register(_Metrics(read))
        ProcessCollector(registry=registry)
        try:
            self._server = _Server((host, port), read, registry, stalled_after_s)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(
                f"comm_args.dapper_grpc.monitor_port: cannot listen on {join_address(host, port)}: {reason}"
            ) from error
        threading.Thread(target=self._server.serve_forever, name="monitor", daemon=True).start()
        LOGGER.info("health and metrics: http://%s/health, /metrics", join_address(host, port))

    def close(self) -> None:
        """Stop answering, and close the port."""
        self._server.shutdown()
        self._server.server_close()


class _Metrics(Collector):
    """The status as Prometheus metrics. Labels are names of the federation's own callers, none from strangers."""

    def __init__(self, read: Callable[[], ServerStatus]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        status = self._read()
        yield GaugeMetricFamily("dapper_round", "The open round, else the last one.", value=status.round)
        yield GaugeMetricFamily("dapper_rounds", "Rounds that the experiment asks for.", value=status.rounds)
        yield GaugeMetricFamily("dapper_state_seconds", "Since state or round began.", value=status.seconds)
        yield GaugeMetricFamily("dapper_loop_seconds", "Since the loop last did something.", value=status.loop_s)
        state = GaugeMetricFamily("dapper_state", "1 for the state the server is in.", labels=["state"])
        for name in STATES:
            state.add_metric([name], float(name == status.state))
        yield state
        yield CounterMetricFamily(
            "dapper_refused_uploads", "Uploads that were no use, or implausible.", value=status.refused_uploads
        )
        yield CounterMetricFamily(
            "dapper_refused_strangers", "Calls of certificates that are no caller's.", value=status.refused_strangers
        )
        yield GaugeMetricFamily("dapper_out", "Silos in quarantine, or evicted.", value=len(status.out))
        yield GaugeMetricFamily("dapper_absent", "Silos absent from the last round.", value=len(status.absent))
        yield from self._of_callers(status)

    def _of_callers(self, status: ServerStatus) -> Iterator[Metric]:
        labels = ["caller"]
        connected = GaugeMetricFamily("dapper_caller_connected", "1 where it can be reached.", labels=labels)
        heard = GaugeMetricFamily("dapper_caller_heard_seconds", "Since it was last heard.", labels=labels)
        received = CounterMetricFamily("dapper_caller_received_bytes", "From it.", labels=labels)
        sent = CounterMetricFamily("dapper_caller_sent_bytes", "To it.", labels=labels)
        refused = CounterMetricFamily("dapper_caller_refused_calls", "In its name.", labels=labels)
        out = GaugeMetricFamily("dapper_caller_out", "1 in quarantine, or evicted.", labels=labels)
        absent = GaugeMetricFamily("dapper_caller_absent", "1 if absent from the last round.", labels=labels)
        for one in status.callers:
            connected.add_metric([one.name], float(one.connected))
            if one.heard_s is not None:
                heard.add_metric([one.name], one.heard_s)
            received.add_metric([one.name], one.bytes_in)
            sent.add_metric([one.name], one.bytes_out)
            refused.add_metric([one.name], one.refused_calls)
            out.add_metric([one.name], float(one.name in status.out))
            absent.add_metric([one.name], float(one.name in status.absent))
        yield from (connected, heard, received, sent, refused, out, absent)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        read: Callable[[], ServerStatus],
        registry: CollectorRegistry,
        stalled_after_s: float,
    ) -> None:
        self.read = read
        self.registry = registry
        self.stalled_after_s = stalled_after_s
        self._places = threading.BoundedSemaphore(MAX_REQUESTS)
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        # A timer, since a socket's own timeout begins anew with every byte.
        limit = threading.Timer(REQUEST_SECONDS, _cut, [request])
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._places.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        LOGGER.debug("a request to the monitor ended early", exc_info=True)


def _cut(request: socket | tuple[bytes, socket]) -> None:
    """Shut the connection down, so that threads that read or write it end."""
    assert isinstance(request, socket)
    try:
        request.shutdown(SHUT_RDWR)
    except OSError:
        LOGGER.debug("a request to the monitor ended as its time was over")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS
    server_version = "fedml-dapper"
    sys_version = ""

    def do_GET(self) -> None:  # as http.server calls it
        if self.path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
        elif self.path == "/health":
            status = self.server.read()
            code = 200 if status.loop_s <= self.server.stalled_after_s else 503
            kept = {"state", "round", "rounds", "seconds", "loop_s", "up_s", "memory_bytes"}
            self._answer(code, "application/json", status.model_dump_json(include=kept).encode())
        else:
            self._answer(404, "text/plain; charset=utf-8", b"/health or /metrics\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests come every few seconds."""
