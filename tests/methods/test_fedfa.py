"""FedFA, by hand or bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext, FedAvg, Upload
from fedml_dapper.methods.catalogue.fedavg import FedAvgParams
from fedml_dapper.methods.catalogue.fedfa import FeatureAugmentation, FedFA, FedFAParams, augmentations, client_gamma
from fedml_dapper.models import build_backbone, example_image
from fedml_dapper.pruning import trace_layout

from .sample_counts import say_that_clients_hold

COUNTS = (10, 250, 3, 77)
"""Samples per client in place of the embedded suite's, which are all alike."""


def fedfa(fedavg: Experiment, **values: Any) -> Experiment:
    return replace(fedavg, method=FedFA(FedFAParams(**values), fedavg.method.problem))


def on_backbone(fedavg: Experiment, name: str, width: int, input_size: int = 32) -> Experiment:
    model = build_backbone(ModelArgs(model=name, width=width), 10, 1, example_image(input_size))
    problem = replace(fedavg.method.problem, backbone=model, example=example_image(input_size))
    return replace(fedavg, method=FedAvg(FedAvgParams(), problem))


def run(experiment: Experiment, rounds: int) -> tuple[Server, list[Upload]]:
    """The server after so many rounds, and the last one's uploads."""
    server, clients = Server(experiment), ClientSide(experiment)
    say_that_clients_hold(server, COUNTS)
    for _ in range(rounds):
        uploads = []
        for client_id in server.round_clients():
            upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
            uploads.append(replace(upload, num_samples=COUNTS[client_id]))
            server.receive(uploads[-1])
        server.close_round()
    return server, uploads


def layer(probability: float = 1.0, seed: int = 5) -> FeatureAugmentation:
    augmentation = FeatureAugmentation(2, probability, momentum=0.99).train()
    augmentation.generator = torch.Generator().manual_seed(seed)
    return augmentation


def test_gamma_by_hand() -> None:
    torch.testing.assert_close(client_gamma(torch.tensor([0.3, 0.3, 0.3])), torch.ones(3))
    torch.testing.assert_close(client_gamma(torch.zeros(3)), torch.ones(3))
    by_hand = torch.tensor([0.8, 1.2])  # q = (1/2, 3/4), C q / sum(q) = 2 q / 1.25
    torch.testing.assert_close(client_gamma(torch.tensor([1.0, 3.0])), by_hand, atol=1e-5, rtol=0)


def test_augmentation_by_hand() -> None:
    maps = torch.tensor([[[[1.0, 3.0]], [[0.0, 8.0]]], [[[4.0, 8.0]], [[2.0, 2.0]]]])  # (B, C, H, W) = (2, 2, 1, 2)
    augmentation = layer()
    augmentation.shared_mean_variance.copy_(torch.tensor([1.0, 3.0]))
    moved = augmentation(maps).numpy()
    draws = torch.Generator().manual_seed(5)
    torch.rand((), generator=draws)  # the decision
    noise_mean, noise_std = (torch.randn(2, 2, generator=draws).numpy() for _ in range(2))
    mean, std = np.array([[2.0, 4.0], [6.0, 2.0]]), np.array([[1.0, 4.0], [2.0, 0.0]])
    # batch variances: of means ((2-4)^2 + (6-4)^2)/2 = 4 and 1, of deviations 0.25 and 4
    new_mean = mean + noise_mean * np.sqrt(np.array([1.8, 2.2]) * [4.0, 1.0])
    new_std = std + noise_std * np.sqrt(2 * np.array([0.25, 4.0]))
    normalised = np.array([[[[-1.0, 1.0]], [[-1.0, 1.0]]], [[[-1.0, 1.0]], [[0.0, 0.0]]]])
    expected = normalised * new_std[:, :, None, None] + new_mean[:, :, None, None]
    np.testing.assert_allclose(moved, expected, atol=5e-3)
    np.testing.assert_allclose(augmentation.running_mean, 0.01 * np.array([4.0, 3.0]), atol=1e-6)
    np.testing.assert_allclose(augmentation.running_std, 0.99 + 0.01 * np.array([1.5, 2.0]), atol=1e-5)


def test_evaluation_changes_nothing() -> None:
    augmentation, maps = layer().eval(), torch.randn(4, 2, 3, 3)
    before = {name: tensor.clone() for name, tensor in augmentation.state_dict().items()}
    assert augmentation(maps) is maps
    assert all(torch.equal(tensor, before[name]) for name, tensor in augmentation.state_dict().items())


def test_statistics_are_tracked_in_the_steps_that_augment() -> None:
    augmentation, maps = layer(0.5), torch.randn(3, 2, 2, 2)
    seen = set()
    for _ in range(20):
        before = augmentation.running_mean.clone()
        augmented = not torch.equal(augmentation(maps), maps)
        assert torch.equal(augmentation.running_mean, before) is not augmented
        seen.add(augmented)
    assert seen == {True, False}


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_share_of_augmented_batches(probability: float) -> None:
    augmentation, maps = layer(probability), torch.randn(3, 2, 2, 2)
    share = np.mean([not torch.equal(augmentation(maps), maps) for _ in range(400)])
    assert share == pytest.approx(probability, abs=0.06 if 0 < probability < 1 else 0)


def test_gradients_are_finite_where_channels_are_dead() -> None:
    maps = torch.zeros(4, 2, 3, 3, requires_grad=True)
    layer()(maps).square().sum().backward()
    assert maps.grad is not None
    assert bool(torch.isfinite(maps.grad).all())


@pytest.mark.parametrize(
    ("name", "width", "input_size", "channels"),
    [
        ("resnet10", 4, 32, [4, 4, 8, 16, 32]),
        ("alexnet", 2, 64, [2, 6, 12, 8, 8]),
        ("lenet5", 6, 32, [6, 16]),
    ],
)
def test_layers_stand_behind_every_stage_and_rename_nothing(
    fedavg: Experiment, name: str, width: int, input_size: int, channels: list[int]
) -> None:
    plain = on_backbone(fedavg, name, width, input_size)
    backbone, model = plain.method.problem.backbone, fedfa(plain).method.problem.backbone
    layers = augmentations(model)
    assert [len(layer.running_mean) for layer in layers.values()] == channels
    ours, theirs = model.state_dict(), backbone.state_dict()
    assert [key for key in ours if key.rpartition(".")[0] not in layers] == list(theirs)
    images = torch.randn(2, 3, input_size, input_size)
    assert torch.equal(model.eval()(images), backbone.eval()(images))
    sides: list[int] = []
    for augmentation in layers.values():
        augmentation.register_forward_pre_hook(lambda _layer, inputs: sides.append(inputs[0].shape[-1]))
    model(images)
    pooled = {"resnet10": [32, 32, 16, 8, 4], "alexnet": [7, 3, 3, 3, 1], "lenet5": [14, 5]}
    assert sides == pooled[name]


@pytest.mark.parametrize("scope", ["internal", "grouped"])
def test_tracing_sees_the_plain_network(fedavg: Experiment, scope: Any) -> None:
    method = fedfa(fedavg).method
    for layer in method.problem.backbone.modules():
        if isinstance(layer, FeatureAugmentation):
            layer.probability = 0.0  # while active it compares channels, of which fewer change the rest
    ours, theirs = (trace_layout(m.problem.backbone, m.problem.example, scope) for m in (method, fedavg.method))
    assert ours.groups == theirs.groups
    assert {name: ours.tensors[name] for name in theirs.tensors} == theirs.tensors
    assert method.footprint(0.8).parameters == fedavg.method.footprint(0.8).parameters
    assert method.footprint(0.8).macs == fedavg.method.footprint(0.8).macs
    assert method.footprint(0.8).bytes_up - fedavg.method.footprint(0.8).bytes_up == 4 * 4 * (8 + 8 + 16 + 32 + 64)


@pytest.mark.parametrize("name", ["resnet10", "lenet5"])
def test_at_probability_0_it_is_fedavg_bit_for_bit(fedavg: Experiment, name: str) -> None:
    plain = on_backbone(fedavg, name, 6)
    expected, ours = (run(experiment, 2)[0].state.weights for experiment in (plain, fedfa(plain, probability=0)))
    assert all(torch.equal(tensor, ours[name]) for name, tensor in expected.items())
    augmented = run(fedfa(plain), 1)[0].state.weights
    once = run(plain, 1)[0].state.weights
    assert not all(torch.equal(tensor, augmented[name]) for name, tensor in once.items())


@pytest.fixture(scope="module")
def lenet(fedavg: Experiment) -> Experiment:
    return on_backbone(fedavg, "lenet5", 6)


def test_r_is_the_variance_across_clients_channel_by_channel(lenet: Experiment) -> None:
    experiment = fedfa(lenet)
    server, uploads = run(experiment, 2)
    for name in ("pool1.2", "pool2.2"):
        for statistic in ("mean", "std"):
            sent = torch.stack([upload.weights[f"{name}.running_{statistic}"] for upload in uploads]).double()
            weights = torch.tensor([upload.num_samples for upload in uploads]).double()
            shared = server.state.weights[f"{name}.shared_{statistic}_variance"]
            expected = (sent - sent.mean(dim=0)).square().mean(dim=0).float()
            torch.testing.assert_close(shared, expected, atol=0, rtol=1e-5)  # they are small
            assert len(shared.unique()) > 1
            averaged = (sent * weights[:, None]).sum(dim=0) / weights.sum()
            torch.testing.assert_close(server.state.weights[f"{name}.running_{statistic}"], averaged.float())
    assert torch.equal(server.downlink(0).weights["pool1.2.shared_mean_variance"],
                       server.state.weights["pool1.2.shared_mean_variance"])  # fmt: skip


def test_noise_depends_on_client_and_round_alone(lenet: Experiment) -> None:
    experiment = fedfa(lenet, probability=1)
    method, downlink = experiment.method, Server(experiment).downlink(0)

    def first_draw(client_id: int, round_: int) -> float:
        client = ClientContext(experiment.profiles[client_id], experiment.clients[client_id])
        layers = augmentations(method.load(client, replace(downlink, round=round_)))
        generators = {id(layer.generator) for layer in layers.values()}
        assert len(generators) == 1
        generator = layers["pool1.2"].generator
        assert generator is not None
        return float(torch.rand((), generator=generator))

    assert first_draw(0, 1) == first_draw(0, 1)
    assert len({first_draw(0, 1), first_draw(0, 2), first_draw(1, 1)}) == 3
    uploads = [ClientSide(experiment).update(downlink, experiment.clients[0]).weights for _ in range(2)]
    assert all(torch.equal(tensor, uploads[1][name]) for name, tensor in uploads[0].items())


def test_a_misfit_is_refused_before_anything_changes(lenet: Experiment) -> None:
    experiment = fedfa(lenet)
    server = Server(experiment)
    upload = ClientSide(experiment).update(server.downlink(0), experiment.clients[0])
    name = "pool1.2.running_mean"
    aggregation = experiment.method.aggregation(server.state)
    with pytest.raises(ProtocolError, match=name):
        aggregation.add(replace(upload, weights={**upload.weights, name: torch.zeros(3)}))
    aggregation.add(upload)
    aggregation.close()
    assert torch.equal(server.state.weights[name], upload.weights[name])
    assert torch.equal(server.state.weights["pool1.2.shared_mean_variance"], torch.zeros(6))


def test_a_backbone_without_marked_stages_is_refused(lenet: Experiment) -> None:
    unmarked = copy.deepcopy(lenet.method.problem.backbone)
    unmarked.conv_stages = list
    with pytest.raises(ConfigError, match=r"model_args\.model: method `fedfa` .* LeNet5 marks none"):
        FedFA(FedFAParams(), replace(lenet.method.problem, backbone=unmarked))


@pytest.mark.parametrize("setting", [{"probability": 1.5}, {"momentum": 1}])
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.fedfa"):
        FedFA.check_params(setting)
