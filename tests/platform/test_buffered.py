"""Rounds that close with the first uploads, over FedML's own transports, with a silo that takes ten times as long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.federation import build_experiment
from fedml_dapper.platform import DapperClientTrainer

from ..waiting import wait_until
from .federation_in_threads import Federation
from .processes import ROOT, Silos, fedml_grpc, mqtt_services, needs_broker, objects_left, put_into
from .secure_grpc.replay import differences_to_replay
from .slow_silo import paced_program

SettingsFactory = Callable[..., Settings]
NUM_SILOS = 4


def experiment_file(tiny_settings: SettingsFactory, folder: Path, comm_args: dict[str, object]) -> Path:
    """Four silos, of which two uploads close a round."""
    of_four = (f"client_num_in_total={NUM_SILOS}", f"client_num_per_round={NUM_SILOS}", "comm_round=12", "threads=1")
    content = yaml.safe_load(tiny_settings(*of_four, "epochs=1").as_yaml())
    content["common_args"]["training_type"] = "cross_silo"
    content["dapper_args"]["buffer_size"] = 2
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(content | {"comm_args": comm_args}))
    return file


def check(run: Silos | Federation, said: str) -> None:
    """Nobody waits for the slow silo, and what it sends counts all the same."""
    rounds = run.rounds()
    assert len(rounds) == 12
    assert {len(record.clients) for record in rounds} == {2}
    slow = [client.begun for record in rounds for client in record.clients if client.client == NUM_SILOS - 1]
    assert slow
    assert slow[0] == 1
    assert rounds[1].at_work[NUM_SILOS - 1] == 1
    assert "without clients" not in said
    assert differences_to_replay(build_experiment(load_settings([run.config])), run) == []


@pytest.mark.nightly
def test_nobody_waits_for_a_slow_silo(
    tiny_settings: SettingsFactory, tmp_path: Path, in_threads: Callable[[Path, int], Federation],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    class Paced(DapperClientTrainer):
        """The last silo's answers when two more rounds have closed without it; by the seventh round the others wait for
        its first upload to count, so that rounds are left for what it sends."""

        def train(self, train_data: Any, device: Any, args: Any) -> None:
            super().train(train_data, device, args)
            if args.rank == NUM_SILOS:
                federation.wait_for_round(min(args.round_idx + 3, args.comm_round))
            elif args.round_idx == 6:
                wait_until(
                    lambda: any(one.client == NUM_SILOS - 1 for each in federation.rounds() for one in each.clients)
                )

    config = experiment_file(tiny_settings, tmp_path, fedml_grpc(tmp_path, NUM_SILOS))
    federation = in_threads(config, NUM_SILOS)
    federation.start(0)
    for rank in range(1, NUM_SILOS + 1):
        federation.start(rank, trainer=Paced)
    federation.wait()
    check(federation, caplog.text)


@needs_broker
@pytest.mark.nightly
def test_over_mqtt_its_messages_stay_until_they_are_read(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    comm_args = yaml.safe_load((ROOT / "config" / "mqtt.yaml").read_text())["comm_args"]
    config = experiment_file(tiny_settings, tmp_path, comm_args)
    with mqtt_services(tmp_path) as addresses:
        put_into(config, addresses)
        paced = paced_program(tmp_path, slow=NUM_SILOS)
        silos = Silos(tmp_path, config, NUM_SILOS, programs=dict.fromkeys(range(1, NUM_SILOS + 1), paced))
        try:
            silos.start_all()
            for rank in range(NUM_SILOS + 1):
                assert silos.wait(rank) == 0, silos.output(rank)
        finally:
            silos.stop()
        check(silos, silos.output(0))
        assert objects_left(addresses) == 0
