"""Pauses before another call grow, end, and differ from caller to caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import MayCallArgs, SecureGrpcConfig, Settings
from fedml_dapper.config.silo_args import SiloArgs
from fedml_dapper.device import retry
from fedml_dapper.device.calling import CallingDevice
from fedml_dapper.device.keeping import NothingKept
from fedml_dapper.device.retry import UnreachableError, send_with_retries
from fedml_dapper.federation import Agreement, ClientSide, Codec, build_experiment
from fedml_dapper.secure_grpc import Backoff, Message
from fedml_dapper.secure_grpc.backoff import LONGEST, SHORTEST

from .answering import caller


def test_pauses_double_up_to_the_last_and_begin_anew() -> None:
    backoff = Backoff(1.0, 5.0)
    for about in (1, 2, 4, 5, 5):
        assert SHORTEST * about <= backoff.pause() <= LONGEST * about
    backoff.begin_anew()
    assert backoff.pause() <= LONGEST


def test_pauses_since_the_last_answer_are_added_up() -> None:
    backoff = Backoff(1.0, 5.0)
    assert backoff.waited_s == 0
    assert sum(backoff.pause() for _ in range(4)) == pytest.approx(backoff.waited_s)
    backoff.begin_anew()
    assert backoff.waited_s == 0


def test_a_device_that_no_server_answers_gives_up_in_one_line_whenever_it_may_call(
    config: SecureGrpcConfig, tiny_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    every_second_time = f"bash -c 'test -e {mark} && rm {mark} || (touch {mark}; false)'"
    may_call = MayCallArgs(command=every_second_time, ask_again_s=1e6, give_up_after_s=3600)
    settings = tiny_settings("method=fedavg").model_copy(update={"silo_args": SiloArgs(may_call=may_call)})
    experiment = build_experiment(settings)
    codec = Codec(experiment.method.problem.layout, Agreement.of(experiment))
    slept: list[float] = []
    device = CallingDevice(experiment, ClientSide(experiment), codec, 1, caller(config, 1), NothingKept(), slept.append)
    with pytest.raises(UnreachableError) as caught:
        device.run()
    begin, _, end = str(caught.value).partition(" (")
    assert end.endswith("), and this device gives up; if the run is not over yet, start it again")
    assert "\n" not in end
    pauses = [seconds for seconds in slept if seconds != 1e6]
    assert begin == f"no server at {config.server_address} for {sum(pauses):.0f} s of calling"
    assert sum(pauses[:-1]) < 3600 <= sum(pauses)
    assert len(slept) == 2 * len(pauses) + 1  # and once more, before the call that was the last


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


def test_a_message_that_comes_further_is_not_given_up_and_one_that_stops_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    arrived = 0

    def send(message: Message) -> None:
        nonlocal now, arrived
        now += 30
        arrived += 1000 if now < 3000 else 0
        raise OSError("the line is cut")

    monkeypatch.setattr(retry.time, "monotonic", lambda: now)
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: None)
    with pytest.raises(UnreachableError) as caught:
        send_with_retries(send, Message("any", 3, 0), 3, 600, lambda: arrived)
    assert 3570 <= now <= 3600
    assert str(caught.value) == (
        "the server has 99000 bytes of a message of rank 3, and no more came in 600 s: the line is cut"
    )
