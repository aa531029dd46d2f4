"""Stand-alone training against FedAvg of one client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.federation.scoring.testing import evaluate
from fedml_dapper.methods import ClientContext, LocalTraining, payload_bytes
from fedml_dapper.methods.catalogue.local import Local, LocalParams

SettingsFactory = Callable[..., Settings]
ROUNDS = 2


def local(fedavg: Experiment, keep_momentum: bool = False) -> Experiment:
    return replace(fedavg, method=Local(LocalParams(keep_momentum=keep_momentum), fedavg.method.problem))


def own_models(experiment: Experiment) -> dict[int, dict[str, Tensor]]:
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)
    for _ in range(ROUNDS):
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
    return {client_id: memory.recall("personal") for client_id, memory in clients.memories.items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_it_is_fedavg_of_one_client(fedavg: Experiment) -> None:
    expected = {}
    for client_id in (0, 3):
        clients, downlink = ClientSide(fedavg), Server(fedavg).downlink(client_id)
        for round_ in range(1, ROUNDS + 1):
            sent = clients.update(replace(downlink, round=round_), fedavg.clients[client_id]).weights
            downlink = replace(downlink, weights=sent)
        expected[client_id] = dict(downlink.weights)
    found = own_models(local(fedavg))
    assert found.keys() == {0, 1, 2, 3}
    assert same(found[0], expected[0])
    assert same(found[3], expected[3])
    assert not same(found[0], found[3])


@pytest.mark.long
def test_kept_momentum_makes_the_rounds_one_run_of_sgd(fedavg: Experiment) -> None:
    method, client = fedavg.method, ClientContext(fedavg.profiles[0], fedavg.clients[0])
    model = method.load(client, Server(fedavg).downlink(0))
    optimizer = LocalTraining(client, 1, method.problem.training).optimizer(model)
    for round_ in range(1, ROUNDS + 1):
        LocalTraining(client, round_, method.problem.training).epoch(model, optimizer, method.problem.task_loss)
    kept = own_models(local(fedavg, keep_momentum=True))[0]
    assert same(kept, model.state_dict())
    assert not same(kept, own_models(local(fedavg))[0])


def test_without_momentum_there_is_none_to_keep(fedavg: Experiment) -> None:
    problem = fedavg.method.problem
    plain = replace(problem, training=problem.training.model_copy(update={"momentum": 0.0}))
    experiment = replace(fedavg, method=Local(LocalParams(keep_momentum=True), plain))
    clients = ClientSide(experiment)
    clients.update(Server(experiment).downlink(0), experiment.clients[0])
    assert clients.memories[0].recall("optimizer") == {}


def test_nothing_travels(fedavg: Experiment) -> None:
    experiment = local(fedavg)
    layout, cost = experiment.method.problem.layout, experiment.method.footprint(0.0)
    server, clients = Server(experiment), ClientSide(experiment)
    for client_id in server.round_clients():
        downlink = server.downlink(client_id)
        upload = clients.update(downlink, experiment.clients[client_id])
        assert (payload_bytes(downlink, layout), payload_bytes(upload, layout)) == (0, 0)
        server.receive(upload)
    record = server.close_round()
    assert (cost.bytes_down, cost.bytes_up) == (0, 0)
    assert {client.params for client in record.clients} == {cost.parameters} == {fedavg.method.footprint(0).parameters}
    assert same(server.state.weights, experiment.method.problem.backbone.state_dict())


def test_scores_are_those_of_the_clients_own_models(tiny_settings: SettingsFactory) -> None:
    few = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "comm_round=1", "epochs=1")
    experiment = build_experiment(tiny_settings("method=local", "personal=true", *few))
    server, records = simulate(experiment)
    accuracy = []
    for client_id, test in enumerate(own.test for own in experiment.client_tests):
        model = experiment.method.local_model(server.downlink(client_id).plan)
        model.load_state_dict(server.memories[client_id].recall("personal"))
        accuracy.append(evaluate(model, experiment.method.problem.task, test, experiment.device).headline)
    personal, scores = records[0].personal, records[0].scores
    assert personal is not None
    assert scores is not None
    assert list(personal.accuracy) == accuracy
    domains = [client.domain for client in experiment.clients]
    for domain, value in scores.domain_accuracy.items():
        assert value == pytest.approx(fmean(a for a, of in zip(accuracy, domains, strict=True) if of == domain))
    assert [client.accuracy_after for client in records[0].clients] == accuracy


def test_there_is_no_model_for_newcomers(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"a model for a client that never trained .method `local` has none"):
        build_experiment(tiny_settings("method=local", "unseen_domain=fonts", "client_share=0.05"))
