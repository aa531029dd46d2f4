"""Cross-silo runs with real processes over gRPC and MQTT: partial participation, death, refusal, lateness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import Settings
from fedml_dapper.federation import read_ledger

from .processes import ROOT, Silos, fedml_grpc, mqtt_services, needs_broker, objects_left
from .slow_silo import AT_WORK, busy_program
from .timeless_server import let_time_pass, timeless_program, wait_for_all_but

SettingsFactory = Callable[..., Settings]
NUM_SILOS = 6


def experiment_file(tiny_settings: SettingsFactory, folder: Path, *overrides: str) -> Path:
    """A tiny experiment on six silos over gRPC, levels from the shipped silo files."""
    content = yaml.safe_load(tiny_settings("client_num_in_total=6", "client_num_per_round=6", *overrides).as_yaml())
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


def check_partial_participation(silos: Silos) -> None:
    assert silos.wait(0) == 0, silos.output(0)
    rounds = silos.rounds()
    assert len(rounds) == 4
    taking_part = [[client.client for client in record.clients] for record in rounds]
    assert all(len(ids) == 3 for ids in taking_part)
    assert any(0 in ids for ids in taking_part)  # FedML takes index 0 for "none"
    assert all(not record.absent for record in rounds)
    for rank in range(1, NUM_SILOS + 1):
        assert silos.wait(rank) == 0, silos.output(rank)
    run, _ = read_ledger(silos.run_dir / "ledger.jsonl")
    assert [client.level for client in run.clients] == [1, 2, 3, 4, 5, 1]  # from the silo files


def test_three_of_six_over_grpc(tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]) -> None:
    config = experiment_file(tiny_settings, tmp_path, "client_num_per_round=3", "comm_round=4", "epochs=1")
    silos = started(config, cold=(0, 1))
    silos.start_all()
    check_partial_participation(silos)
    assert "cannot be reached" not in silos.output(0)  # those that were not up yet are waited for
    for rank in (0, 1):
        assert silos.output(rank).count("whoever can reach it, or the broker, can run code here") == 1


@needs_broker
@pytest.mark.long
def test_three_of_six_over_mqtt_and_nothing_stays_in_the_store(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "client_num_per_round=3", "comm_round=4", "epochs=1")
    content = yaml.safe_load(config.read_text())
    content["comm_args"] = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())["comm_args"]
    config.write_text(yaml.safe_dump(content))
    with mqtt_services(tmp_path) as addresses:
        silos = started(config, tuple(addresses), cold=(0, 1))
        silos.start_all()
        check_partial_participation(silos)
        assert objects_left(addresses) == 0


@pytest.mark.long
def test_a_killed_client_does_not_stop_the_run(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "comm_round=4", "epochs=1")
    silos = started(config)
    programs = {0: timeless_program(tmp_path), 3: busy_program(tmp_path)}
    for rank in range(NUM_SILOS + 1):
        silos.start(rank, program=programs.get(rank))
    silos.wait_for_words(AT_WORK, rank=3)
    silos.kill(3)
    assert wait_for_all_but(silos, 3)
    let_time_pass(silos.processes[0])  # once, and not for each message
    assert silos.wait(0) == 0, silos.output(0)
    rounds = silos.rounds()
    assert [record.absent for record in rounds] == [(), (2,), (2,), (2,)]
    assert all({client.client for client in record.clients} == {0, 1, 3, 4, 5} for record in rounds[1:])
    assert "without clients [2]" in silos.output(0)
    assert "rank 3 cannot be reached" in silos.output(0)


@pytest.mark.long
def test_a_finished_run_started_again_ends_without_its_silos(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "comm_round=1", "epochs=1")  # silos are waited for up to an hour
    silos = started(config)
    silos.start_all()
    assert silos.wait(0) == 0, silos.output(0)
    before = (silos.run_dir / "ledger.jsonl").read_bytes()
    for back in (0, 2):
        silos.start(back)
    assert silos.wait(0) == 0, silos.output(0)
    assert silos.wait(2) == 0, silos.output(2)
    assert (silos.run_dir / "ledger.jsonl").read_bytes() == before


SLOW_PROGRAM = """
import time
from pathlib import Path
from fedml_dapper import platform as dapper

ledger, server = Path("run/ledger.jsonl"), Path("rank_0.log")

def until(happened):
    while not happened():
        time.sleep(0.05)

class Slow(dapper.DapperClientTrainer):
    def train(self, train_data, device, args):
        super().train(train_data, device, args)
        if args.rank == 3 and args.round_idx == 1:  # answers when the next round is closed too, without it
            until(lambda: ledger.read_bytes().count(b"\\n") > 3)  # the head and three rounds
        elif args.rank == 4 and args.round_idx == 4:  # so that rounds are left to take it in again
            until(lambda: "what it was sent last, dropped" in server.read_text())

args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, client_trainer=Slow(model, args)).run()
"""


@pytest.mark.long
def test_a_late_upload_is_dropped_and_its_client_comes_back(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "comm_round=8", "epochs=1")
    program = tmp_path / "slow.py"
    program.write_text(SLOW_PROGRAM)
    silos = started(config)
    programs = {0: timeless_program(tmp_path), 3: program, 4: program}
    for rank in range(NUM_SILOS + 1):
        silos.start(rank, program=programs.get(rank))
    silos.wait_for_round(1)  # in which rank 3 may be the last to answer too
    assert wait_for_all_but(silos, 3)
    assert len(silos.rounds()) == 1
    let_time_pass(silos.processes[0])
    assert silos.wait(0) == 0, silos.output(0)
    absent = [record.absent for record in silos.rounds()]
    assert absent[:3] == [(), (2,), (2,)]
    assert "rank 3: an upload that does not answer what it was sent last, dropped" in silos.output(0)
    assert absent[-1] == ()  # waited for again


@pytest.mark.long
def test_a_client_of_another_experiment_is_refused_naming_the_values(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "epochs=1")
    other = tmp_path / "other.yaml"
    other.write_text(config.read_text().replace("method: dapperfl", "method: fedavg"))
    silos = started(config)
    silos.start(0, program=timeless_program(tmp_path))
    for rank in range(1, NUM_SILOS + 1):
        silos.start(rank, other if rank == 2 else None)
    assert silos.wait(2) == 2
    assert "dapper_args.method is dapperfl there and fedavg here" in silos.output(2)
    assert wait_for_all_but(silos, 2)
    let_time_pass(silos.processes[0])
    assert silos.wait(0) == 0, silos.output(0)
    assert [record.absent for record in silos.rounds()] == [(1,), (1,)]


@pytest.mark.long
def test_without_enough_clients_the_server_says_who_is_missing(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = experiment_file(tiny_settings, tmp_path, "min_clients_per_round=3")
    silos = started(config)
    silos.start(0, program=timeless_program(tmp_path))
    for rank in (1, 2):
        silos.start(rank)
    silos.wait_for_words("rank 1 is there", "rank 2 is there")
    let_time_pass(silos.processes[0])
    assert silos.wait(0) == 2
    assert "2 of 6 client processes came online within 3600 s; missing ranks: [3, 4, 5, 6]" in silos.output(0)
    assert silos.wait(1) == silos.wait(2) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("config/silos/silo_3.yaml", "config/silos/silo_9.yaml"), "data_silo_config: no file"),
        (("    - 0.8\n", ""), "capability_level 5, but dapper_args.levels.ratios has 4 levels"),
        (("grpc_ipconfig.csv", "nowhere.csv"), "grpc_ipconfig_path: no file"),
    ],
)
def test_silo_files_are_checked_before_anything_starts(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos], change: tuple[str, str], message: str
) -> None:
    config = experiment_file(tiny_settings, tmp_path)
    config.write_text(config.read_text().replace(*change))
    silos = started(config)
    silos.start(0)
    assert silos.wait(0) == 2
    assert message in silos.output(0)
    assert not silos.run_dir.exists()


GARBAGE_PROGRAM = """
from dataclasses import replace
import torch
from fedml_dapper import platform as dapper

class Garbage(dapper.DapperClientTrainer):
    def get_model_params(self):
        upload = super().get_model_params()
        if upload.round == 1:
            return replace(upload, num_samples=10**6)
        if upload.round == 2:
            return replace(upload, weights=scaled(upload.weights, 1e6))
        return replace(upload, weights=scaled(upload.weights, float("nan")))

def scaled(weights, factor):
    return {name: tensor * factor if tensor.is_floating_point() else tensor for name, tensor in weights.items()}

args = dapper.init()
dataset, model = dapper.load(args)
dapper.DistributedRunner(args, None, dataset, model, client_trainer=Garbage(model, args)).run()
"""


@pytest.mark.long
def test_garbage_costs_its_sender_the_round_and_then_a_quarantine(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    defence = [f"dapper_args.defence.{setting}" for setting in ("max_change=5", "strikes=3", "quarantine_rounds=1")]
    config = experiment_file(tiny_settings, tmp_path, "comm_round=5", "epochs=1", *defence)
    program = tmp_path / "garbage.py"
    program.write_text(GARBAGE_PROGRAM)
    silos = started(config)
    for rank in range(NUM_SILOS + 1):
        silos.start(rank, program=program if rank == 3 else None)
    assert silos.wait(0) == 0, silos.output(0)  # and does not wait an hour for the one that was refused
    rounds = silos.rounds()
    assert [record.absent for record in rounds] == [(2,), (2,), (2,), (), (2,)]
    assert [record.quarantined for record in rounds] == [(), (), (), (2,), ()]
    reasons = [record.refused.get(2, "") for record in rounds]
    expected = ("says 1000000 samples", "max_change allows 5", "not finite", "", "not finite")
    assert all(part in reason for part, reason in zip(expected, reasons, strict=True)), reasons
    assert all({client.client for client in record.clients} == {0, 1, 3, 4, 5} for record in rounds)
