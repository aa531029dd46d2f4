"""Masks as streams of words, and their addition to chosen coordinates of a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedml_dapper.secure_sum.cells import Places
from fedml_dapper.secure_sum.fixed_point import Words

_NONCE = bytes(16)
"""Zero for all masks, as each key is used for one mask alone."""
_PIECE = 2**16
"""Number of words that are drawn and added at a time: their 256 KiB stay in the processor's cache."""
_MOST_RUNS = 4096
"""Number of runs above which one pass over the whole vector is faster."""
_ZEROS = bytes(4 * _PIECE)


class Stream(Protocol):
    """Interface of a sequence of words that is read from its beginning."""

    def take(self, count: int) -> Words:
        """Return the next words, which are valid until the next call."""


MaskGenerator = Callable[[bytes], Stream]
"""Function from a key of 32 bytes to its mask."""


class ChaCha20Stream:
    """Keystream of ChaCha20, as little-endian words of 32 bits."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()

    def take(self, count: int) -> Words:
        zeros = _ZEROS[: 4 * count] if count <= _PIECE else bytes(4 * count)
        return np.frombuffer(self._encryptor.update(zeros), dtype="<u4")


class Given:
    """Stream of the words of a vector."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._at = 0

    def take(self, count: int) -> Words:
        self._at += count
        return self._words[self._at - count : self._at]


def add(vector: Words, places: Places, stream: Stream, subtract: bool = False) -> None:
    """Add the stream's next words to ``vector`` in place, at these places and modulo 2^32, or ``subtract`` them."""
    change = np.subtract if subtract else np.add
    if len(places.runs) > _MOST_RUNS:
        chosen = places.mask()
        vector[chosen] = change(vector[chosen], stream.take(places.count))
        return
    for start, stop in places.runs:
        for at in range(start, stop, _PIECE):
            piece = vector[at : min(at + _PIECE, stop)]
            change(piece, stream.take(len(piece)), out=piece)
