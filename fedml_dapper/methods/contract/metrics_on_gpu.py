"""Report of training whose figures stay on the GPU until somebody asks for them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedml_dapper.methods.contract.messages import TrainingMetrics


class GPUClock:
    """Stopwatch for the work of a GPU, which goes on after Python has handed it out; it starts when it is made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = self._mark()

    def stop(self) -> GPUClock:
        """Stop when the GPU has done all that it was given so far, without waiting for that; returns itself."""
        self._stopped = self._mark()
        return self

    def elapsed(self) -> float:
        """Return the seconds from start to stop; waits for the stop."""
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1000

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch ships it untyped
        event.record(torch.cuda.current_stream(self._device))
        return event


class MetricsOnGPU(TrainingMetrics):
    """Report of training on a GPU, which is waited for when loss or seconds are read for the first time.

    So that the next client's work can be handed out meanwhile.
    """

    def __init__(
        self,
        loss: float | Tensor,
        steps: int,
        seconds: float | GPUClock,
        accuracy_before: float | None = None,
        accuracy_after: float | None = None,
    ) -> None:
        # Past the frozen class's own way, in which loss and seconds would be fields
        held: dict[str, Any] = {"steps": steps, "accuracy_before": accuracy_before, "accuracy_after": accuracy_after}
        vars(self).update(held, _loss=loss, _seconds=seconds)

    @cached_property
    def loss(self) -> float:
        return float(vars(self)["_loss"])

    @cached_property
    def seconds(self) -> float:
        seconds: float | GPUClock = vars(self)["_seconds"]
        return seconds.elapsed() if isinstance(seconds, GPUClock) else seconds

    def __reduce__(self) -> tuple[type[TrainingMetrics], tuple[float, int, float, float | None, float | None]]:
        known = (self.loss, self.steps, self.seconds, self.accuracy_before, self.accuracy_after)
        return TrainingMetrics, known
