"""Masked cross-entropy and static BatchNorm of HeteroFL and FedRolex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedml_dapper.config import Settings
from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import ClientContext, Upload
from fedml_dapper.methods.contract.batchnorm import recalibrate, running_statistics
from fedml_dapper.methods.parts.masked_classes import zeroed
from fedml_dapper.methods.parts.scaler import Scalers, Shares
from fedml_dapper.pruning import PruningPlan

SettingsFactory = Callable[..., Settings]
FEW = ("method=heterofl", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.05")
GROUPED = ("scope=grouped", "epochs=1")
NO_DECAY = "weight_decay=0"


def without_classes(data: ClientData, *absent: int) -> ClientData:
    kept = torch.tensor([label not in absent for label in data.samples.labels.tolist()])
    return data.take(kept.nonzero().flatten())


def update(experiment: Experiment, data: ClientData) -> tuple[Server, Upload]:
    server = Server(experiment)
    weakest = max(experiment.profiles, key=lambda profile: profile.ratio)
    data = replace(data, client_id=weakest.client_id)
    return server, experiment.method.local_update(ClientContext(weakest, data), server.downlink(weakest.client_id))


def test_masked_loss_by_hand() -> None:
    logits = torch.tensor([[2.0, 5.0, 1.0]], requires_grad=True)
    loss = F.cross_entropy(zeroed(logits, torch.tensor([False, True, False])), torch.tensor([0]))
    assert loss.item() == pytest.approx(0.407606)  # -log(e^2 / (e^2 + e^0 + e^1))
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0


def test_absent_classes_are_not_trained_unless_told_otherwise(tiny_settings: SettingsFactory) -> None:
    moved = []
    for masked in ("true", "false"):
        switch = f"dapper_args.params.heterofl={{masked_loss: {masked}}}"
        experiment = build_experiment(tiny_settings(*FEW, *GROUPED, NO_DECAY, switch))
        data = without_classes(experiment.clients[0], 3, 7)
        server, upload = update(experiment, data)
        difference = upload.weights["predictor.bias"] - server.state.weights["predictor.bias"]
        moved.append([index for index in range(10) if difference[index] != 0])
    assert moved == [sorted(set(data.samples.labels.tolist())), list(range(10))]
    assert not {3, 7} & set(moved[0])


def test_rows_of_absent_classes_are_left_out_of_the_average(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, *GROUPED))
    server, method = Server(experiment), experiment.method
    datas = [without_classes(experiment.clients[0], 3, 7), without_classes(experiment.clients[1], 7)]
    uploads = [
        method.local_update(ClientContext(experiment.profiles[data.client_id], data), server.downlink(data.client_id))
        for data in datas
    ]
    before, aggregation = dict(server.state.weights), method.aggregation(server.state)
    for upload in uploads:
        method.check_extras(server.state, upload)
        aggregation.add(upload)
    aggregation.close()
    bias, counts = server.state.weights["predictor.bias"], [upload.num_samples for upload in uploads]
    sent = [upload.weights["predictor.bias"] for upload in uploads]
    mean = (counts[0] * sent[0] + counts[1] * sent[1]) / sum(counts)
    both = sorted(set(datas[0].samples.labels.tolist()) & set(datas[1].samples.labels.tolist()))
    assert both
    torch.testing.assert_close(bias[both], mean[both])
    assert bias[3] == sent[1][3] != mean[3]
    assert bias[7] == before["predictor.bias"][7]  # nobody's
    widest = max(uploads, key=lambda upload: upload.weights["predictor.weight"].shape[1])
    if widest is uploads[1]:
        assert torch.equal(server.state.weights["predictor.weight"][3], uploads[1].weights["predictor.weight"][3])
    assert torch.equal(server.state.weights["predictor.weight"][7], before["predictor.weight"][7])


def test_uploads_have_to_say_which_classes_they_hold(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, *GROUPED))
    server, upload = update(experiment, experiment.clients[0])
    for extras in ({}, {"classes": torch.ones(9, dtype=torch.bool)}, {"classes": torch.ones(10)}):
        with pytest.raises(ProtocolError, match="one truth value for each of 10"):
            experiment.method.check_extras(server.state, replace(upload, extras=extras))


def test_layers_that_nothing_normalises_are_scaled_in_training(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, "scope=grouped", "model=lenet5", "width=6"))
    method, server = experiment.method, Server(experiment)
    weakest = max(experiment.profiles, key=lambda profile: profile.ratio)
    downlink = server.downlink(weakest.client_id)
    client = ClientContext(weakest, replace(experiment.clients[0], client_id=weakest.client_id))
    first, second = (downlink.weights[f"hidden.{place}.bias"].numel() / full for place, full in ((0, 120), (2, 84)))
    assert first < 0.9
    assert second < 0.9
    model, by_hand = (method.load(client, downlink).train() for _ in range(2))
    batch = next(iter(client.data.batches(1, 1)))
    features = by_hand.pool2(by_hand.bn2(by_hand.conv2(by_hand.pool1(by_hand.bn1(by_hand.conv1(batch.inputs))))))
    hidden = torch.relu(by_hand.hidden[0](features.flatten(1)) / first)
    logits = by_hand.predictor(torch.relu(by_hand.hidden[2](hidden) / second))
    loss = method.objective(client, downlink)
    present = torch.zeros(10, dtype=torch.bool)
    present[client.data.samples.labels] = True
    torch.testing.assert_close(loss(model, batch), F.cross_entropy(logits.masked_fill(~present, 0), batch.targets))
    assert not any(layer._forward_hooks for layer in model.modules())  # and in testing nothing is


@pytest.mark.parametrize("norm", ["batch", "group", "standardised"])
def test_layers_that_are_normalised_have_no_scaler(tiny_settings: SettingsFactory, norm: str) -> None:
    experiment = build_experiment(tiny_settings(*FEW, "scope=grouped", f"norm={norm}", "width=8"))
    plan = experiment.method.plan(Server(experiment).state, max(experiment.profiles, key=lambda p: p.ratio).client_id)
    assert plan.kept
    problem = experiment.method.problem
    assert Scalers.of(problem.backbone, problem.example, problem.layout).shares(problem.layout, plan) == Shares()


def test_statistics_are_measured_after_training_unless_tracked(tiny_settings: SettingsFactory) -> None:
    uploads = []
    for choice in ("recalibrate", "slim"):
        switch = f"dapper_args.params.heterofl={{bn_statistics: {choice}}}"
        experiment = build_experiment(tiny_settings(*FEW, *GROUPED, switch))
        uploads.append(update(experiment, experiment.clients[0])[1])
    measured, tracked = uploads
    data = replace(experiment.clients[0], client_id=measured.client_id)
    model = experiment.method.local_model(measured.plan)
    model.load_state_dict(tracked.weights)
    expected = {**tracked.weights, **recalibrate(model, data, experiment.device)}
    assert any(not torch.equal(tensor, tracked.weights[name]) for name, tensor in expected.items())
    assert all(torch.equal(tensor, measured.weights[name]) for name, tensor in expected.items())


@pytest.mark.nightly
def test_the_dense_model_s_statistics_are_measured_on_all_clients_before_every_test(
    tiny_settings: SettingsFactory,
) -> None:
    experiments = [
        build_experiment(tiny_settings(*FEW, *GROUPED, f"dapper_args.params.heterofl={{bn_statistics: {choice}}}"))
        for choice in ("dense", "slim")
    ]
    (dense, dense_records), (slim, slim_records) = (simulate(experiment) for experiment in experiments)
    experiment, server, other = experiments[0], dense.state.weights, slim.state.weights
    changed = {name for name, tensor in server.items() if not torch.equal(tensor, other[name])}
    assert changed == set(running_statistics(experiment.method.problem.backbone))
    model = experiment.method.local_model(PruningPlan({}))
    model.load_state_dict(other)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    with torch.no_grad():
        for client in experiment.clients:
            for batch in client:
                if len(batch.inputs) > 1:
                    model.train()(batch.inputs)
    assert all(torch.equal(tensor, server[name]) for name, tensor in running_statistics(model).items())
    assert dense_records[-1].scores != slim_records[-1].scores


def test_where_silos_keep_their_data_the_dense_model_s_statistics_are_refused(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings(*FEW, *GROUPED, "dapper_args.params.heterofl={bn_statistics: dense}")
    silos = settings.model_copy(
        update={"common_args": settings.common_args.model_copy(update={"training_type": "cross_silo"})}
    )
    with pytest.raises(ConfigError, match=r"\(`heterofl`\) needs common_args.training_type"):
        build_experiment(silos)
