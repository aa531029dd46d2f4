"""Noise from ChaCha20's keystream: repeatable with a known key, unpredictable with a secret one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedml_dapper.randomness.discrete_gaussian import discrete_gaussian
from fedml_dapper.randomness.seeding import Stream, numpy_generator

_KEY_BYTES = 32
_NONCE_BYTES = 16


class Noise:
    """Stream of independent random numbers, each given out once."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # noqa: PLC0415  # most runs draw no noise

        self._stream = Cipher(algorithms.ChaCha20(key, bytes(_NONCE_BYTES)), mode=None).encryptor()

    @classmethod
    def of_run(cls, seed: int, *keys: int) -> Noise:
        """Return the stream that follows from the run's ``seed``; ``keys`` (round, client) select one of many."""
        return cls(numpy_generator(seed, Stream.PRIVACY, *keys).bytes(_KEY_BYTES))

    @classmethod
    def secret(cls) -> Noise:
        """Return a new stream, by a random key that is not kept."""
        return cls(os.urandom(_KEY_BYTES))

    def normal(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Draw standard normal numbers, float64, in ``shape``.

        They are made of uniform numbers of 53 bits by the transform of Box and Muller, so none exceeds 8.6 in size.
        As all floating-point noise they have gaps in their last digits, which proofs of differential privacy over real
        numbers do not consider (Mironov, CCS 2012).
        """
        count = prod(shape)
        pairs = -(-count // 2)
        drawn = self._words(2 * pairs) >> np.uint64(11)
        uniform = drawn.astype(np.float64).reshape(2, pairs) * 2.0**-53
        length = np.sqrt(-2 * np.log(uniform[0] + 2.0**-53))  # in (0, 1], as the logarithm of 0 is infinite
        angle = 2 * np.pi * uniform[1]
        normal = np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]
        return torch.from_numpy(normal).view(torch.Size(shape)).to(device)

    def discrete(self, std: int, count: int) -> NDArray[np.int64]:
        """Draw ``count`` integers of the discrete Gaussian with parameter ``std`` (:func:`discrete_gaussian`)."""
        return discrete_gaussian(self._words, std, count)

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")
