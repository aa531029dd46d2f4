"""How many cells run at a time on a GPU: as many as it has memory for, once a first one has shown what it takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedml_dapper.errors import ConfigError

MOST = 8
"""More processes than these take hardly more steps a second together (``results/benchmarks/gpu.json``)."""
MARGIN = 2
"""Memory that is kept for a cell, of what the first one takes: other methods train two networks at a time."""
LEAST_BYTES = 1 << 29
"""What a process on a GPU takes at least: the driver's context and the libraries' kernels."""


def cells_at_once(free: int, taken: int, cores: int) -> int:
    """Return how many cells run at a time.

    Args:
        free: Bytes of the GPU's memory that are free before a cell runs.
        taken: Bytes of them that one cell takes.
        cores: The processor's; a cell keeps one busy.
    """
    return max(1, min(MOST, cores, free // (MARGIN * max(taken, LEAST_BYTES))))


class Room:
    """Room on a GPU, for one cell until it has finished a round, then for as many as fit.

    Args:
        free: Says how many bytes of the GPU's memory are free now.
        cores: The processor's.
    """

    def __init__(self, free: Callable[[], int], cores: int) -> None:
        self._free = free
        self._cores = cores
        self._before = free()
        self._cells: int | None = None

    def cells(self, rounds: int) -> int:
        """Return how many cells may run now, where those that run have finished so many ``rounds`` together."""
        if self._cells is None and rounds > 0:
            self._cells = cells_at_once(self._before, self._before - self._free(), self._cores)
        return self._cells or 1


def check_gpu() -> None:
    """Check that there is a GPU.

    Raises:
        ConfigError: torch finds none.
    """
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU on this machine; leave the option out to run on the CPU")


def free_on_gpu() -> int:
    """Return the bytes that are free on the GPU, whoever uses the others."""
    return torch.cuda.mem_get_info()[0]
