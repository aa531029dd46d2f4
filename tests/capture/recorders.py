"""Recorders for tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedml_dapper.capture.recorders import WARM_UP, Recording


class CallsAgain:
    """Recordings that call the step again, on a CPU: all that surrounds a recording can be tried without a GPU."""

    device = torch.device("cpu")

    def __init__(self, most_bytes: int = 2**30) -> None:
        self.most_bytes = most_bytes

    def record(self, step: Callable[[], None]) -> Recording:
        for _ in range(WARM_UP):
            step()
        return Recording(step, 0)

    def random_state(self) -> Tensor:
        return torch.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        torch.set_rng_state(state)


class CountedCalls(CallsAgain):
    """Calls steps again, and counts how often."""

    def __init__(self, most_bytes: int = 2**30) -> None:
        super().__init__(most_bytes)
        self.recordings = 0
        self.replays = 0

    def record(self, step: Callable[[], None]) -> Recording:
        self.recordings += 1
        recording = super().record(step)

        def replay() -> None:
            self.replays += 1
            recording.replay()

        return Recording(replay, recording.bytes)
