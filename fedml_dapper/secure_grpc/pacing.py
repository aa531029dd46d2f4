"""A limit of what a silo or device sends and receives per second, so that it leaves room for others on its line."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from fedml_dapper.secure_grpc.parcel import FRAME_BYTES

KIB = 1 << 10
_SMALLEST_PIECE = 4 * KIB
_PIECES_PER_SECOND = 4


class Pace:
    """Speed limit of one direction, over all messages of a process.

    Args:
        kib_per_s: Most KiB a second; no limit if None.
        clock: Seconds.
        sleep: Waits so many of them.
    """

    def __init__(
        self,
        kib_per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = None if kib_per_s is None else kib_per_s * KIB
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def sending(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        """Yield ``frames`` in time, in smaller pieces behind the first, so that the line is used evenly."""
        if self._bytes_per_s is None:
            yield from frames
            return
        first = itertools.islice(frames, 1)
        size = min(FRAME_BYTES, max(_SMALLEST_PIECE, int(self._bytes_per_s / _PIECES_PER_SECOND)))
        for piece in itertools.chain(first, _in_pieces(frames, size)):
            self._wait()
            self._count(len(piece), self._bytes_per_s)
            yield piece

    def receiving(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        """Yield ``frames``, and ask for the next when the line has rested for the last one."""
        if self._bytes_per_s is None:
            yield from frames
            return
        while True:
            self._wait()
            frame = next(frames, None)
            if frame is None:
                return
            self._count(len(frame), self._bytes_per_s)
            yield frame

    def _wait(self) -> None:
        seconds = self._free_at - self._clock()
        if seconds > 0:
            self._sleep(seconds)

    def _count(self, size: int, bytes_per_s: float) -> None:
        self._free_at = max(self._free_at, self._clock()) + size / bytes_per_s


def _in_pieces(frames: Iterator[bytes], size: int) -> Iterator[bytes]:
    for frame in frames:
        for start in range(0, len(frame), size):
            yield frame[start : start + size]
