"""The way to a server through an HTTP proxy, which passes on what it cannot read (CONNECT).

gRPC finds the proxy itself, by the options of its channel; :func:`proxy_for` finds the same one for connections
without gRPC.
"""

from __future__ import annotations

import os
import socket
from base64 import b64encode
from urllib.parse import unquote, urlsplit

from fedml_dapper.config.addresses import is_loopback, split_address
from fedml_dapper.config.comm_args import ENVIRONMENT
from fedml_dapper.errors import printable

_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY_VARIABLES = ("no_grpc_proxy", "no_proxy")
"""Those that gRPC looks at, of which the first that is set counts."""
_END_OF_HEAD = b"\r\n\r\n"
_MAX_HEAD_BYTES = 1 << 14
_HTTP_PORT = 80


def may_be_proxied(address: str, http_proxy: str | None) -> bool:
    """Return whether the server at ``address`` may be behind a proxy, which then finds it by name.

    This machine itself never is.
    """
    return http_proxy is not None and not is_loopback(split_address(address)[0])


def proxy_options(address: str, http_proxy: str | None) -> tuple[tuple[str, int | str], ...]:
    """Return gRPC's options of a channel for the setting ``http_proxy``; by default none is used, whatever is there."""
    if not may_be_proxied(address, http_proxy):
        return (("grpc.enable_http_proxy", 0),)
    if http_proxy == ENVIRONMENT:
        return (("grpc.enable_http_proxy", 1),)
    return (("grpc.enable_http_proxy", 1), ("grpc.http_proxy", str(http_proxy)))


def proxy_for(address: str, http_proxy: str | None) -> str | None:
    """Return the URL of the proxy through which gRPC would reach ``address``; None where it would connect directly."""
    if not may_be_proxied(address, http_proxy):
        return None
    url = _variable(_PROXY_VARIABLES) if http_proxy == ENVIRONMENT else http_proxy
    if not url or urlsplit(url).scheme != "http":
        return None
    host = split_address(address)[0].lower()
    without = [name.strip().lower() for name in _variable(_NO_PROXY_VARIABLES).split(",")]
    return None if any(name and host.endswith(name) for name in without) else url


def connected(address: str, http_proxy: str | None, seconds: float) -> socket.socket:
    """Return a connection to ``address``, by way of the proxy if there is one; each step takes ``seconds`` at most.

    Raises:
        OSError: Nobody is there, or the proxy refuses.
    """
    proxy = proxy_for(address, http_proxy)
    if proxy is None:
        return socket.create_connection(split_address(address), seconds)
    place = urlsplit(proxy)
    line = socket.create_connection((place.hostname or "", place.port or _HTTP_PORT), seconds)
    try:
        head = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        if place.username is not None:
            credentials = f"{unquote(place.username)}:{unquote(place.password or '')}"
            head.append(f"Proxy-Authorization: Basic {b64encode(credentials.encode()).decode()}")
        line.sendall("\r\n".join(head).encode() + _END_OF_HEAD)
        _check_answer(line)
    except BaseException:
        line.close()
        raise
    return line


def _check_answer(line: socket.socket) -> None:
    """Read the proxy's answer, behind which nothing comes before this side has spoken; raise OSError for a refusal."""
    answer = b""
    while _END_OF_HEAD not in answer and len(answer) < _MAX_HEAD_BYTES:
        more = line.recv(_MAX_HEAD_BYTES)
        if not more:
            break
        answer += more
    status = answer.partition(b"\r\n")[0].decode(errors="replace")
    if not status.startswith("HTTP/1.") or status.split()[1:2] != ["200"]:
        raise OSError(f"the proxy answers: {printable(status[:100]) or 'nothing'}")


def _variable(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
