"""How many cells run at a time on a GPU: as many as it has memory for, once a first one has shown what it takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from fedml_dapper.errors import ConfigError

MOST = 8
"""More processes than these take hardly more steps a second together (``results/benchmarks/gpu.json``), except where
CUDA's multi-process service lets their kernels run at the same time."""
MARGIN = 2
"""Memory that is kept for a cell, of what the first one takes: other methods train two networks at a time."""
LEAST_BYTES = 1 << 29
"""What a process on a GPU takes at least: the driver's context and the libraries' kernels."""


def cells_at_once(free: int, taken: int, cores: int, *, shared: bool = False) -> int:
    """Return how many cells run at a time.

    Args:
        free: Bytes of the GPU's memory that are free before a cell runs.
        taken: Bytes of them that one cell takes.
        cores: The processor's; a cell keeps one busy.
        shared: Whether kernels of several processes run at the same time.
    """
    return max(1, min(cores if shared else MOST, cores, free // (MARGIN * max(taken, LEAST_BYTES))))


class Room:
    """Room on a GPU, for one cell until it has finished a round, then for as many as fit.

    Args:
        free: Says how many bytes of the GPU's memory are free now.
        cores: The processor's.
        shared: Whether kernels of several processes run at the same time.
    """

    def __init__(self, free: Callable[[], int], cores: int, *, shared: bool = False) -> None:
        self._free = free
        self._cores = cores
        self._shared = shared
        self._before = free()
        self._cells: int | None = None

    def cells(self, rounds: int) -> int:
        """Return how many cells may run now, where those that run have finished so many ``rounds`` together."""
        if self._cells is None and rounds > 0:
            taken = self._before - self._free()
            self._cells = cells_at_once(self._before, taken, self._cores, shared=self._shared)
        return self._cells or 1


def check_gpu() -> None:
    """Check that there is a GPU.

    Raises:
        ConfigError: torch finds none.
    """
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU on this machine; leave the option out to run on the CPU")


def is_gpu_shared() -> bool:
    """Return whether CUDA's multi-process service runs: ``nvidia-cuda-mps-control -d`` starts it."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def free_on_gpu() -> int:
    """Return the bytes that are free on the GPU, whoever uses the others."""
    return torch.cuda.mem_get_info()[0]
