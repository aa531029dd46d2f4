"""Silos that hold their own data alone: they say what they have when they join, and test on it what they are sent."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml_dapper.config import DataArgs, Settings
from fedml_dapper.datasets import load_suite
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import read_ledger
from fedml_dapper.platform import DapperClientTrainer

from ..waiting import wait_until
from .federation_in_threads import Federation
from .processes import ROOT, Silos, fedml_grpc, mqtt_services, needs_broker, objects_left

SettingsFactory = Callable[..., Settings]
InThreads = Callable[[Path, int], Federation]
NUM_SILOS = 3


def shared_file(tiny_settings: SettingsFactory, folder: Path, *overrides: str) -> Path:
    """What all processes share; nothing in it says who holds what."""
    few = (
        "client_num_in_total=3",
        "client_num_per_round=3",
        "client_share=null",
        "image_size=16",
        "epochs=1",
        "batch_size=64",
    )
    content = yaml.safe_load(tiny_settings(*few, *overrides).as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["data_args"]["partition"] = "own"
    content["comm_args"] = fedml_grpc(folder, NUM_SILOS)
    content["device_args"]["threads"] = 1
    file = folder / "shared.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def silo_file(folder: Path, rank: int, domain: str, **more: object) -> Path:
    file = folder / f"silo_{rank}.yaml"
    file.write_text(yaml.safe_dump({"silo_args": {"domain": domain, **more}}))
    return file


@pytest.mark.long
def test_three_silos_of_one_domain_each_and_a_server_without_data(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads
) -> None:
    federation = in_threads(shared_file(tiny_settings, tmp_path), NUM_SILOS)
    federation.start(0)
    for rank, file in three_silo_files(tmp_path).items():
        federation.start(rank, file)
    federation.wait()
    check_what_they_said(federation.run_dir)


@needs_broker
@pytest.mark.nightly
def test_the_same_in_processes_over_mqtt(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    config = shared_file(tiny_settings, tmp_path)
    content = yaml.safe_load(config.read_text())
    content["comm_args"] = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())["comm_args"]
    config.write_text(yaml.safe_dump(content))
    with mqtt_services(tmp_path) as addresses:
        silos = Silos(tmp_path, config, NUM_SILOS, addresses)
        try:
            silos.start(0)
            for rank, file in three_silo_files(tmp_path).items():
                silos.start(rank, above=file)
            for rank in range(NUM_SILOS + 1):
                assert silos.wait(rank) == 0, silos.output(rank)
        finally:
            silos.stop()
        assert objects_left(addresses) == 0
    check_what_they_said(silos.run_dir)
    assert (silos.run_dir / "report.html").exists()


def three_silo_files(folder: Path) -> dict[int, Path]:
    domains = enumerate(("scans", "fonts", "fonts"), start=1)
    return {rank: silo_file(folder, rank, domain, level=rank) for rank, domain in domains}


def check_what_they_said(run_dir: Path) -> None:
    """The ledger has what they announced and what they measured."""
    run, rounds = read_ledger(run_dir / "ledger.jsonl")
    assert run.clients == ()
    assert run.domains == ()
    held = {domain.name: domain for domain in load_suite(DataArgs(dataset="digits_offline")).domains}
    expected = [("scans", 1), ("fonts", 2), ("fonts", 3)]
    tests = {"scans": len(held["scans"].test), "fonts": 2 * len(held["fonts"].test)}
    for record in rounds:
        assert [(client.domain, client.level) for client in record.clients] == expected
        assert [c.num_samples for c in record.clients] == [len(held[domain].train) for domain, _ in expected]
        assert record.scores is not None
        weighted = sum(record.scores.domain_accuracy[domain] * count for domain, count in tests.items())
        assert record.scores.global_accuracy == pytest.approx(weighted / sum(tests.values()))
        assert record.scores.domain_accuracy.keys() == tests.keys()


@pytest.mark.nightly
def test_a_late_silo_joins_and_one_comes_back_with_other_data(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, caplog: pytest.LogCaptureFixture
) -> None:
    def joined() -> list[tuple[str, str]]:
        return sorted(re.findall(r"silo (\d) joins with \d+ training samples of (\w+)", caplog.text))

    class Waiting(DapperClientTrainer):
        """Does not end the fourth round before the others are back."""

        def train(self, train_data: Any, device: Any, args: Any) -> None:
            super().train(train_data, device, args)
            if args.round_idx == 3:
                wait_until(lambda: {("2", "blended"), ("3", "segments")} <= {*joined()})

    caplog.set_level(logging.INFO)
    config = shared_file(tiny_settings, tmp_path, "comm_round=5", "min_clients_per_round=1")
    federation = in_threads(config, NUM_SILOS)
    federation.start(0)
    federation.start(1, silo_file(tmp_path, 1, "scans"), trainer=Waiting)
    federation.start(2, silo_file(tmp_path, 2, "fonts"))
    federation.wait_for(1, 2)
    federation.let_time_pass()
    federation.wait_for_round(1)
    federation.start(3, silo_file(tmp_path, 3, "segments"))
    federation.wait_for_round(2)
    federation.leave(2)
    federation.start(2, silo_file(tmp_path, 2, "blended"))
    federation.wait()
    rounds = federation.rounds()
    assert [client.domain for client in rounds[0].clients] == ["scans", "fonts"]
    assert {client.domain for client in rounds[-1].clients} == {"scans", "blended", "segments"}
    assert joined() == [("1", "scans"), ("2", "blended"), ("2", "fonts"), ("3", "segments")]


@pytest.mark.long
def test_a_silo_that_is_refused_hears_why(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads
) -> None:
    federation = in_threads(shared_file(tiny_settings, tmp_path, "comm_round=1"), NUM_SILOS)
    federation.start(0)
    federation.start(1, silo_file(tmp_path, 1, "scans"))
    federation.start(2, silo_file(tmp_path, 2, "fonts", level=9))
    with pytest.raises(ConfigError, match="no domain `fonst`; did you mean `fonts`"):
        federation.start(3, silo_file(tmp_path, 3, "fonst"))
    refused = federation.error_of(2)
    assert isinstance(refused, ConfigError)
    assert "the server refuses this silo: its silo_args.level is 9, but dapper_args.levels.ratios has 5" in str(refused)
    federation.wait_for(1)
    federation.let_time_pass()
    federation.wait(0, 1)
    assert [client.domain for client in federation.rounds()[0].clients] == ["scans"]


def device_file(folder: Path, name: str, gmacs_per_s: float, memory_mb: float = 4000) -> str:
    """A profile as ``calibrate`` writes it, of a silo with a fast line; its path, as from a silo's file."""
    said = {"mark": "measured", "source": "trial"}
    profile = {
        "description": name,
        "sources": {"trial": {"title": "a guess", "address": "here"}},
        "memory_mb": {"value": memory_mb, **said},
        "speeds": [{"network": "any", "family": "convolutions", "gmacs_per_s": gmacs_per_s, **said}],
        "downlink_mbps": {"value": 100_000, **said},
        "uplink_mbps": {"value": 100_000, **said},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(profile))
    return f"{name}.yaml"


@pytest.mark.nightly
def test_a_silo_names_its_device_and_gets_its_level_and_a_smaller_one_when_it_is_slower_than_that(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: InThreads, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = shared_file(tiny_settings, tmp_path, "method=heterofl", "comm_round=3")
    content = yaml.safe_load(config.read_text())
    content["dapper_args"]["fleet"] = {"round_s": 0.05}
    config.write_text(yaml.safe_dump(content))
    federation = in_threads(config, NUM_SILOS)
    federation.start(0)
    federation.start(1, silo_file(tmp_path, 1, "scans", level=2))
    boastful = device_file(tmp_path, "boastful", 10_000)
    federation.start(2, silo_file(tmp_path, 2, "fonts", device=boastful))
    tiny = device_file(tmp_path, "tiny", 10_000, memory_mb=1)
    federation.start(3, silo_file(tmp_path, 3, "fonts", device=tiny))
    refusal = "the server refuses this silo: its device can run no level of `heterofl`: the weakest needs"
    assert refusal in str(federation.error_of(3))
    federation.wait_for(1, 2)
    federation.let_time_pass()
    federation.wait(0, 1, 2)
    assert [[(one.domain, one.level) for one in record.clients] for record in federation.rounds()] == [
        [("scans", 2), ("fonts", 1)], [("scans", 2), ("fonts", 5)], [("scans", 2), ("fonts", 5)],
    ]  # fmt: skip
    assert re.search(r"client 1 trained for [\d.]+ s, longer than a round may take; it has level 5", caplog.text)
