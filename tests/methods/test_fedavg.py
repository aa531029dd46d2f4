"""METHODS B.1."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import ClientSide, Server, build_experiment, simulate

SettingsFactory = Callable[..., Settings]


def test_round_is_the_sample_weighted_mean_of_local_sgd(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=fedavg", "comm_round=1"))
    server, _ = simulate(experiment)
    fresh, clients = Server(experiment), ClientSide(experiment)
    fresh.round_clients()
    uploads = [clients.update(fresh.downlink(data.client_id), data) for data in experiment.clients]
    total = sum(upload.num_samples for upload in uploads)
    for name, tensor in server.state.weights.items():
        if tensor.is_floating_point():
            mean = sum((u.weights[name].double() * u.num_samples for u in uploads), torch.zeros(()).double()) / total
            assert torch.equal(tensor, mean.float())
        else:
            assert int(tensor) == max(int(upload.weights[name]) for upload in uploads)


def test_uniform_weights_ignore_sample_counts(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings("method=fedavg", "comm_round=1", "aggregation_weights=uniform")
    experiment = build_experiment(settings)
    server, _ = simulate(experiment)
    fresh, clients = Server(experiment), ClientSide(experiment)
    fresh.round_clients()
    uploads = [clients.update(fresh.downlink(data.client_id), data) for data in experiment.clients]
    mean = torch.stack([upload.weights["predictor.bias"].double() for upload in uploads]).sum(0) / 10
    assert torch.equal(server.state.weights["predictor.bias"], mean.float())


def test_everyone_trains_the_full_model_whatever_the_level(tiny_settings: SettingsFactory) -> None:
    _, records = simulate(build_experiment(tiny_settings("method=fedavg", "comm_round=1")))
    assert len({client.params for client in records[0].clients}) == 1
    assert {client.level for client in records[0].clients} == {1, 2, 3, 4, 5}
