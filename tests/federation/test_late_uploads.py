"""Uploads that count in a later round, recomputed by hand from what clients sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment
from fedml_dapper.federation.round.late_uploads import arriving, late_upload
from fedml_dapper.methods import TrainingMetrics, Upload
from fedml_dapper.pruning import ChannelLayout, Tensors, TensorSpec, write_back

SettingsFactory = Callable[..., Settings]
ALL_BUT_ONE = {"over_selection": 1.25, "late": "kept"}  # five at work, four uploads close a round
FLEET = {"devices": ["raspberry_pi_5", "phone_middle"], "network": "flash_p50", "round_s": 60, "clock": ALL_BUT_ONE}
FEW = ("image_size=16", "client_share=0.05", "epochs=1", "client_num_in_total=5", "client_num_per_round=4")


def build(tiny_settings: SettingsFactory, *overrides: str) -> Experiment:
    return build_experiment(tiny_settings(*FEW, f"dapper_args.fleet={json.dumps(FLEET)}", *overrides))


def play(server: Server, clients: ClientSide, experiment: Experiment) -> dict[int, Upload]:
    """One round; every upload that was made in it."""
    uploads = {}
    for client_id in server.round_clients():
        uploads[client_id] = clients.update(server.downlink(client_id), experiment.clients[client_id])
        server.receive(uploads[client_id])
    server.close_round()
    return uploads


def averaged(experiment: Experiment, uploads: list[Upload], before: Tensors, name: str) -> Tensor:
    """The mean over those that hold each coordinate, by numbers of samples, in full shape."""
    layout, shape = experiment.method.problem.layout, before[name]
    total, weight = torch.zeros_like(shape, dtype=torch.float64), torch.zeros_like(shape, dtype=torch.float64)
    for upload in uploads:
        part = {name: upload.weights[name].double()}
        zeros = {name: torch.zeros_like(total)}
        total += upload.num_samples * write_back(zeros, part, layout, upload.plan)[name]
        held = {name: torch.ones_like(part[name])}
        weight += upload.num_samples * write_back(zeros, held, layout, upload.plan)[name]
    return torch.where(weight > 0, total / weight, before[name].double())


@pytest.mark.parametrize(
    ("method", "norm"), [("fedavg", "standardised"), ("heterofl", "standardised"), ("fedavg", "batch")]
)  # HeteroFL with nothing but its slim uploads
def test_a_late_change_is_added_to_the_model_of_the_round_in_which_it_arrives(
    tiny_settings: SettingsFactory, method: str, norm: str
) -> None:
    plain = (f"norm={norm}", "dapper_args.params.heterofl={masked_loss: false}", "aggregation_weights=samples")
    experiment = build(tiny_settings, f"method={method}", *plain)
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)
    before = [dict(server.state.weights)]
    made: list[dict[int, Upload]] = []
    for _ in range(2):
        made.append(play(server, clients, experiment))
        before.append(dict(server.state.weights))
    record = server.last_record
    assert record is not None
    assert record.clock is not None
    [late] = record.clock.arrived
    passed = record.round - late.begun
    assert late.client in {client.client for client in record.clients}
    assert late.client not in made[-1]
    uploads = [made[-1][one.client] for one in record.clients if one.client != late.client]
    then, now, upload = before[late.begun - 1], before[-2], made[late.begun - 1][late.client]
    layout = experiment.method.problem.layout
    for name, after in server.state.weights.items():
        if name.endswith("num_batches_tracked"):
            continue
        start = write_back(then, {name: upload.weights[name]}, layout, upload.plan)[name] - then[name]
        kept = torch.zeros_like(then[name])
        kept = write_back({name: kept}, {name: torch.ones_like(upload.weights[name])}, layout, upload.plan)[name]
        moved = now[name] + start / sqrt(1 + passed)
        if "running_" in name:  # measured values are mixed; of variances that only fell, the change would be too much
            moved = now[name] + (upload.weights[name] - now[name]) / sqrt(1 + passed)
            assert not name.endswith("var") or after.min() > 0
        slim = moved[kept.bool()].reshape(upload.weights[name].shape)
        arrived = replace(upload, weights={name: slim})
        expected = averaged(experiment, [*uploads, arrived], now, name)
        torch.testing.assert_close(after.double(), expected, rtol=1e-5, atol=1e-6)


def test_of_true_and_false_it_counts_what_changed() -> None:
    layout = ChannelLayout({}, {"mask": TensorSpec((4,), torch.bool, False, 0)})
    then, sent, now = (
        {"mask": torch.tensor(entries, dtype=torch.bool)} for entries in ([1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1])
    )
    upload = Upload(1, 0, 10, sent, TrainingMetrics(1.0, 1, 1.0))
    arrived = arriving(late_upload(upload, then, layout, bytes_down=0), 3, now, layout)
    assert arrived.weights["mask"].tolist() == [True, False, False, True]


def test_whoever_is_at_work_is_not_chosen_and_not_awaited(tiny_settings: SettingsFactory) -> None:
    experiment = build(tiny_settings, "method=fedavg")
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)
    play(server, clients, experiment)
    assert server.last_record is not None
    assert server.last_record.clock is not None
    [under_way] = server.last_record.clock.under_way
    assert under_way.begun == 1
    assert under_way.client not in server.round_clients()
    upload = clients.update(server.downlink(under_way.client), experiment.clients[under_way.client])
    with pytest.raises(ProtocolError, match=f"client {under_way.client} is not awaited"):
        server.receive(upload)


def test_a_late_upload_that_is_not_finite_is_laid_to_its_sender(tiny_settings: SettingsFactory) -> None:
    experiment = build(tiny_settings, "method=fedavg", "norm=standardised")
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)
    for client_id in server.round_clients():
        upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
        is_late = client_id in server._late._times.under_way  # type: ignore[union-attr]
        ruined = {name: tensor * torch.nan for name, tensor in upload.weights.items()}
        server.receive(replace(upload, weights=ruined) if is_late else upload)
        late = client_id if is_late else None
        if late is not None:
            sender = late
    assert server.close_round().model_is_finite
    play(server, clients, experiment)
    assert server.last_record is not None
    assert not server.last_record.model_is_finite
    assert server.last_record.not_finite == (sender,)


def test_levels_whose_statistics_are_apart_take_none_that_come_late(tiny_settings: SettingsFactory) -> None:
    few = ("method=heterofl", "dapper_args.params.heterofl={masked_loss: false, bn_statistics: by_level}")
    with pytest.raises(ConfigError, match="a method that takes late uploads"):
        build(tiny_settings, *few)
