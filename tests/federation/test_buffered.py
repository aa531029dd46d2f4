"""Rounds across silos that close with the first uploads, and what the others' count for when they arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, RoundRecord, Server, build_experiment
from fedml_dapper.methods import Upload

from ..across_silos import across_silos
from ..grids import sampled

SettingsFactory = Callable[..., Settings]
FEW = ("client_share=0.05", "epochs=1", "client_num_in_total=5", "norm=standardised", "frequency_of_the_test=4")
CLOCK = {"over_selection": 1.25, "late": "kept"}  # five at work, four uploads close a round
FLEET = {"devices": ["raspberry_pi_5", "phone_middle"], "network": "flash_p50", "round_s": 60, "clock": CLOCK}


@pytest.fixture
def silos(tiny_settings: SettingsFactory, tmp_path: Path) -> Callable[..., Experiment]:
    """Five silos, four of whose uploads close a round."""
    across = across_silos(tmp_path)
    buffered = ("client_num_per_round=5", "buffer_size=4")
    return lambda *overrides: build_experiment(tiny_settings(*FEW, *across, *buffered, *overrides))


class Federation:
    """Silos that train when they are sent something, and whose uploads wait until a test lets them arrive."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.server = Server(experiment)
        self.silos = ClientSide(experiment)
        self.on_their_way: dict[int, Upload] = {}

    def open(self) -> list[int]:
        chosen = list(self.server.round_clients())
        for client in chosen:
            data = self.experiment.clients[client]
            self.on_their_way[client] = self.silos.update(self.server.downlink(client), data)
        return chosen

    def arrive(self, *clients: int) -> None:
        for client in clients:
            self.server.receive(self.on_their_way.pop(client))

    def round(self, *clients: int) -> RoundRecord:
        self.open()
        self.arrive(*clients)
        return self.server.close_round()


@pytest.mark.long
@pytest.mark.parametrize("method", sampled(["fedavg", "dapperfl", "heterofl", "dapperfl_slim"], always=("dapperfl",)))
def test_what_arrives_when_decides_alone(
    tiny_settings: SettingsFactory, silos: Callable[..., Experiment], method: str
) -> None:
    """The virtual clock, whose late uploads are recomputed by hand elsewhere, gives the same model bit for bit."""
    rounds, plain = 4, (f"method={method}", "comm_round=4")
    fleet = f"dapper_args.fleet={json.dumps(FLEET)}"
    simulated = build_experiment(tiny_settings(*FEW, *plain, "client_num_per_round=4", fleet))
    levels = [profile.level for profile in simulated.profiles]
    server = Server(simulated)
    clients = ClientSide(simulated, server.memories)
    real = Federation(silos(*plain, f"dapper_args.levels.assignment={json.dumps(levels)}"))
    for _ in range(rounds):
        for client in server.round_clients():
            server.receive(clients.update(server.downlink(client), simulated.clients[client]))
        expected = server.close_round()
        assert expected.clock is not None
        arrivals = [client.client for client in expected.clients]
        record = real.round(*reversed(arrivals))  # not in the order in which they are folded
        begun = {client.client: client.begun for client in record.clients if client.begun is not None}
        assert begun == {one.client: one.begun for one in expected.clock.arrived}
        assert record.at_work == {one.client: one.begun for one in expected.clock.under_way}
        assert record.scores == expected.scores
        assert [client.bytes_down for client in record.clients] == [client.bytes_down for client in expected.clients]
        assert RoundRecord.model_validate_json(record.model_dump_json()) == record
    assert any(client.begun is not None for client in record.clients) or record.at_work
    for name, tensor in real.server.state.weights.items():
        assert torch.equal(tensor, server.state.weights[name])


def test_a_silo_at_work_is_not_sent_anything_and_counts_once(silos: Callable[..., Experiment]) -> None:
    real = Federation(silos("method=fedavg", "comm_round=9"))
    record = real.round(0, 1, 2, 4)
    assert (record.at_work, record.absent) == ({3: 1}, (3,))
    assert real.open() == [0, 1, 2, 4]
    late = real.on_their_way[3]
    with pytest.raises(ProtocolError, match="upload of round 2 arrived in round 2"):  # which silo 3 was not sent
        real.server.receive(replace(late, round=2))
    real.arrive(0, 3, 2, 1)
    with pytest.raises(ProtocolError, match="client 3 is not awaited"):
        real.server.receive(late)
    record = real.server.close_round()
    assert {client.client: client.begun for client in record.clients} == {0: None, 1: None, 2: None, 3: 1}
    assert record.at_work == {4: 2}
    assert real.open() == [0, 1, 2, 3]


def test_what_does_not_fit_the_round_it_began_in_is_refused(silos: Callable[..., Experiment]) -> None:
    real = Federation(silos("method=fedavg", "comm_round=9", "dapper_args.defence.max_change=5"))
    real.round(0, 1, 2, 4)
    real.open()
    wild = {name: 1e6 * tensor for name, tensor in real.on_their_way[3].weights.items()}
    real.server.receive(replace(real.on_their_way[3], weights=wild))
    real.arrive(0, 1, 2, 4)
    record = real.server.close_round()
    assert list(record.refused) == [3]
    assert record.at_work == {}
    assert real.open() == [0, 1, 2, 3, 4]


def test_what_a_silo_lost_is_not_waited_for(silos: Callable[..., Experiment]) -> None:
    real = Federation(silos("method=fedavg", "comm_round=9"))
    real.round(0, 1, 2, 4)
    real.open()
    real.server.give_up(3)
    with pytest.raises(ProtocolError, match=r"not awaited|arrived in round 2"):
        real.server.receive(real.on_their_way[3])
    real.arrive(0, 1, 2, 4)
    assert real.server.close_round().at_work == {}
    assert real.open() == [0, 1, 2, 3, 4]


def test_a_silo_that_was_never_reached_is_not_at_work(silos: Callable[..., Experiment]) -> None:
    real = Federation(silos("method=fedavg", "comm_round=9"))
    for client in real.server.round_clients()[:4]:
        data = real.experiment.clients[client]
        real.server.receive(real.silos.update(real.server.downlink(client), data))
    record = real.server.close_round()
    assert (record.at_work, record.absent) == ({}, (4,))


def test_a_server_that_starts_again_knows_of_nobody_at_work(silos: Callable[..., Experiment]) -> None:
    real = Federation(silos("method=fedavg", "comm_round=9"))
    real.round(0, 1, 2, 4)
    again = Server(real.experiment)
    again.restore(real.server.checkpoint())
    assert list(again.round_clients()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("buffer_size=5", r"\(5\) needs to be at least dapper_args.min_clients_per_round and less than .* \(1 and 5\)"),
        ("min_clients_per_round=5", r"\(4\) needs to be at least dapper_args.min_clients_per_round .* \(5 and 5\)"),
        (
            "method=fedecover",
            r"\(4\) needs a method that takes late uploads \(`fedecover` is none\): what a method uses",
        ),
    ],
)
def test_a_buffer_that_cannot_be_is_refused(silos: Callable[..., Experiment], override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"dapper_args.buffer_size {said}"):
        silos("method=fedavg", override)


def test_a_simulation_is_told_of_its_virtual_clock(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"no real clock; choose dapper_args\.fleet\.clock"):
        build_experiment(tiny_settings("method=fedavg", "buffer_size=3"))
