"""What an operator sees of a server of devices, and how orders reach it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedml_dapper.cli import main
from fedml_dapper.commands.status import show
from fedml_dapper.config import CheckInArgs, SecureGrpcConfig
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.operations.orders import Act, Order
from fedml_dapper.operations.status import StatusBoard
from fedml_dapper.platform.device_desk import POST_SECONDS, DeviceDesk
from fedml_dapper.platform.device_rounds import LOOK_SECONDS, DevicePhase
from fedml_dapper.platform.device_shortage import FIRST_PAUSE_SECONDS
from fedml_dapper.platform.steering import EVICTED
from fedml_dapper.process.interruption import INTERRUPTED
from fedml_dapper.secure_grpc import Message

from ..platform.processes import Silos
from ..waiting import wait_until
from .conftest import Devices
from .trial import COME_BACK_S, TIMEOUT_S, Trial, kinds


def desk_of(there: Trial) -> DeviceDesk:
    config = SecureGrpcConfig(server_address="localhost:1", certificates=Path("."))
    return DeviceDesk(there.rounds, there.server, config, 2, StatusBoard(), there.clock)


def ordered(desk: DeviceDesk, act: Act, silo: int | None = None) -> str:
    return desk.ask(Order(act=act, silo=silo)).result(0)


def minutes(there: Trial, number: int, turn: Callable[[], None]) -> None:
    for _ in range(number * 60):
        there.clock.now += 1
        turn()


def test_a_report_without_a_model_is_refused_like_any_bad_upload(trial: Callable[..., Trial]) -> None:
    there = trial()
    desk = desk_of(there)
    there.all_call(1, 2, 3, 4, 5, 6)
    report = Message(say.SEND_UPLOAD, 1, 0)
    report.add_params(say.MODEL, 5)
    report.add_params(say.TICKET, there.calls(1).get(say.TICKET))
    assert desk.answer(1, report).get(say.REFUSED) == "expected bytes, got int"


def test_that_nobody_calls_is_said_now_and_then(trial: Callable[..., Trial], caplog: pytest.LogCaptureFixture) -> None:
    there = trial()
    minutes(there, 10, there.rounds.on_turn)
    assert [record.message for record in caplog.records] == [
        "round 1 does not open: no device has called for 1 min",
        "round 1 does not open: no device has called for 3 min",
        "round 1 does not open: no device has called for 7 min",
    ]
    for rank in range(1, 7):
        there.calls(rank)
    assert there.rounds.phase is DevicePhase.TRAINING
    assert there.rounds.lacks() == ""


def test_that_all_are_left_out_is_said_and_one_that_is_let_in_takes_part(
    trial: Callable[..., Trial], caplog: pytest.LogCaptureFixture
) -> None:
    there = trial("client_num_per_round=2", "dapper_args.defence.strikes=1", min_clients_per_round=1)
    desk = desk_of(there)
    for rank in (1, 2, 3):
        there.calls(rank)
    for rank in (1, 2, 3):
        there.reports(there.calls(rank), payload=b"nonsense")
    there.clock.now += TIMEOUT_S
    record = there.closed()
    assert (record.clients, len(record.refused)) == ((), 3)
    for rank in (1, 2, 3):
        there.calls(rank)
    caplog.clear()
    for _ in range(int(FIRST_PAUSE_SECONDS / COME_BACK_S) + 1):
        there.clock.now += COME_BACK_S
        assert kinds(*(there.calls(rank) for rank in (1, 2, 3))) == [say.COME_BACK] * 3
        there.rounds.on_turn()
    lacks = (
        "all 3 devices that call are left out; a quarantine counts rounds, and none passes: let one in by"
        " `fedml-dapper steer HOST lift silo-N`"
    )
    assert [record.message for record in caplog.records] == [f"round 2 does not open: {lacks}"]
    desk.on_turn()
    status = desk.status()
    assert (status.state, status.there, status.lacks, status.refused_uploads) == ("waiting", 3, lacks, 3)
    assert set(status.out) == {"silo-1", "silo-2", "silo-3"}
    ordered(desk, "lift", 2)
    assert there.rounds.lacks() == ""
    there.clock.now += COME_BACK_S
    assert kinds(there.calls(2)) == [say.SYNC_MODEL]
    assert list(there.server.round_clients()) == [1]


def test_who_asks_before_anything_happened_is_told_of_the_run(trial: Callable[..., Trial]) -> None:
    status = desk_of(trial()).status()
    assert (status.state, status.rounds, status.there) == ("waiting", 2, 0)
    assert status.lacks == "no device has called for 0 min"


def test_a_round_opens_for_those_that_are_there_though_none_calls_just_then(trial: Callable[..., Trial]) -> None:
    there = trial()
    for rank in (1, 2, 3):
        there.calls(rank)
    there.clock.now += COME_BACK_S + LOOK_SECONDS
    there.rounds.on_turn()
    assert list(there.server.round_clients()) == [0, 1, 2]


def test_the_status_shows_the_open_round(trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]) -> None:
    there = trial()
    desk = desk_of(there)
    there.rounds, rounds = desk, there.rounds  # type: ignore[assignment]  # devices call the desk
    for rank in range(1, 7):
        there.calls(rank)
    tasks = [there.calls(rank) for rank in (1, 2, 3)]
    there.reports(tasks[0])
    there.reports(tasks[1], payload=b"nonsense")
    there.clock.now += POST_SECONDS
    desk.on_turn()
    status = desk.status()
    assert (status.state, status.round, status.rounds, status.there) == ("round", 1, 2, 6)
    assert {one.name: one.standing for one in status.callers} == {
        "silo-1": "answered", "silo-2": "upload refused", "silo-3": "at work",
        "silo-4": "asked", "silo-5": "asked", "silo-6": "at work",
    }  # fmt: skip
    first, second, *_ = status.callers
    assert min(first.bytes_in, first.bytes_out) > 1000
    assert second.refused_calls == 1
    assert (first.heard_s, status.refused_uploads) == (POST_SECONDS, 1)
    show(status)
    assert "6 devices have called lately" in capsys.readouterr().out
    assert rounds.phase is DevicePhase.TRAINING


def test_an_operator_pauses_evicts_and_ends(trial: Callable[..., Trial]) -> None:
    there = trial()
    desk = desk_of(there)
    assert ordered(desk, "pause") == "no round is opened any more until it is resumed; 0 are closed"
    for rank in range(1, 8):
        there.calls(rank)
    assert there.rounds.phase is DevicePhase.WAITING
    assert desk.status().state == "paused"
    ordered(desk, "resume")
    there.clock.now += LOOK_SECONDS
    there.rounds.on_turn()
    assert there.rounds.phase is DevicePhase.TRAINING
    evicted = next(iter(there.server.round_clients())) + 1
    task = there.calls(evicted)
    ordered(desk, "evict", evicted)
    assert there.reports(task).get(say.REFUSED) is not None
    told = there.calls(evicted)
    assert (kinds(told), told.get(say.REFUSED)) == ([say.REFUSED], EVICTED)
    with pytest.raises(ConfigError, match="there is no silo of rank 99"):
        ordered(desk, "evict", 99)
    for client_id in list(there.server.round_clients()):
        if client_id + 1 != evicted:
            there.reports(there.calls(client_id + 1))
    ordered(desk, "end")
    assert there.closed().round == 1
    assert there.rounds.phase is DevicePhase.OVER


def test_a_round_does_not_wait_for_a_device_that_was_evicted(trial: Callable[..., Trial]) -> None:
    there = trial(check_in=CheckInArgs(over_selection=1, come_back_s=COME_BACK_S))
    tasks = there.all_call(1, 2, 3, 4)
    for rank in (1, 2, 3):
        there.reports(tasks[rank])
    assert not there.turn()
    ordered(desk_of(there), "evict", 4)
    assert there.closed().absent == (3,)


def test_an_order_that_comes_while_a_round_closes_is_carried_out_after_it(trial: Callable[..., Trial]) -> None:
    there = trial()
    desk = desk_of(there)
    tasks = there.all_call(1, 2, 3, 4, 5, 6)
    for rank in (1, 2, 3, 4):
        there.reports(tasks[rank])
    assert there.rounds.begin_closing()
    future = desk.ask(Order(act="pause"))
    desk.on_turn()
    assert not future.done()
    there.rounds.close()
    desk.on_turn()
    assert future.result(0) == "no round is opened any more until it is resumed; 1 are closed"


@pytest.mark.long
def test_an_operator_sees_what_is_lacking_and_ends_a_server_that_nobody_calls(
    devices: Devices, server: Callable[..., Silos]
) -> None:
    devices.write("fedavg", "cross_device")
    running = server()
    host = devices.grpc["server_address"]
    certificates = str(devices.folder / "certs")

    def asked(*words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--certificates", certificates])

    wait_until(lambda: asked("status", host).exit_code == 0, otherwise=lambda: running.output(0))
    told = asked("status", host).stdout
    assert "round 0 of 2: waiting" in told
    assert "0 devices have called lately" in told
    assert "no round opens: no device has called for 0 min" in told
    assert "the run ends; 0 are closed" in asked("steer", host, "end").stdout
    assert running.wait(0, 60) == INTERRUPTED, running.output(0)
    assert "Stopped before the first round was finished" in running.output(0)
