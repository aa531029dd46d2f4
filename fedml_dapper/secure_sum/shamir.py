"""Shamir's secret sharing: any ``threshold`` shares give a secret of 32 bytes, fewer say nothing of it (CACM 1979).

Over the integers modulo the first prime above 2^256. The one in PyCryptodome splits 16 bytes, which neither a key of
X25519 nor a seed fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedml_dapper.errors import ProtocolError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_DRAWN_BYTES = 48
"""For a number modulo the prime that is even to 2^-127."""
Randomness = Callable[[int], bytes]
"""So many bytes that nobody else knows, such as ``os.urandom``."""


def split(secret: bytes, threshold: int, points: Sequence[int], randomness: Randomness) -> list[bytes]:
    """A share of ``secret``, which has 32 bytes, for each of ``points``, which differ and are above 0."""
    drawn = [int.from_bytes(randomness(_DRAWN_BYTES), "little") % PRIME for _ in range(threshold - 1)]
    coefficients = [*drawn, int.from_bytes(secret, "little")]  # of the highest power first
    return [_value(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points]


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


class Recombination:
    """Secrets out of the shares for certain ``points``, of which there are as many as the threshold or more."""

    def __init__(self, points: Sequence[int]) -> None:
        self._factors = {point: self._factor(point, points) for point in points}

    def secret(self, shares: Mapping[int, bytes]) -> bytes:
        """The secret of these shares, by point; raises :class:`ProtocolError` where they are of none."""
        total = sum(self._factors[point] * int.from_bytes(share, "little") for point, share in shares.items()) % PRIME
        if total >> (8 * SECRET_BYTES):
            raise ProtocolError("shares of a secret do not fit each other: a client sent a wrong one")
        return total.to_bytes(SECRET_BYTES, "little")

    @staticmethod
    def _factor(point: int, points: Sequence[int]) -> int:
        """Lagrange's, for the value at 0."""
        above = 1
        below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        return above * pow(below, -1, PRIME) % PRIME
