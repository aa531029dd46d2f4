"""Devices that come and go: who is asked, when a round opens and closes, and what a call is answered."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from fedml_dapper.cli import main
from fedml_dapper.config import CheckInArgs, DefenceArgs, MayCallArgs, load_settings
from fedml_dapper.device.calling import MOST_SECONDS, _seconds_in
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, RoundRecord, Server, build_experiment, simulate
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.methods import Upload
from fedml_dapper.operations.orders import Order
from fedml_dapper.platform.device_lives import LIVES_KEPT
from fedml_dapper.platform.device_rounds import FAREWELL_SECONDS, STARTED_TWICE, TOO_LATE, DevicePhase
from fedml_dapper.secure_grpc import Message

from ..platform.processes import Silos
from ..waiting import wait_until
from .conftest import NUM_DEVICES, Devices
from .trial import COME_BACK_S, TIMEOUT_S, Trial, kinds


def test_a_round_opens_when_enough_are_there_and_asks_more_than_have_to_answer(trial: Callable[..., Trial]) -> None:
    there = trial()
    waiting = [there.calls(rank) for rank in range(1, 6)]
    assert kinds(*waiting) == [say.COME_BACK] * 5
    assert waiting[0].get(say.COME_BACK) == COME_BACK_S
    there.calls(6)
    assert there.rounds.phase is DevicePhase.TRAINING
    asked = there.server.round_clients()
    assert list(asked) == [0, 1, 2, 3, 4, 5]  # 1.5 times four
    assert kinds(there.calls(7)) == [say.COME_BACK]
    tasks = [there.calls(rank) for rank in range(1, 7)]
    assert kinds(*tasks) == [say.SYNC_MODEL] * 6
    answers = [there.reports(task) for task in tasks[:4]]
    assert [answer.get(say.REFUSED) for answer in answers] == [None] * 4
    assert there.turn()
    assert there.server.last_record is not None
    assert [client.client for client in there.server.last_record.clients] == [0, 1, 2, 3]
    assert there.server.last_record.absent == (4, 5)
    late = there.reports(tasks[4])
    assert late.get(say.REFUSED) == TOO_LATE


def test_those_that_have_gone_are_not_asked_and_few_are_enough_after_a_while(trial: Callable[..., Trial]) -> None:
    there = trial()
    for rank in (1, 2, 3):
        there.calls(rank)
    there.clock.now += 2 * COME_BACK_S + 1
    there.calls(8)
    assert there.rounds.phase is DevicePhase.WAITING  # the three are gone, and one is less than min_clients_per_round
    there.calls(9)
    assert there.rounds.phase is DevicePhase.TRAINING
    assert list(there.server.round_clients()) == [7, 8]


def test_a_round_that_too_few_answer_in_time_changes_nothing(trial: Callable[..., Trial]) -> None:
    there = trial()
    for rank in range(1, 7):
        there.calls(rank)
    before = {name: tensor.clone() for name, tensor in there.server.state.weights.items()}
    there.reports(there.calls(2))
    assert not there.turn()
    there.clock.now += TIMEOUT_S
    assert there.turn()
    record = there.server.last_record
    assert record is not None
    assert record.rolled_back == "1 of the 2 uploads that min_clients_per_round asks for came in time"
    assert all(before[name].equal(there.server.state.weights[name]) for name in before)


def test_a_device_that_calls_again_begins_anew_and_a_report_that_was_not_heard_counts_once(
    trial: Callable[..., Trial],
) -> None:
    there = trial()
    for rank in range(1, 7):
        there.calls(rank)
    first = there.calls(3)
    second = there.calls(3)
    assert there.reports(first).get(say.REFUSED) == TOO_LATE
    assert there.reports(second).get(say.REFUSED) is None
    assert there.reports(second).get(say.REFUSED) is None
    assert there.server.answered() == {2}
    assert kinds(there.calls(3)) == [say.COME_BACK]


def test_of_a_device_that_is_started_twice_the_later_process_goes_on(
    trial: Callable[..., Trial], caplog: pytest.LogCaptureFixture
) -> None:
    there = trial()
    for rank in range(1, 7):
        there.calls(rank)
    first = there.calls(3, "the first")
    second = there.calls(3, "the second")
    assert there.reports(first).get(say.REFUSED) == TOO_LATE
    told = there.calls(3, "the first")
    assert kinds(told) == [say.REFUSED]
    assert told.get(say.REFUSED) == STARTED_TWICE
    assert told.get(say.LIFE) == "the first"  # the other does not take it for itself
    assert [record.message for record in caplog.records if "twice" in record.message] == [
        "device 3 runs twice; the process that was started first is told to end"
    ]
    assert there.reports(second).get(say.REFUSED) is None
    assert there.server.answered() == {2}
    assert kinds(there.calls(3, "the second")) == [say.COME_BACK]


def test_a_device_that_is_started_again_is_not_told_to_end(trial: Callable[..., Trial]) -> None:
    there = trial()
    lives = [f"life {number}" for number in range(3 * LIVES_KEPT)]
    assert kinds(*(there.calls(3, life) for life in lives)) == [say.COME_BACK] * len(lives)
    assert kinds(there.calls(3, lives[-2])) == [say.REFUSED]


def test_no_device_answers_for_another(trial: Callable[..., Trial]) -> None:
    there = trial()
    for rank in range(1, 7):
        there.calls(rank)
    task = there.calls(3)
    mine = there.calls(4)
    assert there.reports(task, ticket=mine.get(say.TICKET), rank=4).get(say.REFUSED) == (
        "it speaks for client 2, which is another device"
    )
    with pytest.raises(ProtocolError, match="a device sends no message of type 'what'"):
        there.rounds.answer(3, Message("what", 3, 0))


def test_those_that_are_left_out_take_nobody_s_place(trial: Callable[..., Trial]) -> None:
    there = trial("client_num_per_round=2")
    for client_id in (0, 1, 2):
        there.server.evict(client_id)
        there.server.checked_in.note(client_id)  # type: ignore[union-attr]
    for rank in (4, 5, 6):
        there.calls(rank)
    assert list(there.server.round_clients()) == [3, 4, 5]


def test_devices_that_a_method_leaves_out_open_no_round(trial: Callable[..., Trial]) -> None:
    there = trial("method=fedavg_strong", "ratios=[0,0.8]", "assignment=[1,2,2,2,1,2,1,1,1,1]")
    for rank in (1, 2, 3, 4):
        there.calls(rank)
    there.clock.now += COME_BACK_S + 1
    there.calls(1)
    assert there.rounds.phase is DevicePhase.WAITING
    assert there.rounds.lacks() == (
        "1 of the 2 devices that min_clients_per_round asks for are there,"
        " and 3 that call have a level that is not trained"
    )
    there.calls(5)
    assert there.rounds.phase is DevicePhase.TRAINING
    assert list(there.server.round_clients()) == [0, 4]


def test_a_round_without_a_model_has_no_verdicts_of_the_one_before(trial: Callable[..., Trial]) -> None:
    there = trial(defence=DefenceArgs(aggregation="screened_mean"))
    tasks = there.all_call(1, 2, 3, 4, 5, 6)
    for rank in (1, 2, 3, 4):
        there.reports(tasks[rank])
    assert all(client.counted is not None for client in there.closed().clients)
    there.reports(there.all_call(1, 2, 3, 4, 5, 6)[1])
    there.clock.now += TIMEOUT_S
    record = there.closed()
    assert record.rolled_back is not None
    assert [(client.client, client.counted) for client in record.clients] == [(0, None)]


def test_bad_uploads_do_not_use_up_a_run_s_rounds(trial: Callable[..., Trial]) -> None:
    there = trial()
    for rank in range(1, 7):
        there.calls(rank)
    for rank in range(1, 7):
        there.reports(there.calls(rank), payload=b"nonsense")
    assert len(there.server.refused) == 6
    assert not there.turn()
    there.clock.now += TIMEOUT_S
    assert there.turn()
    assert there.server.state.round == 1


def test_an_upload_that_was_refused_is_not_decoded_again(
    trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trial()
    task = there.all_call(1, 2, 3, 4, 5, 6)[3]
    assert there.rounds.not_awaited(3) is None
    decoded: list[bytes] = []
    decode = there.rounds._codec.decode

    def counting(data: bytes) -> object:
        decoded.append(data)
        return decode(data)

    monkeypatch.setattr(there.rounds._codec, "decode", counting)
    reasons = {there.reports(task, payload=b"nonsense").get(say.REFUSED) for _ in range(3)}
    assert len(decoded) == 1
    assert reasons == {there.server.refused[2]}  # said again to a device that did not hear it
    assert there.rounds.not_awaited(3) == there.server.refused[2]  # so no byte of it is read either
    assert not there.rounds.is_at_work(2)


def test_a_round_goes_on_without_devices_that_may_no_longer_call(trial: Callable[..., Trial]) -> None:
    there = trial()
    tasks = there.all_call(1, 2, 3, 4, 5, 6)
    for rank in (1, 2):
        there.reports(tasks[rank])
    for rank in (2, 3, 4, 5):
        there.rounds.cut_off(rank)
    assert there.server.awaited() == {5}
    assert not any(there.rounds.is_at_work(client_id) for client_id in (2, 3, 4))
    assert there.server.checked_in is not None
    assert there.server.checked_in.present() == {0, 5}
    assert there.reports(tasks[3]).get(say.REFUSED) == TOO_LATE
    assert not there.turn()
    there.rounds.cut_off(6)
    assert [client.client for client in there.closed().clients] == [0, 1]  # what came before counts


def test_a_device_that_is_cut_off_while_a_round_closes_is_let_go_afterwards(trial: Callable[..., Trial]) -> None:
    there = trial(buffer_size=2)
    tasks = there.all_call(1, 2, 3, 4, 5, 6)
    for rank in (1, 2):
        there.reports(tasks[rank])
    assert there.rounds.begin_closing()
    there.rounds.cut_off(3)
    assert 2 in there.server.awaited()  # another thread reads what would change
    there.rounds.close()
    assert 2 in there.server.at_work
    there.rounds.on_turn()
    assert 2 not in there.server.at_work
    assert 3 in there.server.at_work


def test_devices_are_told_when_the_run_is_over(trial: Callable[..., Trial]) -> None:
    there = trial("comm_round=1")
    for rank in range(1, 7):
        there.calls(rank)
    for rank in range(1, 5):
        there.reports(there.calls(rank))
    assert there.turn()
    assert there.rounds.phase is DevicePhase.OVER
    assert not there.rounds.all_told()
    assert kinds(*(there.calls(rank) for rank in range(1, 7))) == [say.FINISH] * 6
    assert there.rounds.all_told()


def buffered(trial: Callable[..., Trial], *overrides: str) -> Trial:
    """Five devices at work at a time, three of whose uploads close a round."""
    check_in = CheckInArgs(over_selection=1.25, come_back_s=COME_BACK_S)
    return trial("comm_round=9", *overrides, buffer_size=3, check_in=check_in)


def test_a_round_closes_with_the_first_uploads_and_the_others_count_when_they_arrive(
    trial: Callable[..., Trial],
) -> None:
    there = buffered(trial)
    tasks = there.all_call(1, 2, 3, 4, 5)
    for rank in (1, 3, 5):
        there.reports(tasks[rank])
    record = there.closed()
    assert (record.at_work, [client.client for client in record.clients]) == ({1: 1, 3: 1}, [0, 2, 4])
    again = there.all_call(1, 3, 5)
    assert list(there.server.round_clients()) == [0, 2, 4]  # five are at work again, two of them since round 1
    for rank in (2, 4):
        assert there.reports(tasks[rank]).get(say.REFUSED) is None
    there.reports(again[1])
    record = there.closed()
    assert {client.client: client.begun for client in record.clients} == {0: None, 1: 1, 3: 1}
    assert record.at_work == {2: 2, 4: 2}


def test_late_uploads_of_devices_count_as_those_of_silos(trial: Callable[..., Trial]) -> None:
    there = buffered(trial, "client_num_per_round=4")
    tasks = there.all_call(1, 2, 3, 4, 5)
    for rank in (5, 2, 1):
        there.reports(tasks[rank])
    there.closed()
    again = there.all_call(1, 2, 5)
    for task in (tasks[3], again[5], again[2]):
        there.reports(task)
    there.closed()
    silos = Server(there.experiment)
    assert silos.checked_in is not None
    for client_id in range(5):
        silos.checked_in.note(client_id)
    clients = ClientSide(there.experiment)
    begun: dict[int, Upload] = {}
    for arrivals in ((0, 1, 4), (1, 2, 4)):
        for client_id in silos.round_clients():
            downlink = silos.downlink(client_id)
            begun[client_id] = clients.update(downlink, there.experiment.data_of(client_id))
        for client_id in arrivals:
            silos.receive(begun[client_id])
        silos.close_round()
    weights = there.server.state.weights
    assert all(weights[name].equal(tensor) for name, tensor in silos.state.weights.items())


def test_what_arrives_between_two_rounds_counts_in_the_next(trial: Callable[..., Trial]) -> None:
    there = buffered(trial)
    tasks = there.all_call(1, 2, 3, 4, 5)
    for rank in (1, 3, 5):
        there.reports(tasks[rank])
    assert there.rounds.begin_closing()
    assert there.reports(tasks[2]).get(say.REFUSED) is None  # while the round is averaged
    there.rounds.close()
    assert there.reports(tasks[4]).get(say.REFUSED) is None  # while none is open
    assert kinds(there.calls(4)) == [say.COME_BACK]  # and is not taken for one that lost its work
    assert there.reports(tasks[1]).get(say.REFUSED) == TOO_LATE  # it has counted, and is said once more
    there.all_call(1, 3, 5)
    assert there.server.answered() == {1, 3}


def test_a_device_at_work_that_calls_has_lost_its_work_and_begins_anew(trial: Callable[..., Trial]) -> None:
    there = buffered(trial)
    tasks = there.all_call(1, 2, 3, 4, 5)
    for rank in (1, 3, 5):
        there.reports(tasks[rank])
    there.closed()
    there.calls(2)
    assert there.server.at_work == {3: 1}
    assert there.reports(tasks[2]).get(say.REFUSED) == TOO_LATE
    there.all_call(1, 3, 5)
    assert 1 in there.server.round_clients()


def test_a_device_that_never_comes_back_is_not_at_work_for_ever(trial: Callable[..., Trial]) -> None:
    there = buffered(trial)
    tasks = there.all_call(1, 2, 3, 4, 5)
    for rank in (1, 3, 5):
        there.reports(tasks[rank])
    there.closed()
    there.clock.now += TIMEOUT_S + 1
    again = there.all_call(1, 3, 5, 6, 7)
    assert there.server.at_work == {}
    assert sorted(again) == [1, 3]  # few are enough after so long
    assert there.reports(tasks[2]).get(say.REFUSED) == TOO_LATE


def test_a_device_that_is_evicted_between_two_rounds_is_not_at_work_for_ever(trial: Callable[..., Trial]) -> None:
    there = buffered(trial)
    tasks = there.all_call(1, 2, 3, 4, 5)
    for rank in (1, 3, 5):
        there.reports(tasks[rank])
    there.closed()
    there.rounds.steering.carry_out(Order(act="evict", silo=2))
    assert there.server.at_work == {3: 1}
    again = there.all_call(1, 3, 5, 6)
    assert list(there.server.round_clients()) == [0, 2, 4, 5]  # another has the place of the one that is gone
    for rank in (1, 3, 5):
        there.reports(again[rank])
    assert there.closed().at_work == {3: 1, 5: 2}


def test_a_device_that_is_evicted_and_let_in_again_takes_part_from_the_next_round_on(
    trial: Callable[..., Trial],
) -> None:
    there = trial()
    tasks = there.all_call(1, 2, 3, 4, 5, 6)
    there.rounds.steering.carry_out(Order(act="evict", silo=2))
    there.rounds.steering.carry_out(Order(act="lift", silo=2))
    assert kinds(there.calls(2, "its next life")) == [say.COME_BACK]
    for rank in (1, 3, 4):
        there.reports(tasks[rank])
    assert not there.turn()
    there.reports(tasks[5])
    there.closed()
    assert kinds(there.calls(2, "its next life")) == [say.SYNC_MODEL]


def test_a_device_at_work_when_the_run_ends_is_waited_for_a_while(trial: Callable[..., Trial]) -> None:
    there = trial("comm_round=1")
    for rank in (6, 5, 4, 3, 2, 1):
        there.calls(rank)
    tasks = {rank: there.calls(rank) for rank in range(1, 6)}  # the sixth does not come for its task
    for rank in range(1, 5):
        there.reports(tasks[rank])
    assert there.turn()
    for rank in range(1, 5):
        there.calls(rank)
    there.clock.now += 2 * COME_BACK_S + 1
    assert not there.rounds.all_told()
    assert there.reports(tasks[5]).get(say.REFUSED) == TOO_LATE
    assert kinds(there.calls(5)) == [say.FINISH]
    assert there.rounds.all_told()


def test_a_device_that_never_comes_back_does_not_keep_a_run_from_ending(trial: Callable[..., Trial]) -> None:
    there = trial("comm_round=1")
    tasks = there.all_call(1, 2, 3, 4, 5, 6)
    for rank in range(1, 5):
        there.reports(tasks[rank])
    assert there.turn()
    there.clock.now += FAREWELL_SECONDS
    assert there.rounds.all_told()


@pytest.mark.parametrize(
    ("hours", "minute", "may"),
    [
        (None, 0, True),
        ("09:00-17:30", 9 * 60, True),
        ("09:00-17:30", 17 * 60 + 30, False),
        ("22:00-06:00", 23 * 60, True),
        ("22:00-06:00", 5 * 60, True),
        ("22:00-06:00", 12 * 60, False),
        ("00:00-24:00", 12 * 60, True),
    ],
)
def test_hours_go_over_midnight(hours: str | None, minute: int, may: bool) -> None:
    assert MayCallArgs(hours=hours).is_open_at(minute) is may


@pytest.mark.parametrize("hours", ["9-17", "25:00-26:00", "22:00", "10:70-11:00", "24:30-24:45"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ValueError, match=r"expected HH:MM-HH:MM, e.g. 22:00-06:30, found"):
        MayCallArgs(hours=hours)


@pytest.mark.parametrize("hours", ["08:00-08:00", "24:00-00:00", "24:00-24:00", "0:00-00:00"])
def test_hours_in_which_nobody_ever_calls_are_refused(hours: str) -> None:
    with pytest.raises(ValueError, match="ends as it begins, and the device would never call"):
        MayCallArgs(hours=hours)


PROGRAM = """
import fedml
from fedml_dapper import platform as dapper

args = dapper.init()
dataset, model = dapper.load(args)
flow = dapper.CrossDeviceServer(args, None, dataset, model, run_dir="run")
fedml.FedMLRunner(args, None, dataset, model, algorithm_flow=flow).run()
"""


@pytest.mark.parametrize(("said", "seconds"), [(5, 5.0), (0.5, 0.5), (1e300, MOST_SECONDS)])
def test_a_server_cannot_send_a_device_away_for_ever(said: float, seconds: float) -> None:
    assert _seconds_in(come_back(said)) == seconds


@pytest.mark.parametrize("said", [None, "soon", -1, True])
def test_no_time_is_no_answer(said: object) -> None:
    with pytest.raises(ProtocolError, match="the server wants to be called again after"):
        _seconds_in(come_back(said))


def come_back(said: object) -> Message:
    answer = Message(say.COME_BACK, 0, 1)
    answer.add_params(say.COME_BACK, said)
    return answer


@pytest.mark.long
def test_what_a_device_cannot_use_is_said_before_it_calls(devices: Devices) -> None:
    devices.write("fedavg", "cross_device")
    missing = ("--set", "silo_args.may_call.command=/no/such --now")
    for command in ("check", "run"):
        told = devices.told(command, "shared.yaml", "--rank", "1", *missing)
        assert (told.returncode, told.stderr.count("\n")) == (2, 1), told.stderr
        assert "silo_args.may_call.command: no program `/no/such` that can be run" in told.stderr
    (devices.folder / "file").touch()
    told = devices.told("run", "shared.yaml", "--rank", "1", "--output", "file/below")
    assert (told.returncode, told.stderr.count("\n")) == (2, 1), told.stderr
    assert "file/below cannot be made: Not a directory; name another by --output" in told.stderr


@pytest.mark.long
def test_devices_at_work_when_a_round_closes_count_in_a_later_one(
    devices: Devices, server: Callable[..., Silos]
) -> None:
    rounds = {"check_in": {"over_selection": 1.0, "come_back_s": 2.0}, "buffer_size": 2, "min_clients_per_round": 2}
    devices.write("fedavg", "cross_device", dapper_args=rounds, train_args={"comm_round": 1000})
    running = server()
    for rank in range(1, NUM_DEVICES + 1):
        devices.start(rank)

    def records() -> list[RoundRecord]:
        ledger = running.run_dir / "ledger.jsonl"
        lines = ledger.read_text().split("\n")[1:-1] if ledger.exists() else []
        return [RoundRecord.model_validate_json(line) for line in lines]

    def begun() -> list[int]:
        return [client.begun for record in records() for client in record.clients if client.begun is not None]

    wait_until(begun, otherwise=lambda: running.output(0))
    end = ["steer", devices.grpc["server_address"], "end", "--certificates", str(devices.folder / "certs")]
    told = CliRunner().invoke(main, end)
    assert told.exit_code == 0, told.output
    assert running.wait(0, 200) == 0, running.output(0)
    for rank, process in devices.processes.items():
        assert process.wait(100) == 0, devices.output(rank)
    assert all(len(record.clients) >= 2 for record in records())


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


@pytest.mark.long
def test_a_device_that_is_started_twice_ends_the_earlier_process_by_one_line(
    devices: Devices, server: Callable[..., Silos]
) -> None:
    check_in = {"over_selection": 1.0, "come_back_s": 2.0}
    devices.write("fedavg", "cross_device", dapper_args={"check_in": check_in, "min_clients_per_round": 3})
    running = server()
    port = int(devices.grpc["server_address"].rpartition(":")[2])
    wait_until(lambda: is_listening(port))
    asked = devices.folder / "asked"
    asked.touch()
    command = f"silo_args.may_call.command=bash -c 'echo >> {asked}'"
    devices.start(1, "--set", command)
    wait_until(lambda: len(asked.read_text()) >= 2)  # so its first call is over
    earlier = devices.processes[1]
    for rank in range(1, NUM_DEVICES + 1):
        devices.start(rank)
    assert running.wait(0, 200) == 0, running.output(0)
    assert earlier.wait(60) == 2
    assert devices.output(1).count(f"dapper-device: the server refuses this silo: {STARTED_TWICE}") == 1
    assert devices.processes[1].wait(60) == 0
    assert "device 1 runs twice; the process that was started first is told to end" in running.output(0)


@pytest.mark.long
def test_a_device_that_is_interrupted_says_how_it_goes_on(devices: Devices) -> None:
    devices.write("fedavg", "cross_device")
    devices.start(1)
    wait_until(lambda: "the server does not answer" in devices.output(1), otherwise=lambda: devices.output(1))
    devices.processes[1].terminate()
    assert devices.processes[1].wait(60) == 130
    last = devices.output(1).splitlines()[-1]
    assert last == "dapper-device: interrupted; the same command goes on with what this device keeps"


@pytest.mark.long
@pytest.mark.parametrize("by", ["command", "program"])
def test_devices_that_call_train_the_bits_of_one_process(
    devices: Devices, server: Callable[..., Silos], by: str
) -> None:
    check_in = {"over_selection": 1.0, "come_back_s": 1.0}
    devices.write("dapperfl", "cross_device", dapper_args={"check_in": check_in, "min_clients_per_round": 3})
    program = devices.folder / "program.py"
    program.write_text(PROGRAM)
    server_process = server(program if by == "program" else None)
    asked = devices.folder / "asked"
    command = f"silo_args.may_call.command=touch {asked}"
    devices.start(1, "--set", command, "--set", "silo_args.may_call.ask_again_s=1")
    for rank in range(2, NUM_DEVICES + 1):
        devices.start(rank)
    assert server_process.wait(0, 200) == 0, server_process.output(0)
    for rank, process in devices.processes.items():
        assert process.wait(300) == 0, devices.output(rank)
        assert "the run is over" in devices.output(rank)
    assert asked.exists()
    simulate(build_experiment(load_settings([devices.folder / "simulation.yaml"])), run_dir=devices.folder / "alone")
    alone = load_file(devices.folder / "alone" / "global_model.safetensors")
    across = load_file(server_process.run_dir / "global_model.safetensors")
    assert all(alone[name].equal(across[name]) for name in alone)


def test_what_does_not_go_with_devices_is_one_line(devices: Devices) -> None:
    devices.write("fedavg", "cross_device")
    with pytest.raises(ConfigError, match=r"cross_device needs comm_args\.backend DAPPER_GRPC"):
        load_settings([devices.folder / "shared.yaml"], ["backend=GRPC"])


def test_devices_at_work_are_waited_for_also_where_the_run_is_ended_long_after_the_last_round(
    trial: Callable[..., Trial],
) -> None:
    there = buffered(trial)
    tasks = there.all_call(1, 2, 3, 4, 5)
    for rank in (1, 3, 5):
        there.reports(tasks[rank])
    there.closed()
    there.rounds.steering.carry_out(Order(act="pause"))
    there.clock.now += 2 * FAREWELL_SECONDS  # the others have not called meanwhile, and are at work
    there.rounds.steering.carry_out(Order(act="end"))
    assert there.rounds.phase is DevicePhase.OVER
    assert not there.rounds.all_told()
    there.clock.now += FAREWELL_SECONDS
    assert there.rounds.all_told()
