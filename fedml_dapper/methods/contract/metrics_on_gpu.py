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

    def stop(self) -> None:
        """Stop when the GPU has done all that it was given so far, without waiting for that."""
        self._stopped = self._mark()

    def seconds(self) -> float:
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

    def __init__(self, mean_loss: Tensor, steps: int, clock: GPUClock) -> None:
        clock.stop()
        held: dict[str, Any] = {"steps": steps, "accuracy_before": None, "accuracy_after": None}
        vars(self).update(held, _mean_loss=mean_loss, _clock=clock)

    @cached_property
    def loss(self) -> float:
        return float(vars(self)["_mean_loss"])

    @cached_property
    def seconds(self) -> float:
        clock: GPUClock = vars(self)["_clock"]
        return clock.seconds()

    def __reduce__(self) -> tuple[type[TrainingMetrics], tuple[float, int, float]]:
        return TrainingMetrics, (self.loss, self.steps, self.seconds)
