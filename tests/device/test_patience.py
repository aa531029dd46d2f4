"""How long a slow sender is waited for, by a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fedml_dapper.secure_grpc.parcel import FRAME_BYTES
from fedml_dapper.secure_grpc.patience import SLOWEST_BYTES_PER_SECOND, SLOWEST_SECONDS, Patience, TooSlowError

A_FRAME_S = FRAME_BYTES / SLOWEST_BYTES_PER_SECOND
"""What a whole frame takes at the slowest speed."""
LARGE = 2 << 30


def frames_taken(*sent: tuple[float, int], size: int = LARGE) -> int:
    """How many frames are read, each of which comes so many seconds after the one before and has so many bytes."""
    now = 0.0

    async def frames() -> AsyncIterator[bytes]:
        nonlocal now
        for seconds, length in sent:
            now += seconds
            yield bytes(length)

    async def read() -> int:
        patience = Patience(size, lambda: now)
        coming = frames()
        taken = 0
        try:
            while await patience.next(coming) is not None:
                taken += 1
        except TooSlowError:
            pass
        return taken

    return asyncio.run(read())


def test_a_line_at_the_slowest_speed_is_waited_for_however_long_it_takes() -> None:
    assert frames_taken(*[(A_FRAME_S, FRAME_BYTES)] * 50) == 50


def test_who_sends_a_byte_now_and_then_is_cut_off_whatever_was_declared() -> None:
    most = (SLOWEST_SECONDS + A_FRAME_S) / 29 + 2
    assert frames_taken(*[(29.0, 1)] * 1000) < most
    assert frames_taken(*[(29.0, 1)] * 1000, size=1000) == 2


@pytest.mark.parametrize(("pause", "taken"), [(SLOWEST_SECONDS, 102), (SLOWEST_SECONDS + A_FRAME_S + 2, 101)])
def test_what_came_fast_buys_no_long_pause(pause: float, taken: int) -> None:
    assert frames_taken(*[(0.0, FRAME_BYTES)] * 100, (pause, 1), (0.0, 1)) == taken
