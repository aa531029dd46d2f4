"""Ditto, by hand or bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext, Upload
from fedml_dapper.methods.catalogue.ditto import Ditto, DittoParams
from fedml_dapper.methods.catalogue.local import Local, LocalParams
from fedml_dapper.models import Backbone


def ditto(fedavg: Experiment, **values: Any) -> Experiment:
    return replace(fedavg, method=Ditto(DittoParams(**values), fedavg.method.problem))


def play(experiment: Experiment, rounds: int) -> tuple[Server, list[Upload]]:
    server = Server(experiment)
    clients, uploads = ClientSide(experiment, server.memories), []
    for _ in range(rounds):
        for client_id in server.round_clients():
            uploads.append(clients.update(server.downlink(client_id), experiment.clients[client_id]))
            server.receive(uploads[-1])
        server.close_round()
    return server, uploads


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


@pytest.mark.long
def test_global_path_is_fedavg_bit_for_bit(fedavg: Experiment) -> None:
    expected, plain = play(fedavg, 2)
    found, uploads = play(ditto(fedavg), 2)
    assert same(found.state.weights, expected.state.weights)
    for ours, theirs in zip(uploads, plain, strict=True):
        assert same(dict(ours.weights), dict(theirs.weights))
        assert ours.extras == {}
        assert ours.metrics.loss == theirs.metrics.loss
    own = found.memories[0].recall("own_model")
    for name in ("predictor.weight", "stem.1.running_mean"):
        assert not torch.equal(own[name], found.state.weights[name])
        assert not torch.equal(own[name], uploads[4].weights[name])


@pytest.mark.nightly
def test_without_its_term_the_personal_models_are_those_of_stand_alone_training(fedavg: Experiment) -> None:
    alone, _ = play(replace(fedavg, method=Local(LocalParams(), fedavg.method.problem)), 2)
    free, _ = play(ditto(fedavg, mu=0), 2)
    held, _ = play(ditto(fedavg), 2)
    for client_id in range(4):
        expected = alone.memories[client_id].recall("personal")
        assert same(free.memories[client_id].recall("own_model"), expected)
        assert not same(held.memories[client_id].recall("own_model"), expected)


def distance(model: Backbone, weights: dict[str, Tensor]) -> float:
    return float(sum((p.detach() - weights[name]).square().sum() for name, p in model.named_parameters()))


def test_the_larger_mu_the_nearer_they_are_to_the_global_model(fedavg: Experiment) -> None:
    received = dict(fedavg.method.problem.backbone.state_dict())
    distances = []
    for mu in (0.0, 10.0, 90.0):
        experiment = ditto(fedavg, mu=mu)
        client = ClientContext(experiment.profiles[0], experiment.clients[0])
        downlink = Server(experiment).downlink(0)
        for _ in range(3):
            experiment.method.local_update(client, downlink)
        distances.append(distance(experiment.method.personal_model(client, downlink), received))
    free, held, tight = distances
    assert tight < 0.5 * held < 0.5 * 0.75 * free


def test_a_step_with_mu_times_eta_of_one_starts_from_the_received_model(fedavg: Experiment) -> None:
    problem = fedavg.method.problem
    plain = problem.training.model_copy(update={"momentum": 0.0, "weight_decay": 0.0})
    experiment = replace(fedavg, method=Ditto(DittoParams(mu=100), replace(problem, training=plain)))
    data = fedavg.clients[0]
    client = ClientContext(fedavg.profiles[0], replace(data, samples=data.samples.take(torch.arange(16))))
    downlink = Server(experiment).downlink(0)
    elsewhere = {name: p + 0.01 for name, p in problem.backbone.state_dict().items() if p.is_floating_point()}
    client.memory.keep("own_model", {**problem.backbone.state_dict(), **elsewhere})
    model = experiment.method.personal_model(client, downlink)
    batch = next(client.data.batches(1, 1))
    torch.nn.functional.cross_entropy(model.train()(batch.inputs), batch.targets).backward()
    experiment.method.local_update(client, downlink)
    own = client.memory.recall("own_model")
    for name, parameter in model.named_parameters():  # v - eta (grad + mu (v - W)) = W - eta grad
        assert parameter.grad is not None
        torch.testing.assert_close(own[name], downlink.weights[name] - 0.01 * parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_client_uses_its_own_model_once_it_has_one(fedavg: Experiment) -> None:
    experiment = ditto(fedavg)
    method, server = experiment.method, Server(experiment)
    client = ClientContext(experiment.profiles[1], experiment.clients[1])
    downlink = server.downlink(1)
    assert same(method.personal_model(client, downlink).state_dict(), server.state.weights)
    assert client.memory.tensors == {}
    method.local_update(client, downlink)
    own = {name: tensor.clone() for name, tensor in client.memory.recall("own_model").items()}
    model = method.personal_model(client, downlink)
    assert same(model.state_dict(), own)
    with torch.no_grad():
        model.predictor.bias += 1
    assert same(client.memory.recall("own_model"), own)


def test_progress_steps_and_seconds_count_both_models(fedavg: Experiment) -> None:
    experiment = ditto(fedavg)
    data, progress = experiment.clients[0], []
    clients = ClientSide(experiment)
    clients.on_step = lambda client_id, done, total: progress.append((done, total))
    upload = clients.update(Server(experiment).downlink(0), data)
    steps = 2 * data.steps_per_epoch
    assert progress == [(done, steps) for done in range(1, steps + 1)]
    assert upload.metrics.steps == steps


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.ditto"):
        Ditto.check_params({"mu": -1})
