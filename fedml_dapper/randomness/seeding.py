"""Independent random streams, all derived from one experiment seed.

Each purpose has a stream of its own. So with another method, for instance, partition, levels, initial weights and
batches stay the same, and two methods can be compared on identical draws.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import numpy as np
import torch


class Stream(Enum):
    """Purpose of a random stream. Its value enters the seed, so changing the value changes the stream's numbers."""

    PARTITION = "partition"
    SPLIT = "test pictures of one's own"
    VALIDATION = "validation samples"
    LEVELS = "levels"
    SAMPLING = "client sampling"
    INITIALISATION = "initialisation"
    ADAPTERS = "adapters"
    BATCHES = "batches"
    AUGMENTATION = "augmentation"
    METHOD = "method"
    TRAINING = "local training"
    TESTS = "tests of clients' own models"
    SEARCH = "hyper-parameter search"
    CLOCK = "virtual clock"
    AVAILABILITY = "availability of devices"
    PRIVACY = "noise of differential privacy"


def numpy_generator(seed: int, stream: Stream, *keys: int) -> np.random.Generator:
    """Return a numpy generator for ``stream``; ``keys`` (client, round, epoch, ...) select a sub-stream."""
    return np.random.default_rng(_sequence(seed, stream, keys))


def torch_generator(seed: int, stream: Stream, *keys: int) -> torch.Generator:
    """Return a CPU torch generator for ``stream``; ``keys`` (client, round, epoch, ...) select a sub-stream."""
    state = _sequence(seed, stream, keys).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


@contextmanager
def seeded_layers(seed: int, stream: Stream, *keys: int) -> Iterator[None]:
    """Seed torch's global generator from ``stream`` for the block, and restore its state afterwards.

    Layers draw their initial weights from it, for instance.
    """
    with torch.random.fork_rng(devices=[]):
        seed_torch(torch_generator(seed, stream, *keys).initial_seed())
        yield


def seed_torch(seed: int) -> None:
    """Seed torch's global generators, those of GPUs where these are in use.

    ``torch.manual_seed`` does so too, and where no GPU is in use it notes down the seed for later, with the whole stack
    of calls in words, which takes 0.5 ms each time.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch ships it untyped
        torch.cuda.manual_seed_all(seed)


def _sequence(seed: int, stream: Stream, keys: tuple[int, ...]) -> np.random.SeedSequence:
    # The number of keys goes in, since numpy takes [s] and [s, 0] for the same entropy.
    return np.random.SeedSequence([seed, zlib.crc32(stream.value.encode()), len(keys), *keys])
