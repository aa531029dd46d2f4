"""Recorders for tests."""

from __future__ import annotations

from collections.abc import Callable

from fedml_dapper.capture.recorders import CallsAgain, Recording


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
