"""Pauses before another call grow, end, and differ from caller to caller."""

from __future__ import annotations

import logging

import pytest

from fedml_dapper.device import retry
from fedml_dapper.device.retry import UnreachableError, send_with_retries
from fedml_dapper.secure_grpc import Backoff, Message
from fedml_dapper.secure_grpc.backoff import LONGEST, SHORTEST


def test_pauses_double_up_to_the_last_and_begin_anew() -> None:
    backoff = Backoff(1.0, 5.0)
    for about in (1, 2, 4, 5, 5):
        assert SHORTEST * about <= backoff.pause() <= LONGEST * about
    backoff.begin_anew()
    assert backoff.pause() <= LONGEST


def test_those_that_were_cut_off_together_do_not_come_back_together() -> None:
    assert len({Backoff(1.0, 5.0).pause() for _ in range(100)}) == 100


def test_a_message_is_sent_again_after_pauses_with_jitter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    slept: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", slept.append)

    def send(message: Message) -> None:
        if len(slept) < 4:
            raise OSError("the line is cut")

    send_with_retries(send, Message("any", 1, 0), 1, 1000, lambda: 0)
    assert all(SHORTEST * about <= pause <= LONGEST * about for about, pause in zip((0.5, 1, 2, 4), slept, strict=True))
    assert slept != [0.5, 1, 2, 4]
    slept.clear()
    with pytest.raises(UnreachableError, match="rank 1 cannot reach the server: the line is cut"):
        send_with_retries(send, Message("any", 1, 0), 1, 0, lambda: 0)


def test_pauses_begin_anew_while_a_large_message_comes_further(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", slept.append)
    arrived = [0]

    def send(message: Message) -> None:
        arrived[0] += 1000
        if len(slept) < 8:
            raise OSError("the line is cut")

    send_with_retries(send, Message("any", 1, 0), 1, 1000, lambda: arrived[0])
    assert max(slept) <= LONGEST * retry.FIRST_RETRY_SECONDS
