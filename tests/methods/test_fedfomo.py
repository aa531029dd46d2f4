"""FedFomo, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext
from fedml_dapper.methods.catalogue.fedfomo import (
    FedFomo,
    FedFomoParams,
    benefit,
    check_benefits,
    mixture,
    preferences,
    validation_loss,
)
from fedml_dapper.methods.parts.client_models import ClientModels
from fedml_dapper.pruning import Tensors


def fedfomo(plain: Experiment, **values: Any) -> Experiment:
    return replace(plain, method=FedFomo(FedFomoParams(**values), plain.method.problem))


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_weights_and_mixture_by_hand() -> None:
    benefits = [benefit(1.0, 0.8, 2.0), benefit(1.0, 1.2, 1.0)]
    assert benefits == pytest.approx([0.1, -0.2])
    own, a, b, c = ({"w": torch.tensor([value])} for value in (0.0, 2.0, 9.0, 4.0))
    assert mixture(own, [a, b], torch.tensor(benefits))["w"].item() == 2
    assert mixture(own, [a, b, c], torch.tensor([0.1, -0.2, 0.3]))["w"].item() == pytest.approx(3.5)
    assert mixture(own, [a, b], torch.tensor([0.0, -0.2]))["w"].item() == 0
    assert mixture(own, [], torch.zeros(0))["w"].item() == 0
    assert benefit(1.0, 0.5, 0.0) == pytest.approx(5e4)


def test_validation_images_are_set_aside_for_good(lenet: Experiment) -> None:
    method, data = fedfomo(lenet).method, lenet.clients[1]
    training, validation = method.split(data)
    assert validation.num_samples == round(0.2 * data.num_samples)
    assert training.num_samples + validation.num_samples == data.num_samples
    sums = [sorted(part.samples.images.flatten(1).sum(dim=1).tolist()) for part in (data, training, validation)]
    assert sorted(sums[1] + sums[2]) == sums[0]
    again = fedfomo(lenet).method.split(data)[1]
    assert torch.equal(again.samples.images, validation.samples.images)
    assert training.client_id == 1

    clients = ClientSide(fedfomo(lenet))
    upload = clients.update(Server(fedfomo(lenet)).downlink(1), data)
    plain = ClientSide(lenet).update(Server(lenet).downlink(1), training)
    assert same(upload.weights, plain.weights)
    assert upload.num_samples == training.num_samples


def test_offered_are_the_preferred_of_those_who_were_there_last(lenet: Experiment) -> None:
    server = Server(fedfomo(lenet, num_offered=2))
    server.state.round = 3
    start = dict(server.state.weights)
    assert same(server.downlink(0).weights, start)
    assert server.downlink(0).extras["offered"].tolist() == []
    models = ClientModels(server.state)
    for client_id, round_ in enumerate((3, 3, 3, 3)):
        models.keep(client_id, round_, {name: tensor + client_id for name, tensor in start.items()})
    assert server.downlink(0).extras["offered"].tolist() == [1, 2]
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[0] = torch.tensor([1.0, -0.5, 0.0, 0.2])
    server.state.memory.keep("preferences", {"matrix": matrix})
    downlink = server.downlink(0)
    assert downlink.extras["offered"].tolist() == [3, 2]
    assert same(downlink.weights, start)
    parameters = {name for name, _ in lenet.method.problem.backbone.named_parameters()}
    assert downlink.extras.keys() == {"offered"} | {f"{j}/{name}" for j in (2, 3) for name in parameters}
    assert torch.equal(downlink.extras["3/conv1.weight"], start["conv1.weight"] + 3)
    models.keep(3, 2, {name: tensor + 3 for name, tensor in start.items()})
    assert server.downlink(0).extras["offered"].tolist() == [2, 1]
    assert server.downlink(3).extras["offered"].tolist() == [0, 1]
    assert torch.equal(server.downlink(3).weights["bn1.running_mean"], start["bn1.running_mean"] + 3)


def test_a_client_measures_mixes_and_trains(lenet: Experiment) -> None:
    experiment = fedfomo(lenet)
    method, data = experiment.method, lenet.clients[0]
    training, validation = method.split(data)
    server = Server(experiment)
    server.state.round = 1
    start = dict(server.state.weights)
    trained = {**start, **ClientSide(lenet).update(Server(lenet).downlink(0), training).weights}  # helps
    worse = {name: tensor * -3 if name.startswith("predictor") else tensor + 0.5 for name, tensor in start.items()}
    models = ClientModels(server.state)
    for client_id, weights in enumerate((start, trained, worse)):
        models.keep(client_id, 1, weights)
    downlink = server.downlink(0)
    upload = ClientSide(experiment).update(downlink, data)

    images, labels = (torch.cat(parts) for parts in zip(*validation, strict=True))
    parameters = [name for name, _ in method.problem.backbone.named_parameters()]
    losses, distances = [], []
    for weights in (start, trained, worse):
        model = method.global_model(server.state).eval()
        model.load_state_dict({**start, **{name: weights[name] for name in parameters}})  # its own BatchNorm statistics
        losses.append(F.cross_entropy(model(images), labels).item())
        joined = torch.cat([(weights[name] - start[name]).double().flatten() for name in parameters])
        distances.append(float(joined.norm()))
    expected = [(losses[0] - loss) / distance for loss, distance in zip(losses[1:], distances[1:], strict=True)]
    assert expected[0] > 0 > expected[1]
    assert upload.extras["benefits"].tolist() == pytest.approx(expected, rel=1e-4)
    assert upload.extras["offered"].tolist() == [1, 2]

    mixed = {**start, **{name: trained[name] for name in parameters}}
    plain = ClientSide(lenet).update(replace(downlink, weights=mixed, extras={}), training)
    assert same(upload.weights, plain.weights)
    client = ClientContext(lenet.profiles[0], data)
    assert same(method.personal_model(client, downlink).state_dict(), start)

    server.round_clients()
    server.receive(upload)
    server.close_round()
    matrix = preferences(server.state)
    assert matrix[0].tolist() == [1, *upload.extras["benefits"].tolist(), 0]
    assert torch.equal(matrix[1:], torch.eye(4, dtype=torch.float64)[1:])
    assert same(server.state.weights, start)
    assert same(server.downlink(0).weights, upload.weights)

    aggregation = method.aggregation(server.state)
    aggregation.add(replace(upload, round=3))
    assert torch.equal(preferences(server.state), matrix)
    aggregation.close()
    assert preferences(server.state)[0, 2] == 2 * matrix[0, 2]


def test_a_diverged_model_is_of_no_use(lenet: Experiment) -> None:
    method, validation = fedfomo(lenet).method, fedfomo(lenet).method.split(lenet.clients[0])[1]
    own = method.global_model(Server(fedfomo(lenet)).state)
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    parameters = {name: tensor.detach() for name, tensor in own.named_parameters()}
    broken = {name: torch.full_like(tensor, torch.inf) for name, tensor in parameters.items()}
    halved = {name: tensor / 2 for name, tensor in parameters.items()}
    device = torch.device("cpu")
    benefits = method.benefits(own, [broken, halved], validation, device)
    assert benefits[0] == 0
    assert benefits[1] != 0
    assert same(own.state_dict(), before)
    task = method.problem.task
    assert validation_loss(own, task, validation, device) == validation_loss(own, task, validation, device)


@pytest.mark.parametrize(
    ("offered", "benefits"),
    [([4], [0.1]), ([1, 1], [0.1, 0.1]), ([-1], [0.1]), ([1, 2], [0.1])],
)
def test_bad_benefits_are_refused(offered: list[int], benefits: list[float]) -> None:
    extras = {"offered": torch.tensor(offered), "benefits": torch.tensor(benefits, dtype=torch.float64)}
    with pytest.raises(ProtocolError, match="distinct ids below 4"):
        check_benefits(extras, num_clients=4)
    with pytest.raises(ProtocolError, match="should hold offered and benefits"):
        check_benefits({"offered": extras["offered"]}, num_clients=4)
    with pytest.raises(ProtocolError, match="float64"):
        check_benefits({**extras, "benefits": extras["benefits"].float()}, num_clients=4)


def test_too_few_images_to_split_are_refused(lenet: Experiment) -> None:
    few = replace(lenet.clients[0], samples=lenet.clients[0].samples.take(torch.arange(2)))
    with pytest.raises(ConfigError, match=r"validation_share: 0\.2 of the 2 images of client 0"):
        fedfomo(lenet).method.check_clients([lenet.clients[1], few])
    fedfomo(lenet).method.check_clients(lenet.clients)
