"""FedAvg, which all others are measured by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.federation import ClientSide, Server, build_experiment, simulate
from fedml_dapper.methods import Upload

from .sample_counts import say_that_clients_hold

SettingsFactory = Callable[..., Settings]


COUNTS = (10, 250, 3, 77, 41)
"""Samples per client; the embedded suite's clients all hold the same number."""


def aggregated(settings: Settings) -> tuple[list[Upload], dict[str, Tensor]]:
    """A round's uploads, said to stem from ``COUNTS`` samples, and the global model they make."""
    experiment = build_experiment(settings)
    server, clients = Server(experiment), ClientSide(experiment)
    uploads = []
    say_that_clients_hold(server, COUNTS)
    for client_id, count in zip(server.round_clients(), COUNTS, strict=True):
        upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
        uploads.append(replace(upload, num_samples=count))
        server.receive(uploads[-1])
    server.close_round()
    return uploads, server.state.weights


@pytest.mark.parametrize(("choice", "weights"), [("samples", COUNTS), ("uniform", (1,) * 5)])
def test_round_is_the_weighted_mean_of_local_sgd(
    tiny_settings: SettingsFactory, choice: str, weights: tuple[int, ...]
) -> None:
    settings = tiny_settings("method=fedavg", "epochs=1", f"aggregation_weights={choice}")
    uploads, result = aggregated(settings)
    for name, tensor in result.items():
        if tensor.is_floating_point():
            pairs = zip(uploads, weights, strict=True)
            total = sum((upload.weights[name].double() * weight for upload, weight in pairs), torch.zeros(()).double())
            assert torch.equal(tensor, (total / sum(weights)).float())
        else:
            assert int(tensor) == max(int(upload.weights[name]) for upload in uploads)


def test_everyone_trains_the_full_model_whatever_the_level(tiny_settings: SettingsFactory) -> None:
    _, records = simulate(build_experiment(tiny_settings("method=fedavg", "comm_round=1")))
    assert len({client.params for client in records[0].clients}) == 1
    assert {client.level for client in records[0].clients} == {1, 2, 3, 4, 5}
