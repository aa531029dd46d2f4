"""Addresses of servers: HOST:PORT, where HOST is a name, an IPv4 address, or an IPv6 address in brackets."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Annotated

from pydantic import AfterValidator

_PORTS = 2**16


def split_address(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port of HOST:PORT.

    Raises:
        ValueError: It is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < _PORTS:
        raise ValueError(f"expected HOST:PORT, e.g. server.example.org:8890, found {address}")
    if host.startswith("[") and host.endswith("]"):
        _check_ipv6(host[1:-1], address)
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets, e.g. [2001:db8::1]:8890, found {address}")
    return host, int(port)


def join_address(host: str, port: int | str) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether ``host``, a name or an address without brackets, is this machine by its own word."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _check_ipv6(host: str, address: str) -> None:
    try:
        IPv6Address(host)
    except ValueError as error:
        raise ValueError(f"expected an IPv6 address in brackets, e.g. [2001:db8::1]:8890, found {address}") from error


def _checked(address: str) -> str:
    split_address(address)
    return address


Address = Annotated[str, AfterValidator(_checked)]
