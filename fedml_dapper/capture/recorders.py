"""Recording of a step, which is then replayed, as a CUDA graph is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

WARM_UP = 3
"""Times that a step runs before it is captured, as torch asks for: libraries choose their kernels meanwhile."""
SHARE_OF_MEMORY = 0.25
"""Share of the device's memory that recorded steps may take."""


@dataclass(frozen=True)
class Recording:
    """A recorded step."""

    replay: Callable[[], None]
    bytes: int
    """Memory that it holds on the device, besides the tensors that it reads and writes."""


class Recorder(Protocol):
    """A way of recording steps."""

    device: torch.device

    @property
    def most_bytes(self) -> int:
        """Memory that recordings and their tensors may take."""

    def record(self, step: Callable[[], None]) -> Recording:
        """Record ``step``, which reads and writes the same tensors whenever it is called.

        Calling it while it is recorded may change them. Raises ``RuntimeError`` where it cannot be recorded.
        """

    def random_state(self) -> Tensor:
        """Return where the device's random numbers are."""

    def set_random_state(self, state: Tensor) -> None:
        """Go back to where the device's random numbers were."""


class CudaGraphs:
    """CUDA graphs: all kernels of a step are launched by one call, which takes microseconds of Python's time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side: torch.cuda.Stream | None = None
        """Stream of all warm-ups: each stream keeps workspaces of cuBLAS for good."""
        self._failed = ""
        """Why a capture broke off, after which torch's allocator may take no other."""

    @property
    def most_bytes(self) -> int:
        total: int = torch.cuda.get_device_properties(self.device).total_memory
        return int(SHARE_OF_MEMORY * total)

    def record(self, step: Callable[[], None]) -> Recording:
        if self._failed:
            raise RuntimeError(f"no more is recorded after one that broke off: {self._failed}")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            with self._aside():
                for _ in range(WARM_UP):
                    step()
            before, after = self._captured(graph, step)
        return Recording(graph.replay, max(0, after - before))

    def _captured(self, graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> tuple[int, int]:
        """Capture ``step`` in ``graph``; return the memory that was reserved before, and after."""
        current = torch.cuda.current_stream(self.device)
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                before = torch.cuda.memory_reserved(self.device)  # within, where torch has emptied its cache
                step()
        except RuntimeError as error:
            self._failed = str(error).splitlines()[0]
            raise
        finally:
            torch.cuda.set_stream(current)  # which torch 2.11 leaves as the capture's, where that broke off
        return before, torch.cuda.memory_reserved(self.device)

    def random_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device)

    def set_random_state(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self.device)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Run the block on a stream of its own, as what is captured next has to be warmed up."""
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch ships it untyped
        stream = self._side
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(self.device).wait_stream(stream)


def bytes_of(tensors: tuple[Tensor, ...]) -> int:
    """Return the memory of ``tensors``."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
