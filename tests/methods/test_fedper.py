"""FedPer: what is shared, and what stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods.catalogue.fedper import FedPer, FedPerParams
from fedml_dapper.pruning import DENSE


def fedper(fedavg: Experiment, num_personal_layers: int = 1) -> Experiment:
    return replace(fedavg, method=FedPer(FedPerParams(num_personal_layers=num_personal_layers), fedavg.method.problem))


def run(experiment: Experiment, rounds: int) -> tuple[Server, ClientSide]:
    server, clients = Server(experiment), ClientSide(experiment)
    for _ in range(rounds):
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
    return server, clients


def test_body_moves_as_under_fedavg_while_heads_are_equal_and_heads_never_travel(fedavg: Experiment) -> None:
    plain, (server, clients) = run(fedavg, 1)[0], run(fedper(fedavg), 1)
    head = {"predictor.weight", "predictor.bias"}
    for name, tensor in server.state.weights.items():
        expected = fedavg.method.problem.backbone.state_dict()[name] if name in head else plain.state.weights[name]
        assert torch.equal(tensor, expected)
    downlink = server.downlink(1)
    upload = clients.update(downlink, fedavg.clients[1])
    assert downlink.weights.keys() == upload.weights.keys() == server.state.weights.keys() - head
    heads = [clients.memories[client_id].recall("personal") for client_id in range(2)]
    assert heads[0].keys() == head
    assert not torch.equal(heads[0]["predictor.weight"], heads[1]["predictor.weight"])


def test_second_round_starts_from_the_clients_own_head(fedavg: Experiment) -> None:
    server, clients = run(fedper(fedavg), 1)
    before = clients.memories[0].recall("personal")
    downlink = server.downlink(0)
    whole = replace(downlink, weights={**server.state.weights, **before}, plan=DENSE)
    plain = ClientSide(fedavg).update(whole, fedavg.clients[0])
    upload = clients.update(downlink, fedavg.clients[0])
    assert all(torch.equal(tensor, plain.weights[name]) for name, tensor in upload.weights.items())
    after = clients.memories[0].recall("personal")
    assert all(torch.equal(tensor, plain.weights[name]) for name, tensor in after.items())


def test_without_personal_layers_it_is_fedavg_bit_for_bit(fedavg: Experiment) -> None:
    plain, ours = (run(experiment, 2)[0].state.weights for experiment in (fedavg, fedper(fedavg, 0)))
    assert all(torch.equal(tensor, ours[name]) for name, tensor in plain.items())


def test_layers_are_counted_from_the_top_and_bring_their_batchnorm(fedavg: Experiment) -> None:
    experiment = fedper(fedavg, 2)
    of_shortcut = {name for name in fedavg.method.problem.layout.tensors if name.startswith("stages.3.0.shortcut.")}
    assert experiment.method.personal == {"predictor.weight", "predictor.bias"} | of_shortcut
    assert len(of_shortcut) == 6
    everything = fedper(fedavg, 13).method.personal
    assert everything == fedavg.method.problem.layout.tensors.keys()
    with pytest.raises(ConfigError, match="num_personal_layers: the model has only 13 layers, not 14"):
        fedper(fedavg, 14)
