"""How long a slow sender may keep its receiver waiting, on whose side it takes a place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from fedml_dapper.errors import DapperError
from fedml_dapper.secure_grpc.parcel import FRAME_BYTES

SLOWEST_SECONDS = 30.0
SLOWEST_BYTES_PER_SECOND = 4000.0
"""Longest pause, and speed below which a sender is cut off: slow ones would keep others waiting."""


class TooSlowError(DapperError):
    """Somebody has kept its other side waiting for too long, as ``it`` (a verb) too slowly."""

    def __init__(self, it: str) -> None:
        super().__init__(f"{it} more slowly than {SLOWEST_BYTES_PER_SECOND / 1000:g} kB a second")


class Patience:
    """Time that a message may take to come, frame by frame: for each as long as its bytes take at the slowest speed.

    So who stops, or sends a byte now and then, is cut off soon, whatever size was declared.

    Args:
        size: Bytes that are to come; 0 for a single short frame.
        clock: Seconds.
    """

    def __init__(self, size: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most = seconds_for(min(size, FRAME_BYTES))
        self._until = clock() + self._most

    async def next(self, frames: AsyncIterator[bytes]) -> bytes | None:
        """Return the next of ``frames``; None at their end.

        Raises:
            TooSlowError: It did not come in time.
        """
        try:
            frame = await asyncio.wait_for(_next(frames), max(0.0, self._until - self._clock()))
        except asyncio.TimeoutError:
            raise TooSlowError("delivers") from None
        # What was sent fast buys no long pause later.
        earned = len(frame or b"") / SLOWEST_BYTES_PER_SECOND
        self._until = min(self._until + earned, self._clock() + self._most)
        return frame


def seconds_for(size: int) -> float:
    """Return how long a frame of ``size`` bytes may take."""
    return SLOWEST_SECONDS + size / SLOWEST_BYTES_PER_SECOND


async def _next(frames: AsyncIterator[bytes]) -> bytes | None:
    return await anext(frames, None)
