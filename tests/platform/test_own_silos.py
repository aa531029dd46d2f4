"""Silos that hold their own data alone: they say what they have when they join, and test on it what they are sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import DataArgs, Settings
from fedml_dapper.datasets import load_suite
from fedml_dapper.federation import read_ledger

from .processes import ROOT, Silos, fedml_grpc, mqtt_services, needs_broker, objects_left
from .timeless_server import let_time_pass, timeless_program

SettingsFactory = Callable[..., Settings]
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


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Silos]]:
    running: list[Silos] = []

    def build(config: Path, overrides: Sequence[str] = ()) -> Silos:
        running.append(Silos(tmp_path, config, NUM_SILOS, overrides))
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def test_three_silos_of_one_domain_each_and_a_server_without_data(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    check_three_silos(started(shared_file(tiny_settings, tmp_path)))


@needs_broker
@pytest.mark.long
def test_the_same_over_mqtt(tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]) -> None:
    config = shared_file(tiny_settings, tmp_path)
    content = yaml.safe_load(config.read_text())
    content["comm_args"] = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())["comm_args"]
    config.write_text(yaml.safe_dump(content))
    with mqtt_services(tmp_path) as addresses:
        check_three_silos(started(config, addresses))
        assert objects_left(addresses) == 0


def check_three_silos(silos: Silos) -> None:
    """They train and measure to the end, and the ledger has what they announced."""
    silos.start(0)
    for rank, domain in enumerate(("scans", "fonts", "fonts"), start=1):
        silos.start(rank, above=silo_file(silos.folder, rank, domain, level=rank))
    assert silos.wait(0) == 0, silos.output(0)
    for rank in range(1, NUM_SILOS + 1):
        assert silos.wait(rank) == 0, silos.output(rank)
    run, rounds = read_ledger(silos.run_dir / "ledger.jsonl")
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
    assert (silos.run_dir / "report.html").exists()


WAITING_PROGRAM = """
import runpy, time
from pathlib import Path
from fedml_dapper.platform import DapperClientTrainer

train, said, words = DapperClientTrainer.train, Path("rank_0.log"), ("samples of blended", "silo 3 joins")

def train_and_wait(trainer, train_data, device, args):
    train(trainer, train_data, device, args)
    while args.round_idx == 5 and not all(text in said.read_text() for text in words):
        time.sleep(0.05)

DapperClientTrainer.train = train_and_wait
runpy.run_module("fedml_dapper", run_name="__main__")
"""
"""A silo's that does not end the sixth round before the others are back."""


def test_a_late_silo_joins_and_one_comes_back_with_other_data(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = shared_file(tiny_settings, tmp_path, "comm_round=8", "min_clients_per_round=1")
    waiting = tmp_path / "waiting.py"
    waiting.write_text(WAITING_PROGRAM)
    silos = started(config)
    silos.start(0, program=timeless_program(tmp_path))
    silos.start(1, program=waiting, above=silo_file(tmp_path, 1, "scans"))
    silos.start(2, above=silo_file(tmp_path, 2, "fonts"))
    silos.wait_for_words("rank 1 is there", "rank 2 is there")
    let_time_pass(silos.processes[0])
    silos.wait_for_round(1)
    silos.start(3, above=silo_file(tmp_path, 3, "segments"))
    silos.wait_for_round(2)
    silos.kill(2)
    silos.start(2, above=silo_file(tmp_path, 2, "blended"))
    assert silos.wait(0) == 0, silos.output(0)
    rounds = silos.rounds()
    assert [client.domain for client in rounds[0].clients] == ["scans", "fonts"]
    assert {client.domain for client in rounds[-1].clients} == {"scans", "blended", "segments"}
    joined = re.findall(r"silo (\d) joins with \d+ training samples of (\w+)", silos.output(0))
    assert sorted(joined) == [("1", "scans"), ("2", "blended"), ("2", "fonts"), ("3", "segments")]


def test_a_silo_that_is_refused_hears_why_and_exits_with_2(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = shared_file(tiny_settings, tmp_path, "comm_round=1")
    silos = started(config)
    silos.start(0, program=timeless_program(tmp_path))
    silos.start(1, above=silo_file(tmp_path, 1, "scans"))
    silos.start(2, above=silo_file(tmp_path, 2, "fonts", level=9))
    silos.start(3, above=silo_file(tmp_path, 3, "fonst"))
    assert silos.wait(3) == 2
    assert "silo_args.domain: no domain `fonst`; did you mean `fonts`?" in silos.output(3)
    assert silos.wait(2) == 2
    assert (
        "the server refuses this silo: its silo_args.level is 9, but dapper_args.levels.ratios has 5" in silos.output(2)
    )
    silos.wait_for_words("rank 1 is there")
    let_time_pass(silos.processes[0])
    assert silos.wait(0) == 0, silos.output(0)
    assert [client.domain for client in silos.rounds()[0].clients] == ["scans"]


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


@pytest.mark.long
def test_a_silo_names_its_device_and_gets_its_level_and_a_smaller_one_when_it_is_slower_than_that(
    tiny_settings: SettingsFactory, tmp_path: Path, started: Callable[..., Silos]
) -> None:
    config = shared_file(tiny_settings, tmp_path, "method=heterofl", "comm_round=3")
    content = yaml.safe_load(config.read_text())
    content["dapper_args"]["fleet"] = {"round_s": 0.05}
    config.write_text(yaml.safe_dump(content))
    silos = started(config)
    silos.start(0, program=timeless_program(tmp_path))
    silos.start(1, above=silo_file(tmp_path, 1, "scans", level=2))
    silos.start(2, above=silo_file(tmp_path, 2, "fonts", device=device_file(tmp_path, "boastful", 10_000)))
    silos.start(3, above=silo_file(tmp_path, 3, "fonts", device=device_file(tmp_path, "tiny", 10_000, memory_mb=1)))
    assert silos.wait(3) == 2
    assert "the server refuses this silo: its device can run no level of `heterofl`: the weakest needs" in silos.output(
        3
    )
    silos.wait_for_words("rank 1 is there", "rank 2 is there")
    let_time_pass(silos.processes[0])
    assert silos.wait(0) == 0, silos.output(0)
    rounds = silos.rounds()
    assert [[(one.domain, one.level) for one in record.clients] for record in rounds] == [
        [("scans", 2), ("fonts", 1)], [("scans", 2), ("fonts", 5)], [("scans", 2), ("fonts", 5)],
    ]  # fmt: skip
    assert re.search(r"client 1 trained for [\d.]+ s, longer than a round may take; it has level 5", silos.output(0))
