"""FedBN: what stays at home, and what does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedml_dapper.config import ModelArgs, Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import ClientContext
from fedml_dapper.methods.catalogue.fedbn import FedBN, FedBNParams
from fedml_dapper.models import build_backbone, example_image

SettingsFactory = Callable[..., Settings]


def two_rounds(experiment: Experiment) -> tuple[Server, ClientSide]:
    server, clients = Server(experiment), ClientSide(experiment)
    for _ in range(2):
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
    return server, clients


@pytest.fixture(scope="module")
def trained(fedavg: Experiment) -> tuple[Experiment, Server, ClientSide]:
    experiment = replace(fedavg, method=FedBN(FedBNParams(), fedavg.method.problem))
    return experiment, *two_rounds(experiment)


@pytest.mark.parametrize(("name", "norms"), [("resnet10", 12), ("alexnet", 7), ("lenet5", 2)])
def test_batchnorm_is_found_by_layer_type(fedavg: Experiment, name: str, norms: int) -> None:
    model = build_backbone(ModelArgs(model=name, width=2), 10, 1, example_image(64))
    personal = FedBN(FedBNParams(), replace(fedavg.method.problem, backbone=model)).personal
    of_norms = {f"{name}.running_var" for name, layer in model.named_modules() if "BatchNorm" in type(layer).__name__}
    assert {key for key in personal if key.endswith("running_var")} == of_norms
    assert len(of_norms) == norms
    assert len(personal) == 5 * norms
    assert {"stages.1.0.shortcut.1.weight", "hidden.0.bn.running_mean", "bn1.bias"} & personal


def test_clients_share_all_but_batchnorm(trained: tuple[Experiment, Server, ClientSide]) -> None:
    experiment, server, clients = trained
    method, downlink = experiment.method, server.downlink(0)
    initial = method.problem.backbone.state_dict()
    assert len(method.personal) == 60
    assert downlink.weights.keys() == initial.keys() - method.personal
    upload = ClientSide(experiment).update(downlink, experiment.clients[0])
    assert upload.weights.keys() == downlink.weights.keys()
    assert all(torch.equal(server.state.weights[name], initial[name]) for name in method.personal)
    models = [
        method.load(ClientContext(profile, data, clients.memories[profile.client_id]), server.downlink(0)).state_dict()
        for profile, data in zip(experiment.profiles[:2], experiment.clients, strict=False)
    ]
    for name, tensor in models[0].items():
        counter = name.endswith("num_batches_tracked")
        assert torch.equal(tensor, models[1][name]) == (name not in method.personal) or counter
    mine = clients.memories[1].recall("personal")
    assert all(torch.equal(models[1][name], tensor) for name, tensor in mine.items())


def test_without_batchnorm_it_refuses_to_be_fedavg(fedavg: Experiment) -> None:
    bare = copy.deepcopy(fedavg.method.problem.backbone)
    for name, layer in list(bare.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            bare.set_submodule(name, nn.Identity())
    with pytest.raises(ConfigError, match=r"`fedbn` keeps BatchNorm at home, and .* has none"):
        FedBN(FedBNParams(), replace(fedavg.method.problem, backbone=bare))


def test_newcomers_measure_statistics_on_their_images(trained: tuple[Experiment, Server, ClientSide]) -> None:
    experiment, server, _ = trained
    newcomer, method, weights = experiment.clients[2], experiment.method, server.state.weights
    state = method.adapted_model(server.state, newcomer, experiment.device).state_dict()
    stem = method.global_model(server.state).stem[0]
    means = [stem(images).mean(dim=(0, 2, 3)) for images, _ in newcomer if len(images) > 1]
    torch.testing.assert_close(state["stem.1.running_mean"], torch.stack(means).mean(dim=0))
    measured = {name for name, tensor in state.items() if not torch.equal(tensor, weights[name])}
    assert measured == {name for name in state if "running" in name}
    shuffled = newcomer.samples.labels.roll(1)
    relabelled = replace(newcomer, samples=replace(newcomer.samples, labels=shuffled))
    again = method.adapted_model(server.state, relabelled, experiment.device).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())


def test_one_more_pass_over_the_images_changes_no_statistic(trained: tuple[Experiment, Server, ClientSide]) -> None:
    experiment, server, _ = trained
    newcomer = experiment.clients[2]
    model = experiment.method.adapted_model(server.state, newcomer, experiment.device)
    once = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moved = replace(server.state, weights=once)
    again = experiment.method.adapted_model(moved, newcomer, experiment.device).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in once.items())


def test_domains_are_scored_by_clients_own_models(tiny_settings: SettingsFactory) -> None:
    few = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1", "comm_round=1")
    experiment = build_experiment(tiny_settings("method=fedbn", "personal=true", "unseen_domain=fonts", *few))
    _, records = simulate(experiment)
    scores = records[0].scores
    assert scores is not None
    assert scores.unseen_accuracy is not None
    assert records[0].personal is not None
