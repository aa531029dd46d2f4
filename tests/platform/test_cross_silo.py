"""Cross-silo runs over gRPC and MQTT: partial participation, death, refusal, lateness. Where a process can do what a
thread cannot, real processes; else threads of this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.client.message_define import MyMessage

from fedml_dapper.commands.fedml import main
from fedml_dapper.config import Settings
from fedml_dapper.federation import read_ledger
from fedml_dapper.platform import DapperClientTrainer
from fedml_dapper.platform.transports import GrpcTransport

from ..waiting import wait_until
from .federation_in_threads import Federation
from .processes import ROOT, Silos, fedml_grpc, mqtt_services, needs_broker, objects_left, put_into
from .slow_silo import AT_WORK, busy_program
from .timeless_server import let_time_pass, timeless_program, wait_for_all_but

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]
NUM_SILOS = 4


def experiment_file(tiny_settings: SettingsFactory, folder: Path, *overrides: str) -> Path:
    """A tiny experiment on four silos over gRPC, levels from the shipped silo files."""
    of_four = (f"client_num_in_total={NUM_SILOS}", f"client_num_per_round={NUM_SILOS}")
    content = yaml.safe_load(tiny_settings(*of_four, *overrides).as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["comm_args"] = fedml_grpc(folder, NUM_SILOS)
    silos = [str(ROOT / "config" / "silos" / f"silo_{rank}.yaml") for rank in range(1, NUM_SILOS + 1)]
    content["client_specific_args"] = {"data_silo_config": silos}
    content["device_args"]["threads"] = 1
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Silos]]:
    running: list[Silos] = []

    def build(config: Path, overrides: tuple[str, ...] = (), cold: tuple[int, ...] = ()) -> Silos:
        running.append(Silos(tmp_path, config, NUM_SILOS, overrides, cold))
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def check_partial_participation(run_dir: Path) -> None:
    run, rounds = read_ledger(run_dir / "ledger.jsonl")
    assert len(rounds) == 4
    taking_part = [[client.client for client in record.clients] for record in rounds]
    assert all(len(ids) == 2 for ids in taking_part)
    assert any(0 in ids for ids in taking_part)  # FedML takes index 0 for "none"
    assert all(not record.absent for record in rounds)
    assert [client.level for client in run.clients] == [1, 2, 3, 4]  # from the silo files


def test_two_of_four(tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads) -> None:
    config = experiment_file(tiny_settings, tmp_path, "client_num_per_round=2", "comm_round=4", "epochs=1")
    federation = in_threads(config, NUM_SILOS)
    federation.start_all()
    federation.wait()
    check_partial_participation(federation.run_dir)


@pytest.mark.long
def test_two_of_four_in_processes_over_grpc(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "client_num_per_round=2", "comm_round=4", "epochs=1")
    silos = started(config, cold=(0,))
    silos.start_all()
    for rank in range(NUM_SILOS + 1):
        assert silos.wait(rank) == 0, silos.output(rank)
    check_partial_participation(silos.run_dir)
    assert "cannot be reached" not in silos.output(0)  # those that were not up yet are waited for
    for rank in (0, 1):
        assert silos.output(rank).count("whoever can reach it, or the broker, can run code here") == 1


def over_mqtt(config: Path) -> None:
    content = yaml.safe_load(config.read_text())
    content["comm_args"] = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())["comm_args"]
    config.write_text(yaml.safe_dump(content))


@needs_broker
@pytest.mark.long
def test_two_of_four_in_processes_over_mqtt_and_nothing_stays_in_the_store(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "client_num_per_round=2", "comm_round=4", "epochs=1")
    over_mqtt(config)
    with mqtt_services(tmp_path) as addresses:
        silos = started(config, tuple(addresses))
        silos.start_all()
        for rank in range(NUM_SILOS + 1):
            assert silos.wait(rank) == 0, silos.output(rank)
        check_partial_participation(silos.run_dir)
        assert objects_left(addresses) == 0


@pytest.mark.long
@pytest.mark.parametrize("transport", ["grpc", pytest.param("mqtt", marks=needs_broker)])
def test_a_killed_client_does_not_stop_the_run(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos], transport: str
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "comm_round=3", "epochs=1")
    with ExitStack() as services:
        if transport == "mqtt":
            over_mqtt(config)
            addresses = services.enter_context(mqtt_services(tmp_path))
            put_into(config, addresses)
        silos = started(config)
        programs = {0: timeless_program(tmp_path), 3: busy_program(tmp_path)}
        for rank in range(NUM_SILOS + 1):
            silos.start(rank, program=programs.get(rank))
        silos.wait_for_words(AT_WORK, rank=3)
        silos.kill(3)
        assert wait_for_all_but(silos, 3)
        let_time_pass(silos.processes[0])  # over gRPC once, and not for each message
        if transport == "mqtt":  # which takes messages for one that is gone
            assert wait_for_all_but(silos, 3)
            let_time_pass(silos.processes[0])
        assert silos.wait(0) == 0, silos.output(0)
    rounds = silos.rounds()
    assert [record.absent for record in rounds] == [(), (2,), (2,)]
    assert all({client.client for client in record.clients} == {0, 1, 3} for record in rounds[1:])
    assert "without clients [2]" in silos.output(0)
    if transport == "grpc":
        assert "rank 3 cannot be reached" in silos.output(0)


@pytest.mark.long
def test_a_silo_that_could_not_be_reached_once_takes_part_again_and_is_told_of_the_end(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    models = 0
    deliver = GrpcTransport.send_message

    def refused_once(transport: GrpcTransport, message: Message) -> None:
        nonlocal models
        if message.get_type() == MyMessage.MSG_TYPE_S2C_SYNC_MODEL_TO_CLIENT and message.get_receiver_id() == 3:
            models += 1
            if models == 2:
                raise ConnectionRefusedError("its machine is busy")
        deliver(transport, message)

    monkeypatch.setattr(GrpcTransport, "send_message", refused_once)
    config = experiment_file(tiny_settings, tmp_path, "comm_round=4", "epochs=1")
    federation = in_threads(config, NUM_SILOS)
    federation.start_all()
    federation.wait()  # the silo too, which waits for no more than the end
    _, rounds = read_ledger(federation.run_dir / "ledger.jsonl")
    assert models > 2
    assert {client.client for client in rounds[3].clients} == {0, 1, 2, 3}


@pytest.mark.nightly
def test_a_finished_run_started_again_ends_without_its_silos(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "comm_round=1", "epochs=1")  # silos are waited for up to an hour
    federation = in_threads(config, NUM_SILOS)
    federation.start_all()
    federation.wait()
    before = (federation.run_dir / "ledger.jsonl").read_bytes()
    for back in (0, 2):
        federation.start(back)
    federation.wait(0, 2)
    assert (federation.run_dir / "ledger.jsonl").read_bytes() == before


@pytest.mark.nightly
def test_a_late_upload_is_dropped_and_its_client_comes_back(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    dropped = "rank 3: an upload that does not answer what it was sent last, dropped"

    class Slow(DapperClientTrainer):
        def train(self, train_data: Any, device: Any, args: Any) -> None:
            super().train(train_data, device, args)
            if args.rank == 3 and args.round_idx == 1:
                federation.wait_for_round(3)  # the second, and the next without it too
            elif args.rank == 4 and args.round_idx == 4:  # so that rounds are left to take it in again
                wait_until(lambda: dropped in caplog.text)

    federation = in_threads(experiment_file(tiny_settings, tmp_path, "comm_round=8", "epochs=1"), NUM_SILOS)
    for rank in range(NUM_SILOS + 1):
        federation.start(rank, trainer=Slow)
    federation.wait_for_round(1)  # in which rank 3 may be the last to answer too
    federation.wait_for_all_but(3)
    assert len(federation.rounds()) == 1
    federation.let_time_pass()
    federation.wait()
    absent = [record.absent for record in federation.rounds()]
    assert absent[:3] == [(), (2,), (2,)]
    assert dropped in caplog.text
    assert absent[-1] == ()  # waited for again


@pytest.mark.long
def test_an_upload_that_comes_after_the_last_round_is_dropped_and_blames_nobody(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    class Slow(DapperClientTrainer):
        def train(self, train_data: Any, device: Any, args: Any) -> None:
            super().train(train_data, device, args)
            if args.rank == 3:
                federation.wait_for_round(1)

    federation = in_threads(experiment_file(tiny_settings, tmp_path, "comm_round=1", "epochs=1"), NUM_SILOS)
    for rank in range(NUM_SILOS + 1):
        federation.start(rank, trainer=Slow)
    federation.wait_for_all_but(3)
    federation.let_time_pass()
    federation.wait()
    assert [record.absent for record in federation.rounds()] == [(2,)]
    dropped_there = "rank 3: an upload that does not answer what it was sent last, dropped"
    kept_here = "client 2: the run ended before round 1's training did"
    # Either may happen: the goodbye is at the silo before its upload leaves, or after.
    assert (dropped_there in caplog.text) != (kept_here in caplog.text)
    assert "refused" not in caplog.text


@pytest.mark.long
def test_a_client_of_another_experiment_is_refused_naming_the_values(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "epochs=1")
    other = tmp_path / "other.yaml"
    other.write_text(config.read_text().replace("method: dapperfl", "method: fedavg"))
    federation = in_threads(config, NUM_SILOS)
    for rank in range(NUM_SILOS + 1):
        federation.start(rank, config=other if rank == 2 else None)
    assert "dapper_args.method is dapperfl there and fedavg here" in str(federation.error_of(2))
    federation.wait_for_all_but(2)
    federation.let_time_pass()
    federation.wait(0, 1, 3, 4)
    assert [record.absent for record in federation.rounds()] == [(1,), (1,)]


def test_without_enough_clients_the_server_says_who_is_missing(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads
) -> None:
    federation = in_threads(experiment_file(tiny_settings, tmp_path, "min_clients_per_round=3"), NUM_SILOS)
    for rank in (0, 1, 2):
        federation.start(rank)
    federation.wait_for(1, 2)
    federation.let_time_pass()
    said = str(federation.error_of(0))
    assert "2 of 4 client processes came online within 3600 s; missing ranks: [3, 4]" in said
    federation.wait(1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("config/silos/silo_3.yaml", "config/silos/silo_9.yaml"), "data_silo_config: no file"),
        (("    - 0.4\n    - 0.6\n    - 0.8\n", ""), "capability_level 3, but dapper_args.levels.ratios has 2 levels"),
        (("grpc_ipconfig.csv", "nowhere.csv"), "grpc_ipconfig_path: no file"),
    ],
)
def test_silo_files_are_checked_before_anything_starts(
    tiny_settings: SettingsFactory, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    config = experiment_file(tiny_settings, tmp_path)
    assert change[0] in config.read_text()
    config.write_text(config.read_text().replace(*change))
    words = ["--cf", str(config), "--role", "server", "--output", str(tmp_path / "run"), "--resume"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.split())
    assert not (tmp_path / "run").exists()


class Garbage(DapperClientTrainer):
    """More samples than it has, then weights of another size, then such as are no numbers."""

    def get_model_params(self) -> Any:
        upload = super().get_model_params()
        if upload.round == 1:
            return replace(upload, num_samples=10**6)
        if upload.round == 2:
            return replace(upload, weights=scaled(upload.weights, 1e6))
        return replace(upload, weights=scaled(upload.weights, float("nan")))


def scaled(weights: Mapping[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    return {name: tensor * factor if tensor.is_floating_point() else tensor for name, tensor in weights.items()}


@pytest.mark.nightly
def test_garbage_costs_its_sender_the_round_and_then_a_quarantine_and_is_in_its_own_log(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, caplog: pytest.LogCaptureFixture
) -> None:
    defence = [f"dapper_args.defence.{setting}" for setting in ("max_change=5", "strikes=3", "quarantine_rounds=1")]
    federation = in_threads(experiment_file(tiny_settings, tmp_path, "comm_round=5", "epochs=1", *defence), NUM_SILOS)
    for rank in range(NUM_SILOS + 1):
        federation.start(rank, trainer=Garbage if rank == 3 else DapperClientTrainer)
    federation.wait()  # and the server does not wait an hour for the one that was refused
    rounds = federation.rounds()
    told = [record.getMessage() for record in caplog.records if record.name.endswith("client_manager")]
    assert "client 2: the server refused the upload of round 1: upload says 1000000 samples" in " ".join(told)
    assert "client 2: the server refused the upload of round 2: " in " ".join(told)
    [diverged] = [line for line in told if line.startswith("client 2: round 3: training diverged")]
    assert "set train_args.max_grad_norm, e.g. 2" in diverged
    assert all(line.startswith("client 2: ") for line in told if "refused" in line or "diverged" in line)
    assert [record.absent for record in rounds] == [(2,), (2,), (2,), (), (2,)]
    assert [record.quarantined for record in rounds] == [(), (), (), (2,), ()]
    reasons = [record.refused.get(2, "") for record in rounds]
    expected = ("says 1000000 samples", "max_change allows 5", "not finite", "", "not finite")
    assert all(part in reason for part, reason in zip(expected, reasons, strict=True)), reasons
    assert all({client.client for client in record.clients} == {0, 1, 3} for record in rounds)
