"""How many wrong secrets a host may send to who hands out certificates, by a token bucket for each host."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from urllib.parse import unquote

from fedml_dapper.operations.rate_limiter import RateLimiter

GUESSES_AT_ONCE = 10.0
GUESSES_PER_SECOND = 0.1
"""Wrong secrets that one host may send, at once and per second."""
MAX_HOSTS = 1000
"""Hosts that are remembered, for as long as they have guessed wrong lately."""
_IPV6_PREFIX = 64
"""Leading bits by which IPv6 hosts are told apart: whoever has one such address has all that begin like it."""


class GuessLimits:
    """What each host may still guess; ``clock`` returns seconds.

    Beyond :data:`MAX_HOSTS` that guess at the same time, no limit holds. A secret is too long to be guessed, and one
    limit for all further hosts would let a single stranger keep everybody out who has a right code.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of_hosts: dict[str, RateLimiter] = {}

    def of(self, peer: str) -> RateLimiter:
        """Return the allowance of the host of ``peer``, written ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``."""
        host = host_of(peer)
        if host in self._of_hosts:
            return self._of_hosts[host]
        if len(self._of_hosts) >= MAX_HOSTS:
            self._of_hosts = {host: left for host, left in self._of_hosts.items() if not left.is_full}
        allowance = RateLimiter(GUESSES_AT_ONCE, GUESSES_PER_SECOND, self._clock)
        if len(self._of_hosts) < MAX_HOSTS:
            self._of_hosts[host] = allowance
        return allowance


def host_of(peer: str) -> str:
    """Return the host that calls from ``peer``, or its network where that is what one caller has, as with IPv6."""
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
