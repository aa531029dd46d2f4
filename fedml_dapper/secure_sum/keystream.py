"""Masks as streams of words, and adding them where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedml_dapper.secure_sum.cells import Places
from fedml_dapper.secure_sum.fixed_point import Words

_NONCE = bytes(16)
"""A key masks once."""
_PIECE = 2**16
"""Words that are drawn and added at a time, 256 KiB: they stay in the processor's cache."""
_MOST_RUNS = 4096
"""Beyond that, one pass over the whole vector is faster."""
_ZEROS = bytes(4 * _PIECE)


class Stream(Protocol):
    """Words that are given out one after another."""

    def take(self, count: int) -> Words:
        """The next ones, until the next call."""


MaskGenerator = Callable[[bytes], Stream]
"""From a key of 32 bytes to its mask."""


class ChaCha20Stream:
    """ChaCha20's keystream, as little-endian words of 32 bits."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()

    def take(self, count: int) -> Words:
        zeros = _ZEROS[: 4 * count] if count <= _PIECE else bytes(4 * count)
        return np.frombuffer(self._encryptor.update(zeros), dtype="<u4")


class Given:
    """The words of a vector."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._at = 0

    def take(self, count: int) -> Words:
        self._at += count
        return self._words[self._at - count : self._at]


def add(vector: Words, places: Places, stream: Stream, subtract: bool = False) -> None:
    """Add the stream's next words to ``vector`` at these places, or ``subtract`` them, modulo 2^32."""
    change = np.subtract if subtract else np.add
    if len(places.runs) > _MOST_RUNS:
        chosen = places.mask()
        vector[chosen] = change(vector[chosen], stream.take(places.count))
        return
    for start, stop in places.runs:
        for at in range(start, stop, _PIECE):
            piece = vector[at : min(at + _PIECE, stop)]
            change(piece, stream.take(len(piece)), out=piece)
