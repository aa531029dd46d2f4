"""Rounds that close with the first uploads, over FedML's own transports, with a silo that takes ten times as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.federation import build_experiment

from .processes import ROOT, Silos, fedml_grpc, mqtt_services, needs_broker, objects_left
from .secure_grpc.replay import differences_to_replay
from .slow_silo import paced_program

SettingsFactory = Callable[..., Settings]
NUM_SILOS = 4


@pytest.fixture
def silos(tiny_settings: SettingsFactory, tmp_path: Path) -> Iterator[Callable[..., Silos]]:
    """Four silos, the last of them slow; two uploads close a round."""
    of_four = (f"client_num_in_total={NUM_SILOS}", f"client_num_per_round={NUM_SILOS}", "comm_round=12", "threads=1")
    content = yaml.safe_load(tiny_settings(*of_four).as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["dapper_args"]["buffer_size"] = 2
    running: list[Silos] = []

    def build(comm_args: dict[str, object], overrides: tuple[str, ...] = ()) -> Silos:
        file = tmp_path / "experiment.yaml"
        file.write_text(yaml.safe_dump(content | {"comm_args": comm_args}))
        file.write_text(load_settings([file], overrides).as_yaml())  # a program of one's own takes no overrides
        paced = paced_program(tmp_path, slow=NUM_SILOS)
        running.append(Silos(tmp_path, file, NUM_SILOS, programs=dict.fromkeys(range(1, NUM_SILOS + 1), paced)))
        running[-1].start_all()
        return running[-1]

    yield build
    for one in running:
        one.stop()


def check(silos: Silos) -> None:
    """Everyone ends well, nobody waits for the slow silo, and what it sends counts all the same."""
    assert silos.wait(0) == 0, silos.output(0)
    for rank in range(1, NUM_SILOS + 1):
        assert silos.wait(rank) == 0, silos.output(rank)
    rounds = silos.rounds()
    assert len(rounds) == 12
    assert {len(record.clients) for record in rounds} == {2}
    slow = [client.begun for record in rounds for client in record.clients if client.client == NUM_SILOS - 1]
    assert slow
    assert slow[0] == 1
    assert rounds[1].at_work[NUM_SILOS - 1] == 1
    assert "without clients" not in silos.output(0)
    assert differences_to_replay(build_experiment(load_settings([silos.config])), silos) == []


@pytest.mark.long
def test_nobody_waits_for_a_slow_silo_over_grpc(silos: Callable[..., Silos], tmp_path: Path) -> None:
    check(silos(fedml_grpc(tmp_path, NUM_SILOS)))


@needs_broker
@pytest.mark.long
def test_nobody_waits_for_a_slow_silo_over_mqtt_and_its_messages_stay_until_they_are_read(
    silos: Callable[..., Silos], tmp_path: Path
) -> None:
    comm_args = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())["comm_args"]
    with mqtt_services(tmp_path) as addresses:
        check(silos(comm_args, tuple(addresses)))
        assert objects_left(addresses) == 0
