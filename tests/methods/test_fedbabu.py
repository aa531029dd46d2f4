"""FedBABU: who trains what, and when."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext, Downlink
from fedml_dapper.methods.catalogue.fedbabu import FedBABU, FedBABUParams

HEAD = {"predictor.weight", "predictor.bias"}


def fedbabu(fedavg: Experiment, training: dict[str, Any] | None = None, **values: Any) -> Experiment:
    args = fedavg.method.problem.training.model_copy(update=training or {})
    return replace(fedavg, method=FedBABU(FedBABUParams(**values), replace(fedavg.method.problem, training=args)))


@pytest.fixture(scope="module")
def trained(fedavg: Experiment) -> tuple[Experiment, Server, ClientSide]:
    """Two rounds with much weight decay."""
    experiment = fedbabu(fedavg, {"weight_decay": 0.1})
    server, clients = Server(experiment), ClientSide(experiment)
    for _ in range(2):
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
    return experiment, server, clients


def own_model(
    experiment: Experiment, downlink: Downlink, **options: Any
) -> tuple[dict[str, Tensor], ClientContext]:  # fmt: skip
    client = ClientContext(experiment.profiles[0], experiment.clients[0], **options)
    return experiment.method.personal_model(client, downlink).state_dict(), client


def test_head_is_the_initial_one_after_any_round_and_never_travels(
    trained: tuple[Experiment, Server, ClientSide],
) -> None:
    experiment, server, clients = trained
    initial, downlink = experiment.method.problem.backbone.state_dict(), server.downlink(0)
    upload = clients.update(downlink, experiment.clients[0])
    assert downlink.weights.keys() == upload.weights.keys() == initial.keys() - HEAD
    for name in HEAD:
        assert torch.equal(server.state.weights[name], initial[name])
        assert all(torch.equal(memory.recall("personal")[name], initial[name]) for memory in clients.memories.values())
    assert all(not torch.equal(tensor, downlink.weights[name]) for name, tensor in upload.weights.items())


def test_body_trains_by_sgd_under_the_fixed_head(fedavg: Experiment) -> None:
    experiment = fedbabu(fedavg, {"weight_decay": 0.1})
    upload = ClientSide(experiment).update(Server(experiment).downlink(0), experiment.clients[0])
    model, args = copy.deepcopy(experiment.method.problem.backbone).train(), experiment.method.problem.training
    body = [parameter for name, parameter in model.named_parameters() if name not in HEAD]
    optimizer = torch.optim.SGD(body, args.learning_rate, args.momentum, weight_decay=0.1)
    for images, labels in experiment.clients[0].batches(1, 1):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    expected = model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in upload.weights.items())


def test_at_learning_rate_0_the_body_stays(fedavg: Experiment) -> None:
    experiment = fedbabu(fedavg, {"learning_rate": 0.0})
    upload = ClientSide(experiment).update(Server(experiment).downlink(0), experiment.clients[0])
    parameters = dict(experiment.method.problem.backbone.named_parameters())
    assert all(torch.equal(upload.weights[name], tensor) for name, tensor in parameters.items() if name not in HEAD)


def test_fine_tuning_is_an_epoch_of_sgd_that_repeats_and_leaves_no_trace(
    trained: tuple[Experiment, Server, ClientSide],
) -> None:
    experiment, server, clients = trained
    method, downlink, steps = experiment.method, server.downlink(0), list[int]()
    memory = copy.deepcopy(clients.memories[0])
    tuned, client = own_model(experiment, downlink, memory=memory, on_step=lambda done, total: steps.append(done))
    again, _ = own_model(experiment, downlink)
    assert all(torch.equal(tensor, again[name]) for name, tensor in tuned.items())
    assert steps == []
    assert client.memory.values == {}
    recalled = clients.memories[0].tensors
    assert client.memory.tensors.keys() == recalled.keys()
    assert all(torch.equal(tensor, recalled[name]) for name, tensor in client.memory.tensors.items())

    model, args = method.global_model(server.state).train(), method.problem.training
    optimizer = torch.optim.SGD(model.parameters(), args.learning_rate, args.momentum, weight_decay=0.1)
    for images, labels in experiment.clients[0].batches(3, 1):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert all(torch.equal(tensor, tuned[name]) for name, tensor in model.state_dict().items())


def test_of_what_is_fine_tuned(trained: tuple[Experiment, Server, ClientSide]) -> None:
    experiment, server, _ = trained
    downlink, weights = server.downlink(0), server.state.weights

    def changed(**values: Any) -> set[str]:
        state, _ = own_model(fedbabu(experiment, **values), downlink)
        return {name for name, tensor in state.items() if not torch.equal(tensor, weights[name])}

    assert changed() == weights.keys()
    assert changed(finetune="head", finetune_epochs=2) == HEAD
    assert changed(finetune_epochs=0) == set()


@pytest.mark.parametrize("setting", [{"finetune": "body"}, {"finetune_epochs": -1}])
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.fedbabu"):
        FedBABU.check_params(setting)
