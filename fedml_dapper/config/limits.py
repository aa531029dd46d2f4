"""Largest values of settings. Larger ones are typing mistakes, or would take the machine down."""

from __future__ import annotations

MAX_SEED = 2**32 - 1
"""Largest seed of numpy's generators, which FedML seeds."""
MAX_CLIENTS = 1_000_000
MAX_CLIENTS_WITH_EDGES = 5000
"""Most clients of an experiment with edges, whose orders name all of them in a header of bounded size."""
MAX_ROUNDS = 1_000_000
MAX_EPOCHS = 100_000
MAX_BATCH = 1_000_000
"""Most samples in a batch."""
MAX_SIDE = 4096
"""Most pixels of an image's height and width."""
MAX_WIDTH = 4096
"""Most channels of a network's first stage."""
MAX_CLASSES = 100_000
MAX_THREADS = 1024
"""Most threads; torch ends with a segmentation fault where the system gives it no more."""
MAX_WORKERS = 1024
"""Most processes that train clients side by side."""
MAX_SECONDS = 10 * 366 * 24 * 3600.0
"""Ten years; the system's timers take no more than thirty times that."""
MAX_MESSAGE_MB = 1 << 20
"""One TiB."""
MAX_NAME = 100
"""Most letters of a name that becomes part of a file's."""
