"""What a device sends and receives stays below its limit, evenly, and is the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.secure_grpc.pacing import KIB, Pace
from fedml_dapper.secure_grpc.parcel import FRAME_BYTES, MIB

from ..line import Line
from .answering import Answering, caller, saying
from .trial import Clock


class Slept:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.clock = Clock()

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds


def test_frames_are_sent_evenly_in_the_time_that_the_limit_gives_them() -> None:
    slept = Slept()
    begun = slept.clock.now
    pace = Pace(100, slept.clock, slept.sleep)
    frames = [b"envelope" * 5000, os.urandom(FRAME_BYTES), os.urandom(1000)]
    sent = []
    for piece in pace.sending(iter(frames)):
        so_far = sum(map(len, sent))
        assert slept.clock.now - begun == pytest.approx(so_far / (100 * KIB))
        sent.append(piece)
    assert sent[0] == frames[0]  # an envelope stays one frame
    assert b"".join(sent) == b"".join(frames)
    assert max(map(len, sent[1:])) == 25 * KIB


def test_no_time_that_was_not_used_is_made_up_for() -> None:
    slept = Slept()
    pace = Pace(100, slept.clock, slept.sleep)
    slept.clock.now += 1000
    begun = slept.clock.now
    assert list(pace.receiving(iter([bytes(100 * KIB)] * 3))) == [bytes(100 * KIB)] * 3
    assert slept.clock.now - begun == pytest.approx(3)


def test_both_directions_keep_the_limit_on_a_line(config: SecureGrpcConfig, serve: Callable[..., Answering]) -> None:
    server = serve(config)
    server.says = os.urandom(2 * MIB)
    payload = os.urandom(2 * MIB)
    limit = 8 * KIB
    with Line(int(config.server_address.rpartition(":")[2])) as line:
        there = {"server_address": f"localhost:{line.port}", "max_kib_per_s": limit}
        device = caller(config.model_copy(update=there), 1)
        begun = time.monotonic()
        assert device.call(saying("evenly", 1, payload)).get(say.MODEL) == server.says
        seconds = time.monotonic() - begun
    assert seconds > 2 * MIB / (limit * KIB)  # nobody waits behind the last part, of 1 MiB at most
    assert server.heard[0][1].get(say.MODEL) == payload
