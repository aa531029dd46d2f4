"""PartialFed, by hand or bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext, FedAvg, Memory
from fedml_dapper.methods.catalogue.fedavg import FedAvgParams
from fedml_dapper.methods.catalogue.fedbn import FedBN, FedBNParams
from fedml_dapper.methods.catalogue.partialfed import (
    PartialFed,
    PartialFedParams,
    gumbel_noise,
    gumbel_softmax,
    kind_of,
)
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.pruning import Tensors
from fedml_dapper.randomness.seeding import Stream, torch_generator

EVERYTHING = ("convolution", "batchnorm", "hidden_linear", "classifier")


@pytest.fixture(scope="module")
def lenet(fedavg: Experiment) -> Experiment:
    """FedAvg on LeNet5, which has all kinds of layers."""
    problem = replace(fedavg.method.problem, backbone=build_backbone(ModelArgs(model="lenet5"), 10, 1))
    return replace(fedavg, method=FedAvg(FedAvgParams(), problem))


def partialfed(lenet: Experiment, **values: Any) -> Experiment:
    return replace(lenet, method=PartialFed(PartialFedParams(**values), lenet.method.problem))


def run(experiment: Experiment, rounds: int) -> tuple[Server, ClientSide]:
    server, clients = Server(experiment), ClientSide(experiment)
    for _ in range(rounds):
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
    return server, clients


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_kinds_of_layers(lenet: Experiment) -> None:
    model = lenet.method.problem.backbone
    kinds = [kind_of(model, name) for name in ("conv1", "bn2", "hidden.0", "hidden.2", "predictor")]
    assert kinds == ["convolution", "batchnorm", "hidden_linear", "hidden_linear", "classifier"]
    alexnet = build_backbone(ModelArgs(model="alexnet", width=2), 10, 1, example_image(64))
    assert kind_of(alexnet, "hidden.0.bn") == "batchnorm"
    names = {layer.name for layer in partialfed(lenet).method.candidates}
    assert names == {"bn1", "bn2", "predictor"}


def test_all_layers_loaded_is_fedavg_bit_for_bit(lenet: Experiment) -> None:
    plain, ours = run(lenet, 3)[0], run(partialfed(lenet, local=[]), 3)[0]
    assert same(plain.state.weights, ours.state.weights)


def test_batchnorm_kept_is_fedbn_bit_for_bit(lenet: Experiment) -> None:
    fedbn = replace(lenet, method=FedBN(FedBNParams(), lenet.method.problem))
    theirs, their_clients = run(fedbn, 3)
    ours, our_clients = run(partialfed(lenet, local=["batchnorm"]), 3)
    for client_id in range(4):
        last = our_clients.memories[client_id].recall("last_model")
        assert same(last, their_clients.memories[client_id].recall("personal"))
        assert len(last) == 10
    personal = fedbn.method.personal
    assert all(
        torch.equal(tensor, ours.state.weights[name])
        for name, tensor in theirs.state.weights.items()
        if name not in personal
    )


def test_nothing_loaded_trains_every_client_alone_and_all_is_uploaded(lenet: Experiment) -> None:
    experiment = partialfed(lenet, local=EVERYTHING)
    _, clients = run(experiment, 3)
    alone, downlink = ClientSide(lenet), Server(lenet).downlink(1)
    for round_ in (1, 2, 3):
        downlink = replace(downlink, weights=alone.update(replace(downlink, round=round_), lenet.clients[1]).weights)
    assert same(clients.memories[1].recall("last_model"), downlink.weights)


def test_everything_travels_and_the_server_averages_it(lenet: Experiment) -> None:
    experiment = partialfed(lenet)
    server, clients = run(experiment, 1)
    upload = clients.update(server.downlink(0), experiment.clients[0])
    assert (
        upload.weights.keys() == server.downlink(0).weights.keys() == lenet.method.problem.backbone.state_dict().keys()
    )
    assert same(server.state.weights, run(lenet, 1)[0].state.weights)


# Adaptive


def test_gumbel_softmax_by_hand() -> None:
    generator = torch.Generator().manual_seed(3)
    noise = -torch.empty(1, 2).exponential_(generator=torch.Generator().manual_seed(3)).log()
    shares = gumbel_softmax(torch.tensor([[1.0, 0.0]]), 0.5, gumbel_noise(torch.Size([1, 2]), generator))
    difference = (1.0 + float(noise[0, 0]) - float(noise[0, 1])) / 0.5
    assert float(shares[0, 0]) == pytest.approx(1 / (1 + exp(-difference)))
    assert float(shares.sum()) == pytest.approx(1)
    hot = gumbel_softmax(torch.tensor([[9.0, 0.0]]), 1e6, gumbel_noise(torch.Size([1, 2]), generator))
    assert float(hot[0, 0]) == pytest.approx(0.5, abs=1e-3)
    noise = gumbel_noise(torch.Size([20_000, 2]), generator)
    many = gumbel_softmax(torch.tensor([[1.0, 0.0]]).expand(20_000, 2), 1.0, noise)
    chosen = (many.argmax(dim=1) == 0).double().mean()  # Gumbel-max: index 0 with probability softmax(1, 0)
    assert float(chosen) == pytest.approx(0.7311, abs=0.01)


@pytest.fixture(scope="module")
def adaptive(lenet: Experiment) -> tuple[Experiment, Server, ClientSide]:
    experiment = partialfed(lenet, strategy="adaptive")
    return experiment, *run(experiment, 1)


def test_first_round_loads_everything_and_learns_no_strategy(
    lenet: Experiment, adaptive: tuple[Experiment, Server, ClientSide]
) -> None:
    _, server, clients = adaptive
    assert same(server.state.weights, run(lenet, 1)[0].state.weights)
    assert clients.memories[0].recall("strategy") == {}
    assert clients.memories[0].recall("last_model").keys() == server.state.weights.keys()


def test_strategy_descends_the_loss_of_the_mixed_model(adaptive: tuple[Experiment, Server, ClientSide]) -> None:
    """One step over the whole data by hand, gradient by central differences along one logit.

    The client kept that layer so far: it is mixed from the global model's and the last one's all the same.
    """
    experiment, server, clients = adaptive
    method, data = experiment.method, experiment.clients[0]
    one_batch = replace(data, batch_size=data.num_samples)
    client = ClientContext(experiment.profiles[0], one_batch, copy.deepcopy(clients.memories[0]))
    downlink = server.downlink(0)
    received = downlink.weights["predictor.weight"]
    last = {**client.memory.recall("last_model"), "predictor.weight": received + 0.5 * torch.randn(received.shape)}
    client.memory.keep("last_model", last)
    start = torch.zeros(7, 2)
    start[6, 1] = 0.1
    client.memory.keep("strategy", {"logits": start})
    logits = method.learn_strategy(client, downlink) - start
    assert logits.shape == (7, 2)

    images, labels = next(one_batch.batches(2, 1))
    generator = torch_generator(experiment.method.problem.seed, Stream.METHOD, 0, 2)
    noise = -torch.empty(7, 2).exponential_(generator=generator).log()
    names, position = [layer.name for layer in method.candidates], 6
    assert names[position] == "predictor"

    def loss(nudge: float) -> float:
        nudged = start.double()
        nudged[position, 0] += nudge
        shares = ((nudged + noise) / (5 * 0.965)).softmax(dim=1)[:, 0]
        state = {name: tensor.double() for name, tensor in downlink.weights.items()}
        for name, _ in method.problem.backbone.named_parameters():
            share = shares[names.index(name.rpartition(".")[0])]
            state[name] = share * state[name] + (1 - share) * last[name].double()
        model = copy.deepcopy(experiment.method.problem.backbone).double().train()
        model.load_state_dict(state)
        return float(F.cross_entropy(model(images.double()), labels).detach())

    gradient = (loss(0.01) - loss(-0.01)) / 0.02
    step = -method.problem.training.learning_rate * gradient
    assert abs(step) > 1e-4
    assert float(logits[position, 0]) == pytest.approx(step, rel=1e-2)
    assert float(logits[position, 1]) == pytest.approx(-step, rel=1e-2)


def test_what_the_strategy_keeps_is_the_last_models(adaptive: tuple[Experiment, Server, ClientSide]) -> None:
    experiment, server, clients = adaptive
    memory, downlink = copy.deepcopy(clients.memories[0]), server.downlink(0)
    logits = torch.zeros(7, 2)
    logits[3, 1] = 0.1  # bn2
    memory.keep("strategy", {"logits": logits})
    client, last = ClientContext(experiment.profiles[0], experiment.clients[0], memory), memory.recall("last_model")
    state = experiment.method.personal_model(client, downlink).state_dict()
    for name, tensor in state.items():
        source = last if name.startswith("bn2.") else downlink.weights
        assert torch.equal(tensor, source[name])


def test_weights_then_train_as_from_a_plain_load_and_any_process_can_take_over(
    lenet: Experiment, adaptive: tuple[Experiment, Server, ClientSide]
) -> None:
    experiment, server, clients = adaptive
    method, downlink, steps = experiment.method, server.downlink(0), list[int]()

    def second_round() -> tuple[Tensors, ClientContext]:
        memory = Memory({name: tensor.clone() for name, tensor in clients.memories[0].tensors.items()})
        client = ClientContext(experiment.profiles[0], experiment.clients[0], memory)
        client.on_step = lambda done, total: steps.append(done)
        return method.local_update(client, downlink).weights, client

    (weights, client), (again, _) = second_round(), second_round()
    assert same(weights, again)
    assert steps == [*range(1, len(steps) // 2 + 1)] * 2
    chosen: Tensor = client.memory.recall("strategy")["logits"]
    assert chosen.argmax(dim=1).unique().tolist() == [0, 1]  # some layers are loaded, some are kept

    last = clients.memories[0].recall("last_model")
    kept = [layer for layer, keep in zip(method.candidates, chosen.argmax(dim=1), strict=True) if keep]
    start = {**downlink.weights, **{name: last[name] for layer in kept for name in layer.tensors}}
    plain = ClientSide(lenet).update(replace(downlink, weights=start), lenet.clients[0])
    assert same(weights, plain.weights)
    assert same(client.memory.recall("last_model"), plain.weights)


@pytest.mark.parametrize("setting", [{"local": ["conv"]}, {"temperature": 0}, {"strategy": "both"}])
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.partialfed"):
        PartialFed.check_params(setting)
