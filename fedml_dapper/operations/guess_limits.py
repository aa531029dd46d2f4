"""How many wrong secrets a host may send to who hands out certificates, by a token bucket for each host."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedml_dapper.operations.peers import host_of
from fedml_dapper.operations.rate_limiter import RateLimiter

GUESSES_AT_ONCE = 10.0
GUESSES_PER_SECOND = 0.1
"""Wrong secrets that one host may send, at once and per second."""
MAX_HOSTS = 1000
"""Hosts that are remembered, for as long as they have guessed wrong lately."""


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
