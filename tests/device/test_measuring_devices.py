"""Devices with data of their own measure the model of tested rounds, where the server has no test samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.federation import RoundRecord, build_experiment
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.methods import Downlink, TrainingMetrics, Upload
from fedml_dapper.platform.device_rounds import TOO_LATE, DevicePhase
from fedml_dapper.secure_grpc import AnyMessage, Message

from ..platform.processes import Silos
from .conftest import NUM_DEVICES, Devices
from .test_desk import desk_of, ordered
from .trial import COME_BACK_S, TIMEOUT_S, Trial, kinds

EXPERIMENT = {
    "common_args": {"training_type": "cross_device", "random_seed": 1},
    "data_args": {"dataset": "folder", "partition": "own", "classes": ["a", "b", "c"], "image_size": 16},
    "model_args": {"model": "resnet10", "width": 8, "norm": "standardised"},
    "train_args": {"client_num_in_total": 9, "client_num_per_round": 2, "comm_round": 3, "epochs": 1},
    "comm_args": {"backend": "DAPPER_GRPC", "dapper_grpc": {"server_address": "localhost:1", "certificates": "."}},
    "device_args": {"threads": 1, "using_gpu": False},
    "dapper_args": {
        "method": "fedavg",
        "min_clients_per_round": 2,
        "round_timeout_s": TIMEOUT_S,
        "check_in": {"over_selection": 1.5, "come_back_s": COME_BACK_S},
    },
}


@pytest.fixture
def own() -> Trial:
    """Two of nine devices answer a round, and three are asked."""
    return Trial(build_experiment(Settings.model_validate(EXPERIMENT)))


def answers(there: Trial, task: AnyMessage) -> None:
    """Answer a task with the weights that came with it."""
    downlink, _ = there.codec.decode_downlink(task.get(say.MODEL), "a device")
    assert isinstance(downlink, Downlink)
    metrics = TrainingMetrics(loss=1.0, steps=1, seconds=0.1)
    upload = Upload(downlink.round, downlink.client_id, 20, dict(downlink.weights), metrics, downlink.plan)
    report = Message(say.SEND_UPLOAD, task.get_receiver_id(), 0)
    report.add_params(say.MODEL, there.codec.encode(upload))
    report.add_params(say.TICKET, task.get(say.TICKET))
    assert there.rounds.answer(report.get_sender_id(), report).get(say.REFUSED) is None


def trained(there: Trial, num_test: int = 10) -> None:
    """Train a round, with devices 1 to 3, as far as its model is averaged."""
    for rank in (1, 2, 3):
        there.calls(rank, num_test=num_test)
    for rank in (1, 2):
        task = there.calls(rank, num_test=num_test)
        assert task.get(say.MEASURE) is None
        answers(there, task)
    assert there.turn()


def record_of(there: Trial) -> RoundRecord:
    assert there.server.last_record is not None
    return there.server.last_record


def test_those_that_check_in_measure_and_the_scores_are_their_weighted_mean(own: Trial) -> None:
    trained(own)
    assert own.rounds.phase is DevicePhase.MEASURING
    requests = [own.calls(1, num_test=10), own.calls(5, num_test=30)]
    assert [(request.get_type(), request.get(say.MEASURE)) for request in requests] == [(say.SYNC_MODEL, True)] * 2
    desk = desk_of(own)
    desk.on_turn()
    assert desk.status().state == "measuring"
    assert own.measures(requests[0], 80.0, 10).get(say.REFUSED) is None
    assert not own.turn()  # a round is measured by as many devices as it takes answers
    assert kinds(own.calls(1, num_test=10)) == [say.COME_BACK]
    own.measures(requests[1], 40.0, 30)
    assert own.turn()
    scores = record_of(own).scores
    assert scores is not None
    assert scores.global_accuracy == pytest.approx(50.0)
    assert own.rounds.phase is DevicePhase.WAITING
    assert own.measures(requests[1], 40.0, 30).get(say.REFUSED) == TOO_LATE


def test_no_more_devices_are_asked_to_measure_than_to_train(own: Trial) -> None:
    trained(own)
    said = [own.calls(rank, num_test=10) for rank in (4, 5, 6, 7)]
    assert kinds(*said) == [say.SYNC_MODEL] * 3 + [say.COME_BACK]
    again = own.calls(5, num_test=10)  # it was started again
    assert kinds(again) == [say.SYNC_MODEL]
    assert own.measures(said[1], 50.0, 10).get(say.REFUSED) == TOO_LATE
    assert own.measures(again, 50.0, 10).get(say.REFUSED) is None


def test_who_is_away_is_not_waited_for(own: Trial) -> None:
    trained(own)
    own.measures(own.calls(1, num_test=10), 60.0, 10)
    own.clock.now += 2 * COME_BACK_S - 1
    own.calls(3, num_test=10)  # it is at work on it
    own.clock.now += 2
    assert not own.turn()
    own.clock.now += TIMEOUT_S
    assert own.turn()
    scores = record_of(own).scores
    assert scores is not None
    assert scores.global_accuracy == 60.0


def test_a_measurement_that_is_none_is_refused_and_the_device_is_not_asked_again(own: Trial) -> None:
    trained(own)
    said = own.measures(own.calls(1, num_test=10), 1e9, 10)
    assert "outside 0..100" in said.get(say.REFUSED)
    assert kinds(own.calls(1, num_test=10)) == [say.COME_BACK]


def test_a_device_that_is_evicted_meanwhile_is_not_waited_for(own: Trial) -> None:
    trained(own)
    own.measures(own.calls(1, num_test=10), 60.0, 10)
    own.calls(2, num_test=10)
    own.clock.now += 2 * COME_BACK_S + 1
    assert not own.turn()
    ordered(desk_of(own), "evict", 2)
    assert own.turn()


def test_where_no_device_has_tests_that_is_said_once_and_rounds_go_on(
    own: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        trained(own, num_test=0)
        assert own.rounds.phase is DevicePhase.WAITING
        assert record_of(own).scores is None
    assert [record.message for record in caplog.records if "measured" in record.message] == [
        "nothing is measured: the server has no test samples, and no device that has called holds any; give the server"
        " some by data_args.data_cache_dir, or devices a test part"
    ]


@pytest.mark.long
def test_devices_with_pictures_of_their_own_measure_what_they_train(
    devices: Devices, server: Callable[..., Silos]
) -> None:
    check_in = {"over_selection": 1.0, "come_back_s": 2.0}
    own = {"partition": "own", "data_cache_dir": None, "classes": ["bar", "circle", "cross"]}
    rounds = {"check_in": check_in, "min_clients_per_round": 3}
    devices.write("fedavg", "cross_device", data_args=own, dapper_args=rounds)
    running = server()
    for rank in range(1, NUM_DEVICES + 1):
        domain = "ink" if rank % 2 else "chalk"
        place = (f"silo_args.data_cache_dir=pictures/{domain}", f"silo_args.domain={domain}")
        devices.start(rank, *(word for setting in place for word in ("--set", setting)))
    assert running.wait(0, 200) == 0, running.output(0)
    for rank, process in devices.processes.items():
        assert process.wait(60) == 0, devices.output(rank)
    scores = [json.loads(line)["scores"] for line in ledger(running.run_dir)]
    assert [sorted(score["domain_accuracy"]) for score in scores] == [["chalk", "ink"]] * 2


def ledger(run_dir: Path) -> list[str]:
    return (run_dir / "ledger.jsonl").read_text().splitlines()[1:]
