"""MOON, by hand or bit for bit."""

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
from fedml_dapper.methods import ClientContext, Memory
from fedml_dapper.methods.catalogue.moon import MOON, MOONParams, contrast
from fedml_dapper.models import example_image
from fedml_dapper.pruning import trace_layout


def moon(fedavg: Experiment, **values: Any) -> Experiment:
    return replace(fedavg, method=MOON(MOONParams(**values), fedavg.method.problem))


def two_uploads(experiment: Experiment) -> list[dict[str, Tensor]]:
    """What client 0 uploads in rounds 1 and 2, both from the initial model."""
    server, clients = Server(experiment), ClientSide(experiment)
    uploads = []
    for completed in range(2):
        server.state.round = completed
        uploads.append(dict(clients.update(server.downlink(0), experiment.clients[0]).weights))
    return uploads


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_contrast_by_hand() -> None:
    z, across = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert contrast(z, across, across, tau=0.5).item() == pytest.approx(0.693147, abs=1e-6)
    assert contrast(z, 5 * z, across, tau=0.5).item() == pytest.approx(0.126928, abs=1e-6)
    both = contrast(torch.cat([z, z]), torch.cat([across, z]), torch.cat([across, across]), tau=0.5)
    assert both.item() == pytest.approx((0.693147 + 0.126928) / 2, abs=1e-6)


def test_term_starts_in_the_second_round_and_without_it_moon_is_fedavg(fedavg: Experiment) -> None:
    plain, off, on = (two_uploads(experiment) for experiment in (fedavg, moon(fedavg, mu=0), moon(fedavg)))
    assert same(off[1], plain[1])
    assert same(on[0], plain[0])
    assert not same(on[1], plain[1])


def test_loss_is_measured_against_models_in_evaluation_mode(fedavg: Experiment) -> None:
    experiment = moon(fedavg, mu=0.7, tau=0.2)
    method, server, data = experiment.method, Server(experiment), experiment.clients[0]
    client = ClientContext(experiment.profiles[0], data)
    method.local_update(client, server.downlink(0))
    downlink, last = server.downlink(0), client.memory.recall("last_model")
    model, received, previous = (method.load(client, downlink) for _ in range(3))
    previous.load_state_dict(last)
    with torch.no_grad():
        model.predictor.weight += 1
        model.stages[0][0].conv1.weight += 0.1
    batch = next(data.batches(1, 1))
    value = method.objective(client, downlink)(model, batch)
    z = model.encode(batch.inputs)
    z_global, z_previous = received.eval().encode(batch.inputs), previous.eval().encode(batch.inputs)
    logits = torch.stack([F.cosine_similarity(z, z_global), F.cosine_similarity(z, z_previous)], dim=1) / 0.2
    term = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))
    task_loss = F.cross_entropy(model.predict(z), batch.targets)
    assert value.item() == pytest.approx((task_loss + 0.7 * term).item(), rel=1e-5)
    assert same(last, client.memory.recall("last_model"))  # no frozen model saw a training step


def test_last_model_is_the_upload_and_any_process_can_take_over(fedavg: Experiment) -> None:
    first = moon(fedavg)
    clients, downlink = ClientSide(first), Server(first).downlink(1)
    sent = clients.update(downlink, first.clients[1]).weights
    memory = clients.memories[1]
    assert same(dict(sent), memory.recall("last_model"))

    without_term = ClientSide(moon(fedavg, mu=0))
    without_term.update(downlink, first.clients[1])
    assert not without_term.memories[1].tensors

    other = moon(fedavg)
    elsewhere = ClientSide(other)
    elsewhere.memories[1] = Memory({name: tensor.clone() for name, tensor in memory.tensors.items()})
    here = clients.update(downlink, first.clients[1]).weights
    assert same(dict(elsewhere.update(downlink, other.clients[1]).weights), dict(here))
    assert not same(dict(here), dict(sent))


def test_projection_head_is_part_of_the_model(fedavg: Experiment) -> None:
    plain, experiment = copy.deepcopy(fedavg.method.problem.backbone), moon(fedavg, projection_head=True)
    model = experiment.method.problem.backbone.eval()
    images = torch.randn(2, 3, 32, 32)
    hidden = F.relu(F.linear(plain.eval().encode(images), model.projection[0].weight, model.projection[0].bias))
    expected = F.linear(hidden, model.projection[2].weight, model.projection[2].bias)
    torch.testing.assert_close(model.encode(images), expected)
    assert experiment.method.footprint(0.0).parameters == sum(p.numel() for p in plain.parameters()) + 2 * (
        64 * 64 + 64
    )
    assert "projection.0" in trace_layout(model, example_image(32), "grouped").groups
    again = moon(fedavg, projection_head=True).method.problem.backbone.state_dict()
    assert same(model.state_dict(), again)
    trained = ClientSide(experiment).update(Server(experiment).downlink(0), experiment.clients[0]).weights
    assert not torch.equal(trained["projection.0.weight"], again["projection.0.weight"])


@pytest.mark.parametrize("setting", [{"tau": 0}, {"mu": -1}])
def test_settings_out_of_range_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.moon"):
        MOON.check_params(setting)
