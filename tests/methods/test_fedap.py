"""FedAP, by hand or bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext
from fedml_dapper.methods.catalogue.fedap import FedAP, FedAPParams, mixing_row
from fedml_dapper.methods.parts.client_models import ClientModels
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import Tensors

NORM_PREFIXES = ("bn1.", "bn2.")


def fedap(plain: Experiment, **values: Any) -> Experiment:
    return replace(plain, method=FedAP(FedAPParams(**values), plain.method.problem))


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_weights_by_hand() -> None:
    distances = torch.tensor([[0.0, 1, 3], [1, 0, 2], [3, 2, 0]], dtype=torch.float64)
    rows = torch.stack([mixing_row(row, own, mu=0.5) for own, row in enumerate(distances)])
    expected = [[0.5, 0.375, 0.125], [1 / 3, 0.5, 1 / 6], [0.2, 0.3, 0.5]]
    torch.testing.assert_close(rows, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert mixing_row(torch.zeros(1), 0, mu=0.3).tolist() == [1]
    equal = mixing_row(torch.tensor([0.0, 0.0, 4.0], dtype=torch.float64), 0, mu=0.5)
    assert equal.tolist() == pytest.approx([0.5, 0.5, 0])


def test_with_warm_up_1_it_is_fedavg_bit_for_bit(lenet: Experiment) -> None:
    servers = []
    for experiment in (lenet, fedap(lenet, warm_up=1)):
        server, clients = Server(experiment), ClientSide(experiment)
        server.state.round = 9  # the last round
        for client_id in server.round_clients()[:2]:
            server.receive(clients.update(server.downlink(client_id), lenet.clients[client_id]))
        server.close_round()
        servers.append(server)
    assert same(servers[0].state.weights, servers[1].state.weights)
    assert not servers[1].state.memory.values


def measured(model: nn.Module, lenet: Experiment, client_id: int) -> dict[str, Tensor]:
    """Means and deviations of the convolutions' channels on all of a client's images at once."""
    model.eval()
    images = torch.cat([batch.inputs for batch in lenet.clients[client_id]])
    with torch.no_grad():
        first = model.get_submodule("conv1")(images)
        second = model.get_submodule("conv2")(model.get_submodule("pool1")(model.get_submodule("bn1")(first)))
    outputs = {"conv1": first.double(), "conv2": second.double()}
    return {
        name: torch.stack([o.mean(dim=(0, 2, 3)), o.var(dim=(0, 2, 3), correction=0).sqrt()])
        for name, o in outputs.items()
    }


@pytest.fixture(scope="module")
def main_phase(lenet: Experiment) -> tuple[Server, ClientSide, list[Any]]:
    """After the main phase's first round, in which clients 0, 1 and 3 took part; its downlinks and uploads."""
    experiment = fedap(lenet)
    server, clients = Server(experiment), ClientSide(experiment)
    server.state.round = 5  # of 10, so that the main phase begins
    with torch.no_grad():
        for name in ("bn1.running_mean", "bn2.weight"):
            server.state.weights[name] = server.state.weights[name] + 0.25
    messages = []
    server.round_clients()
    for client_id in (0, 1, 3):
        downlink = server.downlink(client_id)
        messages.append((downlink, clients.update(downlink, lenet.clients[client_id])))
        server.receive(messages[-1][1])
    server.close_round()
    return server, clients, messages


def test_newcomers_send_their_statistics_on_the_pre_phases_model(
    lenet: Experiment, main_phase: tuple[Server, ClientSide, list[Any]]
) -> None:
    server, _, messages = main_phase
    model = server._method.global_model(server.state)
    for downlink, upload in messages:
        assert same(downlink.weights, server.state.weights)  # that model is what they got, and it stays
        expected = measured(model, lenet, upload.client_id)
        assert upload.extras.keys() == {"conv1", "conv2"}
        for name, gaussian in upload.extras.items():
            torch.testing.assert_close(gaussian, expected[name], rtol=1e-5, atol=1e-6)
            assert torch.equal(server.state.memory.recall("statistics")[name][upload.client_id], gaussian)
        trained = model.state_dict() | upload.weights
        assert not torch.equal(trained["conv1.weight"], server.state.weights["conv1.weight"])


def test_statistics_ignore_what_the_client_kept(lenet: Experiment) -> None:
    experiment = fedap(lenet)
    server = Server(experiment)
    server.state.round = 5
    client = ClientContext(lenet.profiles[0], lenet.clients[0])
    expected = experiment.method.statistics(client, server.downlink(0))
    client.memory.keep("personal", {"bn1.weight": torch.full((6,), 9.0)})
    assert same(experiment.method.statistics(client, server.downlink(0)), expected)


def test_models_are_mixed_and_batchnorm_stays_at_home(
    lenet: Experiment, main_phase: tuple[Server, ClientSide, list[Any]]
) -> None:
    server, clients, messages = main_phase
    uploads = {upload.client_id: upload for _, upload in messages}
    layout = server.state.weights.keys()
    shared = {name for name in layout if not name.startswith(NORM_PREFIXES)}
    for upload in uploads.values():
        assert upload.weights.keys() == shared
    downlink = server.downlink(1)
    assert downlink.weights.keys() == shared
    assert not downlink.extras
    assert clients.memories[1].recall("personal").keys() == layout - shared

    distances = torch.zeros(3, dtype=torch.float64)
    for layer in ("conv1", "conv2"):
        ours = uploads[1].extras[layer]
        distances += torch.stack([(u.extras[layer] - ours).square().sum().sqrt() for u in uploads.values()])
    row = mixing_row(distances, own=1, mu=0.5)
    for name in shared:
        expected = sum(w * u.weights[name].double() for w, u in zip(row, uploads.values(), strict=True))
        torch.testing.assert_close(downlink.weights[name].double(), expected, rtol=0, atol=1e-6)

    client = ClientContext(lenet.profiles[1], lenet.clients[1], clients.memories[1])
    model = server._method.personal_model(client, downlink).state_dict()
    assert same(model, {**downlink.weights, **clients.memories[1].recall("personal")})
    assert same(server.downlink(2).weights, server.state.weights)
    assert server.downlink(2).extras.keys() == {"measure"}


def test_later_uploads_bring_no_statistics_and_first_ones_must(
    lenet: Experiment, main_phase: tuple[Server, ClientSide, list[Any]]
) -> None:
    server, _, messages = main_phase
    first = messages[0][1]
    aggregation = server._method.aggregation(server.state)
    before = {name: tensor.clone() for name, tensor in server.state.memory.tensors.items()}
    with pytest.raises(ProtocolError, match="first `conv1`"):
        aggregation.add(first)
    with pytest.raises(ProtocolError, match="first `conv1`"):
        aggregation.add(replace(first, client_id=2, extras={}))
    with pytest.raises(ProtocolError, match="`conv2` has shape"):
        aggregation.add(replace(first, client_id=2, extras={**first.extras, "conv2": first.extras["conv1"]}))
    aggregation.close()
    assert same(server.state.memory.tensors, before)
    assert list(ClientModels(server.state).rounds) == [0, 1, 3]


def test_variant_d_compares_the_last_convolution(lenet: Experiment) -> None:
    assert fedap(lenet).method.convolutions == {"conv1": 6, "conv2": 16}
    assert fedap(lenet, variant="d").method.convolutions == {"conv2": 16}


class Dense(Backbone):
    """A network without convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = nn.Linear(3 * 32 * 32, 10)

    def encode(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def test_a_network_without_convolutions_is_refused(lenet: Experiment) -> None:
    with pytest.raises(ConfigError, match="fedap compares the outputs of convolutions"):
        FedAP(FedAPParams(), replace(lenet.method.problem, backbone=Dense()))
