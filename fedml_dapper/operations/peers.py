"""Hosts of callers, from what gRPC says of where a call comes from."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

_IPV6_PREFIX = 64
"""Leading bits by which IPv6 hosts are told apart: whoever has one such address has all that begin like it."""


def host_of(peer: str) -> str:
    """Return the host that calls from ``peer``, or its network where that is what one caller has, as with IPv6.

    gRPC writes ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``.
    """
    host = unquote(peer.rpartition(":")[0]).partition(":")[2].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return peer.rpartition(":")[0]  # no address, such as a socket's name
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)
