"""pFedSim, by hand or bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext, Upload
from fedml_dapper.methods.catalogue.pfedsim import PFedSim, PFedSimParams, classifier_similarity, weights_of
from fedml_dapper.pruning import Tensors

HEAD = {"predictor.weight", "predictor.bias"}


def pfedsim(plain: Experiment, **values: Any) -> Experiment:
    return replace(plain, method=PFedSim(PFedSimParams(**values), plain.method.problem))


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_weights_by_hand() -> None:
    weights = weights_of(torch.tensor([0.9999, 0.5, 0.0], dtype=torch.float64))
    assert weights.tolist() == pytest.approx([0.93001, 0.06999, 0], abs=1e-5)
    identical = weights_of(torch.tensor([0.9999, 1.0], dtype=torch.float64))
    assert identical.tolist() == pytest.approx([0.5, 0.5])


def test_similarity_by_hand() -> None:
    left = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert classifier_similarity(left, torch.tensor([[5.0, 0.0], [1.0, 0.0]])) == pytest.approx(0.5)
    assert classifier_similarity(left, torch.tensor([[0.6, 0.8], [0.8, 0.6]])) == pytest.approx(0.6)
    assert classifier_similarity(left, -left) == 0


def test_with_warm_up_1_it_is_fedavg_bit_for_bit(lenet: Experiment) -> None:
    servers = []
    for experiment in (lenet, pfedsim(lenet, warm_up=1)):
        server, clients = Server(experiment), ClientSide(experiment)
        server.state.round = 9  # the last round
        for client_id in server.round_clients()[:2]:
            server.receive(clients.update(server.downlink(client_id), lenet.clients[client_id]))
        server.close_round()
        servers.append(server)
    assert same(servers[0].state.weights, servers[1].state.weights)
    assert not servers[1].state.memory.values


def with_classifier(upload: Upload, *angles_of: float) -> Upload:
    """The upload with a classifier whose rows all have cosine ``angles_of[0]`` to the first axis."""
    [cosine] = angles_of
    weight = torch.zeros_like(upload.weights["predictor.weight"])
    weight[:, 0], weight[:, 1] = cosine, (1 - cosine**2) ** 0.5
    return replace(upload, weights={**upload.weights, "predictor.weight": weight})


def test_extractors_are_mixed_among_those_who_met_and_classifiers_stay(lenet: Experiment) -> None:
    server, clients = Server(pfedsim(lenet)), ClientSide(pfedsim(lenet))
    server.state.round = 5  # of 10, so that the second phase begins
    start, uploads = dict(server.state.weights), {}
    for cosines in ({0: 1.0, 1: 0.5}, {2: 0.5, 3: -1.0}):
        server.round_clients()
        for client_id, cosine in cosines.items():
            downlink = server.downlink(client_id)
            assert same(downlink.weights, start)
            upload = clients.update(downlink, lenet.clients[client_id])
            assert upload.weights.keys() == start.keys()
            uploads[client_id] = with_classifier(upload, cosine)
            server.receive(uploads[client_id])
        server.close_round()
    assert same(server.state.weights, start)  # for those who come later

    matrix = server.state.memory.recall("similarities")["matrix"]
    expected = 0.9999 * torch.eye(4, dtype=torch.float64)
    expected[0, 1] = expected[1, 0] = 0.5
    torch.testing.assert_close(matrix, expected)

    downlink = server.downlink(1)
    assert downlink.weights.keys() == start.keys() - HEAD
    for name in ("conv1.weight", "bn2.running_var", "hidden.2.bias"):
        mixed = 0.930011 * uploads[1].weights[name].double() + 0.069989 * uploads[0].weights[name].double()
        torch.testing.assert_close(downlink.weights[name].double(), mixed, rtol=0, atol=1e-5)
    alone = {name: tensor for name, tensor in uploads[2].weights.items() if name not in HEAD}
    torch.testing.assert_close(dict(server.downlink(2).weights), alone)

    own = clients.memories[1].recall("personal")
    assert own.keys() == HEAD
    client = ClientContext(lenet.profiles[1], lenet.clients[1], clients.memories[1])
    assert same(server._method.personal_model(client, downlink).state_dict(), {**downlink.weights, **own})


def test_a_model_that_does_not_fit_changes_nothing(lenet: Experiment) -> None:
    server, clients = Server(pfedsim(lenet)), ClientSide(pfedsim(lenet))
    server.state.round = 5
    upload = clients.update(server.downlink(0), lenet.clients[0])
    aggregation = server._method.aggregation(server.state)
    with pytest.raises(ProtocolError, match=r"first `predictor\.weight`"):
        aggregation.add(replace(upload, weights={n: t for n, t in upload.weights.items() if n != "predictor.weight"}))
    aggregation.close()
    assert not server.state.memory.values
