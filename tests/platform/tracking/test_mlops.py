from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import RunRecord, build_experiment, metrics_of, simulate

tracking = pytest.importorskip("fedml_dapper.platform.tracking", reason="fedml is not installed")
fedml = pytest.importorskip("fedml")
core_mlops = pytest.importorskip("fedml.core.mlops")

SettingsFactory = Callable[..., Settings]


class Messenger:
    """Stands where FedML's MQTT connection is; everything above it is FedML's own code."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.works = True

    def send_message_json(self, topic: str, payload: str) -> None:
        if not self.works:
            raise ConnectionError("broker gone")
        self.messages.append((topic, json.loads(payload)))


@pytest.fixture
def messenger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Messenger]:
    monkeypatch.setenv("HOME", str(tmp_path))  # FedML keeps a small database of jobs there
    args = Namespace(using_mlops=True, run_id="17", rank=0, role="server", server_id=3)
    messenger, metrics = Messenger(), core_mlops.MLOpsMetrics()
    monkeypatch.setattr(metrics, "messenger", messenger)
    event = core_mlops.MLOpsProfilerEvent(args)
    event.set_messenger(messenger, args)
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_args", args)
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_log_mqtt_mgr", messenger)
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_metrics", metrics)
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_event", event)
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_log_metrics_lock", None)
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_bind_result", True)
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_run_id", "17")
    monkeypatch.setattr(core_mlops.MLOpsStore, "mlops_edge_id", 3)
    yield messenger
    event.set_messenger(None)


@pytest.mark.long
def test_metrics_events_and_rounds_reach_fedmls_topics(
    messenger: Messenger, tiny_settings: SettingsFactory, tmp_path: Any
) -> None:
    settings = tiny_settings("epochs=1", "using_mlops=true")
    training_type, seed = fedml._global_training_type, torch.initial_seed()
    _, rounds = simulate(build_experiment(settings), tracking.sinks_for(settings, tmp_path))
    assert (fedml._global_training_type, torch.initial_seed()) == (training_type, seed)  # not initialised again
    sent: dict[str, list[dict[str, Any]]] = {}
    for topic, message in messenger.messages:
        sent.setdefault(topic, []).append(message)
    assert [(info["round_index"], info["total_rounds"]) for info in sent["fl_server/mlops/training_roundx"]] == [
        (-1, 2), (0, 2), (1, 2)
    ]  # fmt: skip
    events = [(event["event_name"], event["event_value"], "started_time" in event) for event in sent["mlops/events"]]
    assert list(dict.fromkeys(events)) == [  # FedML sends the end of an event twice
        (name, round_index, started)
        for round_index in ("0", "1")
        for name in ("train", "server.agg_and_eval")
        for started in (True, False)
    ]
    for record, message in zip(rounds, sent["fedml_slave/fedml_master/metrics/17"], strict=True):
        expected = {name.replace("/", "-"): value for name, value in metrics_of(record).items()}
        assert expected.items() <= message.items()
        assert message["round"] == record.round
        assert set(message["y_axis_keys"]) == expected.keys()


def server_statuses(messenger: Messenger) -> list[str]:
    return [message["status"] for topic, message in messenger.messages if topic.startswith("fl_server/flserver_agent")]


@pytest.mark.nightly
def test_the_platform_hears_how_a_run_ended(
    messenger: Messenger, tiny_settings: SettingsFactory, tmp_path: Any, run_record: RunRecord
) -> None:
    settings = tiny_settings("epochs=1", "using_mlops=true")
    simulate(build_experiment(settings), tracking.sinks_for(settings, tmp_path))
    assert server_statuses(messenger) == ["RUNNING", "FINISHED"]
    messenger.messages.clear()
    [sink] = tracking.sinks_for(settings, tmp_path)
    sink.run_started(run_record)
    sink.run_finished()  # no round was closed
    assert server_statuses(messenger) == ["RUNNING", "FAILED"]


def test_the_platform_hears_how_a_client_ended(messenger: Messenger, caplog: pytest.LogCaptureFixture) -> None:
    args = core_mlops.MLOpsStore.mlops_args
    args.rank, args.client_id, args.run_device_id = 1, 1, "41"  # the transport's id, and the dashboard's
    with tracking.reporting_client_status():
        pass
    with pytest.raises(ValueError, match="client broke"), tracking.reporting_client_status():
        raise ValueError("client broke")
    told = [(topic, message["status"]) for topic, message in messenger.messages]
    assert told == [("fl_client/flclient_agent_41/status", status) for status in ("FINISHED", "FAILED")]
    assert args.client_id == 1
    messenger.works = False
    with tracking.reporting_client_status():
        pass
    assert "was not told how this client ended (ConnectionError: broker gone)" in caplog.text


@pytest.mark.nightly
def test_a_lost_platform_is_reported_once_and_never_called_again(
    messenger: Messenger, run_record: RunRecord, tiny_settings: SettingsFactory, tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    settings = tiny_settings("epochs=1", "using_mlops=true")
    [sink] = tracking.sinks_for(settings, tmp_path)
    sink.run_started(run_record)
    messenger.works = False
    _, [record, _] = simulate(build_experiment(settings), [])
    for _ in range(2):
        sink.round_finished(record)
    assert len(caplog.messages) == 1
    assert "FedML MLOps failed at the end of round 1 (ConnectionError: broker gone)" in caplog.messages[0]
    assert core_mlops.MLOpsStore.mlops_args.using_mlops is False
    fedml.mlops.log({"round_idx": 1})  # as FedML's own managers do: must not wait for the lock of the failed call


@pytest.mark.nightly
def test_without_a_platform_the_run_goes_on_to_its_end(tracked_run: Callable[..., Any]) -> None:
    run = tracked_run("using_mlops=true")
    assert len(run.rounds) == 2
    assert run.output.count("tracking with FedML MLOps failed") == 1
    assert "FedML's platform gave no addresses" in run.output
