"""FPL, by hand or bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import TrainArgs
from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext, TrainingMetrics, Upload, payload_bytes
from fedml_dapper.methods.catalogue.fpl import FPL, ClassMeans, FPLParams, check_prototypes, contrast, inconsistency
from fedml_dapper.models.resnet import ResNet

Z = torch.tensor([[1.0, 0.0]])
Y = torch.tensor([3])
CLUSTERS = torch.tensor([[2.0, 0.0], [0.0, 5.0]])


def fpl(fedavg: Experiment, **values: Any) -> Experiment:
    return replace(fedavg, method=FPL(FPLParams(**values), fedavg.method.problem))


def after_rounds(experiment: Experiment, rounds: int = 2) -> list[dict[str, Tensor]]:
    """The global model after each of the first ``rounds``."""
    server, clients = Server(experiment), ClientSide(experiment)
    models = []
    for _ in range(rounds):
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
        models.append(server.state.weights)
    return models


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_contrast_by_hand() -> None:
    classes = torch.tensor([3, 7])
    assert contrast(Z, Y, CLUSTERS, classes, tau=0.5).item() == pytest.approx(0.126928, abs=1e-6)
    assert abs(contrast(Z, Y, CLUSTERS, classes, tau=0.02).item()) < 1e-20
    assert contrast(Z, torch.tensor([7]), CLUSTERS, classes, tau=0.02).item() == pytest.approx(50)
    assert contrast(Z, torch.tensor([7]), CLUSTERS, classes, tau=0.01).item() == pytest.approx(100)  # past exp's range
    assert contrast(Z, Y, CLUSTERS, torch.tensor([3, 3]), tau=0.5).item() == 0  # every prototype is the class's own


def test_sums_are_divided_by_the_batch_size() -> None:
    z, labels = torch.cat([Z, Z]), torch.tensor([3, 5])  # class 5 has no prototype
    assert contrast(z, labels, CLUSTERS, torch.tensor([3, 7]), tau=0.5).item() == pytest.approx(0.126928 / 2, abs=1e-6)
    assert inconsistency(z, labels, torch.tensor([[0.0, 3.0]]), torch.tensor([3])).item() == 2.5  # (1 + 9) / 2 / 2


def test_batch_without_any_prototype_has_neither_loss_nor_gradient() -> None:
    z = torch.randn(2, 2, requires_grad=True)
    labels, classes = torch.tensor([5, 6]), torch.tensor([3, 7])
    loss = contrast(z, labels, CLUSTERS, classes, tau=0.02) + inconsistency(z, labels, CLUSTERS, classes)
    loss.backward()
    assert loss.item() == 0
    assert z.grad is not None
    assert not z.grad.any()


def test_inconsistency_by_hand() -> None:
    unbiased, classes = torch.tensor([[1.0, 0.0], [5.0, 2.0]]), torch.tensor([3, 7])
    assert inconsistency(Z, Y, unbiased, classes).item() == 0
    assert inconsistency(Z, torch.tensor([7]), unbiased, classes).item() == 10  # (16 + 4) / 2


def test_class_means_by_hand() -> None:
    means = ClassMeans(ResNet([1], 2, num_classes=4), torch.device("cpu"))
    means.add(torch.tensor([[1.0, 2.0], [5.0, 6.0]], requires_grad=True), torch.tensor([2, 0]))
    means.add(torch.tensor([[3.0, 4.0]]), torch.tensor([2]))
    found = means.prototypes()
    assert found["classes"].tolist() == [0, 2]
    assert found["prototypes"].tolist() == [[5.0, 6.0], [2.0, 3.0]]
    assert not found["prototypes"].requires_grad


@pytest.mark.long
def test_terms_start_in_the_second_round_and_without_them_fpl_is_fedavg(fedavg: Experiment) -> None:
    plain, on = after_rounds(fedavg), after_rounds(fpl(fedavg))
    off = after_rounds(fpl(fedavg, contrast=False, consistency=False))
    assert same(off[1], plain[1])
    assert same(on[0], plain[0])
    assert not same(on[1], plain[1])


def test_each_term_enters_the_loss_once(fedavg: Experiment) -> None:
    prototypes = {
        "classes": torch.tensor([1, 4]),
        "unbiased": torch.randn(2, 64),
        "cluster_classes": torch.tensor([1, 1, 4]),
        "clusters": torch.randn(3, 64),
    }

    def loss(**switches: bool) -> float:
        experiment = fpl(fedavg, tau=0.3, **switches)
        method, server, data = experiment.method, Server(experiment), experiment.clients[0]
        server.state.memory.keep("prototypes", prototypes)
        client, downlink = ClientContext(experiment.profiles[0], data), server.downlink(0)
        return method.objective(client, downlink)(method.load(client, downlink).train(), batch).item()

    batch = next(fedavg.clients[0].batches(1, 1))
    z = copy.deepcopy(fedavg.method.problem.backbone).train().encode(batch.inputs)
    contrastive = contrast(z, batch.targets, prototypes["clusters"], prototypes["cluster_classes"], tau=0.3).item()
    regression = inconsistency(z, batch.targets, prototypes["unbiased"], prototypes["classes"]).item()
    plain = loss(contrast=False, consistency=False)
    assert loss(consistency=False) - plain == pytest.approx(contrastive, rel=1e-4)
    assert loss(contrast=False) - plain == pytest.approx(regression, rel=1e-4)
    assert loss() - plain == pytest.approx(contrastive + regression, rel=1e-4)


def test_prototypes_are_of_the_last_epochs_training_pass(fedavg: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(fedavg.method.problem, training=TrainArgs(epochs=2, batch_size=16))
    experiment = replace(fedavg, method=FPL(FPLParams(), problem))
    clients, downlink, data = ClientSide(experiment), Server(experiment).downlink(0), experiment.clients[0]
    seen: list[Tensor] = []
    encode = ResNet.encode

    def recording(model: ResNet, images: Tensor) -> Tensor:
        seen.append(encode(model, images))
        return seen[-1]

    monkeypatch.setattr(ResNet, "encode", recording)
    upload = clients.update(downlink, data)
    assert len(seen) == upload.metrics.steps == 2 * data.steps_per_epoch  # no second pass for the features
    labels = torch.cat([batch.targets for batch in data.batches(1, 2)])
    last = torch.cat(seen[data.steps_per_epoch :]).detach()
    assert upload.extras["classes"].tolist() == sorted(set(labels.tolist()))
    expected = torch.stack([last[labels == label].mean(dim=0) for label in labels.unique()])
    torch.testing.assert_close(upload.extras["prototypes"], expected)


def fabricated(experiment: Experiment, client_id: int, prototypes: dict[int, Sequence[float]]) -> Upload:
    """An upload of the initial model with ``prototypes``, filled up with zeros, by class."""
    points = torch.zeros(len(prototypes), 64)
    for row, values in enumerate(prototypes.values()):
        points[row, : len(values)] = torch.tensor(values)
    return Upload(
        round=1,
        client_id=client_id,
        num_samples=experiment.profiles[client_id].num_samples,
        weights=experiment.method.problem.backbone.state_dict(),
        metrics=TrainingMetrics(1.0, 1, 1.0),
        extras={"classes": torch.tensor(list(prototypes)), "prototypes": points},
    )


BY_CLIENT: list[dict[int, Sequence[float]]] = [
    {1: (1.0, 0.0), 4: (3.0, 3.0)},
    {1: (0.0, 2.0)},
    {1: (3.0, 0.1)},
    {1: (0.1, 4.0)},
]


def test_server_clusters_each_class_and_sends_all(fedavg: Experiment) -> None:
    experiment = fpl(fedavg)
    memories = []
    for order in (range(4), (2, 0, 3, 1)):
        server = Server(experiment)
        server.round_clients()
        assert not server.downlink(0).extras
        for client_id in order:
            server.receive(fabricated(experiment, client_id, BY_CLIENT[client_id]))
        server.close_round()
        memories.append(dict(server.downlink(2).extras))
    sent = memories[0]
    assert sent["classes"].tolist() == [1, 4]
    assert sent["cluster_classes"].tolist() == [1, 1, 4]
    torch.testing.assert_close(sent["clusters"][:, :2], torch.tensor([[2.0, 0.05], [0.05, 3.0], [3.0, 3.0]]))
    torch.testing.assert_close(sent["unbiased"][:, :2], torch.tensor([[1.025, 1.525], [3.0, 3.0]]))
    assert same(*memories)


GOOD = torch.zeros(2, 64)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({}, "should hold classes and prototypes"),
        ({"classes": torch.tensor([1, 2]), "prototypes": GOOD, "more": GOOD}, "should hold classes and prototypes"),
        ({"classes": torch.tensor([1, 10]), "prototypes": GOOD}, r"within 0\.\.9"),
        ({"classes": torch.tensor([-1, 2]), "prototypes": GOOD}, r"within 0\.\.9"),
        ({"classes": torch.tensor([2, 2]), "prototypes": GOOD}, r"within 0\.\.9"),
        ({"classes": torch.tensor([1.0, 2.0]), "prototypes": GOOD}, "int64"),
        ({"classes": torch.zeros(0, dtype=torch.int64), "prototypes": GOOD[:0]}, "non-empty"),
        ({"classes": torch.tensor([1]), "prototypes": GOOD}, r"expected \(1, 64\)"),
        ({"classes": torch.tensor([1, 2]), "prototypes": GOOD.double()}, "float32"),
    ],
)
def test_bad_prototypes_are_refused(extras: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        check_prototypes(extras, num_classes=10, width=64)


def test_refused_uploads_change_nothing(fedavg: Experiment) -> None:
    experiment = fpl(fedavg)
    server = Server(experiment)
    aggregation = experiment.method.aggregation(server.state)
    good = fabricated(experiment, 1, {1: (1.0, 0.0)})
    shifted = {name: tensor + 1 for name, tensor in good.weights.items()}
    with pytest.raises(ProtocolError, match="should hold classes"):
        aggregation.add(replace(good, weights=shifted, extras={}))
    with pytest.raises(ProtocolError, match="differ in"):
        aggregation.add(replace(fabricated(experiment, 0, {4: (1.0,)}), weights={}))
    aggregation.add(good)
    aggregation.close()
    assert same(server.state.weights, dict(good.weights))
    assert server.state.memory.recall("prototypes")["classes"].tolist() == [1]


def test_upload_costs_what_the_footprint_says(fedavg: Experiment) -> None:
    experiment = fpl(fedavg)
    everything = dict.fromkeys(range(10), (1.0,))
    layout, cost = experiment.method.problem.layout, experiment.method.footprint(0.8)
    assert payload_bytes(fabricated(experiment, 0, everything), layout) == cost.bytes_up
    assert cost.bytes_up - cost.bytes_down == 10 * (64 * 4 + 8)


def test_clients_without_a_common_class_are_refused(fedavg: Experiment) -> None:
    experiment = fpl(fedavg)

    def only(client: int, *classes: int) -> ClientData:
        data = experiment.clients[client]
        held = torch.isin(data.samples.labels, torch.tensor(classes))
        return replace(data, samples=data.samples.take(held.nonzero().flatten()))

    with pytest.raises(ConfigError, match="no class is held by two clients"):
        experiment.method.check_clients([only(0, 1, 2), only(1, 5, 6)])
    experiment.method.check_clients([only(0, 1, 2), only(1, 2, 6)])
