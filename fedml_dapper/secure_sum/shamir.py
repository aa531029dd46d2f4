"""Shamir's secret sharing (CACM 1979): any ``threshold`` shares give a secret of 32 bytes, fewer say nothing of it.

It works over the integers modulo the first prime above 2^256. PyCryptodome's implementation splits secrets of 16 bytes,
which is too short for a key of X25519 or a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedml_dapper.errors import ProtocolError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_DRAWN_BYTES = 48
"""Random bytes per coefficient: modulo the prime they are uniform to within 2^-127."""
Randomness = Callable[[int], bytes]
"""Function that returns a number of secret random bytes, such as ``os.urandom``."""


def split(secret: bytes, threshold: int, points: Sequence[int], randomness: Randomness) -> list[bytes]:
    """Split ``secret``, of 32 bytes, into a share for each of ``points``, which are different and above 0."""
    drawn = [int.from_bytes(randomness(_DRAWN_BYTES), "little") % PRIME for _ in range(threshold - 1)]
    coefficients = [*drawn, int.from_bytes(secret, "little")]  # from the highest power down to the constant
    return [_value(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points]


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


class Recombination:
    """Recombines secrets from their shares at fixed ``points``, at least as many as the threshold."""

    def __init__(self, points: Sequence[int]) -> None:
        self._factors = {point: self._factor(point, points) for point in points}

    def secret(self, shares: Mapping[int, bytes]) -> bytes:
        """Return the secret of these shares, given by point.

        Raises:
            ProtocolError: The shares do not fit each other.
        """
        total = sum(self._factors[point] * int.from_bytes(share, "little") for point, share in shares.items()) % PRIME
        if total >> (8 * SECRET_BYTES):
            raise ProtocolError("shares of a secret do not fit each other: a client sent a wrong one")
        return total.to_bytes(SECRET_BYTES, "little")

    @staticmethod
    def _factor(point: int, points: Sequence[int]) -> int:
        """Return Lagrange's coefficient of ``point`` for the value at 0."""
        numerator = 1
        denominator = 1
        for other in points:
            if other != point:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - point) % PRIME
        return numerator * pow(denominator, -1, PRIME) % PRIME
