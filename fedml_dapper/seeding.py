"""Independent random streams, all derived from one experiment seed.

Each purpose has a stream of its own, so that, say, changing the method leaves partition, levels, initial weights and
batches untouched and two methods can be compared on identical draws.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import numpy as np
import torch


class Stream(Enum):
    """What a random stream is for."""

    PARTITION = "partition"
    SPLIT = "test pictures of one's own"
    VALIDATION = "validation samples"
    LEVELS = "levels"
    SAMPLING = "client sampling"
    INITIALISATION = "initialisation"
    BATCHES = "batches"
    AUGMENTATION = "augmentation"
    METHOD = "method"
    TRAINING = "local training"
    SEARCH = "hyper-parameter search"
    CLOCK = "virtual clock"
    AVAILABILITY = "availability of devices"
    PRIVACY = "noise of differential privacy"


def numpy_generator(seed: int, stream: Stream, *keys: int) -> np.random.Generator:
    """A numpy generator for ``stream``; ``keys`` (client, round, epoch, ...) select a sub-stream."""
    return np.random.default_rng(_sequence(seed, stream, keys))


def torch_generator(seed: int, stream: Stream, *keys: int) -> torch.Generator:
    """A CPU torch generator for ``stream``; ``keys`` (client, round, epoch, ...) select a sub-stream."""
    state = _sequence(seed, stream, keys).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


@contextmanager
def seeded_layers(seed: int, stream: Stream, *keys: int) -> Iterator[None]:
    """What draws from torch's global generator inside, such as layers their initial weights, draws from ``stream``;
    afterwards that generator is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_generator(seed, stream, *keys).initial_seed())
        yield


def _sequence(seed: int, stream: Stream, keys: tuple[int, ...]) -> np.random.SeedSequence:
    # the number of keys goes in, because numpy takes [s] and [s, 0] for the same entropy
    return np.random.SeedSequence([seed, zlib.crc32(stream.value.encode()), len(keys), *keys])
