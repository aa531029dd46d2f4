"""Random numbers from ChaCha20's keystream: repeatable with a known key, beyond prediction with a secret one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from fedml_dapper.discrete_gaussian import discrete_gaussian
from fedml_dapper.seeding import Stream, numpy_generator

_KEY_BYTES = 32
_NONCE_BYTES = 16


class Noise:
    """One stream of independent numbers, each given out once."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(_NONCE_BYTES)), mode=None).encryptor()

    @classmethod
    def of_run(cls, seed: int, *keys: int) -> Noise:
        """The one that follows from the run's ``seed``; ``keys`` (round, client) select a stream."""
        return cls(numpy_generator(seed, Stream.PRIVACY, *keys).bytes(_KEY_BYTES))

    @classmethod
    def secret(cls) -> Noise:
        """A new one, by a key that nobody keeps."""
        return cls(os.urandom(_KEY_BYTES))

    def normal(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """The next numbers as standard normal ones, float64, in ``shape``.

        Box and Muller's transform of uniform numbers of 53 bits, so that none is larger than 8.6. As all noise of
        floating point it has gaps in its last digits (Mironov, CCS 2012), which a proof over real numbers does not see.
        """
        count = prod(shape)
        pairs = -(-count // 2)
        drawn = self._words(2 * pairs) >> np.uint64(11)
        uniform = drawn.astype(np.float64).reshape(2, pairs) * 2.0**-53
        length = np.sqrt(-2 * np.log(uniform[0] + 2.0**-53))
        angle = 2 * np.pi * uniform[1]
        normal = np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]
        return torch.from_numpy(normal).view(torch.Size(shape)).to(device)

    def discrete(self, std: int, count: int) -> NDArray[np.int64]:
        """The next ones as ``count`` whole numbers of the discrete Gaussian (:func:`discrete_gaussian`)."""
        return discrete_gaussian(self._words, std, count)

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")
