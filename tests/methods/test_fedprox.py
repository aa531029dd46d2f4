"""FedProx, by hand or bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.methods import ClientContext

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=5", "client_num_per_round=5", "client_share=0.05")


def after_a_round(settings: Settings) -> dict[str, torch.Tensor]:
    experiment = build_experiment(settings)
    server, clients = Server(experiment), ClientSide(experiment)
    for client_id in server.round_clients():
        server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
    server.close_round()
    return server.state.weights


def test_without_its_term_and_with_equal_epochs_it_is_fedavg_bit_for_bit(tiny_settings: SettingsFactory) -> None:
    off = after_a_round(
        tiny_settings("method=fedprox", "dapper_args.params.fedprox={mu: 0, level_epochs: false}", *FEW)
    )
    fedavg = after_a_round(tiny_settings("method=fedavg", *FEW))
    assert all(torch.equal(tensor, fedavg[name]) for name, tensor in off.items())
    held = after_a_round(tiny_settings("method=fedprox", "dapper_args.params.fedprox={level_epochs: false}", *FEW))
    assert any(not torch.equal(tensor, fedavg[name]) for name, tensor in held.items())


def test_first_gradient_is_fedavgs_and_later_ones_are_not(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=fedprox", *FEW))
    method, data = experiment.method, experiment.clients[0]
    client = ClientContext(experiment.profiles[0], data)
    downlink = Server(experiment).downlink(0)
    loss, model = method.objective(client, downlink), method.load(client, downlink)
    batch = next(data.batches(1, 1))
    plain = float(torch.nn.functional.cross_entropy(model(batch.inputs), batch.targets))
    assert float(loss(model, batch)) == plain
    with torch.no_grad():
        model.predictor.bias += 1
    moved = float(torch.nn.functional.cross_entropy(model(batch.inputs), batch.targets))
    assert float(loss(model, batch)) - moved == pytest.approx(0.05 * 10, rel=1e-4)


def test_weak_clients_run_fewer_epochs_on_the_full_model(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=fedprox", "epochs=5", *FEW))
    by_level = {profile.level: experiment.method.epochs(profile) for profile in experiment.profiles}
    assert by_level == {1: 5, 2: 4, 3: 3, 4: 2, 5: 1}
    weak = next(profile for profile in experiment.profiles if profile.level == 4)
    server, data = Server(experiment), experiment.clients[weak.client_id]
    server.round_clients()
    progress: list[tuple[int, int, int]] = []
    clients = ClientSide(experiment)
    clients.on_step = lambda client_id, done, total: progress.append((client_id, done, total))
    upload = clients.update(server.downlink(weak.client_id), data)
    assert upload.metrics.steps == 2 * data.steps_per_epoch
    assert progress[-1] == (weak.client_id, 2 * data.steps_per_epoch, 2 * data.steps_per_epoch)
    assert upload.plan.widths == {}
