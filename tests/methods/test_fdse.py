"""FDSE as a whole; the parts have tests of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedml_dapper.config import ModelArgs, Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import ClientContext, Downlink, TrainingMetrics, Upload, payload_bytes
from fedml_dapper.methods.catalogue.fdse import FDSE, FDSEParams, mix_by_similarity
from fedml_dapper.methods.parts.consistency import ConsistencyLoss, entering
from fedml_dapper.methods.parts.decomposition import decomposed_layers
from fedml_dapper.methods.parts.min_norm import consensus_step
from fedml_dapper.models import build_backbone

SettingsFactory = Callable[..., Settings]
TAU = 1e-6


def fdse(fedavg: Experiment, **values: Any) -> Experiment:
    """FDSE on a LeNet5 of the published width."""
    problem = replace(fedavg.method.problem, backbone=build_backbone(ModelArgs(model="lenet5"), 10, 1))
    return replace(fedavg, method=FDSE(FDSEParams(**values), problem))


def one_round(server: Server, clients: ClientSide, experiment: Experiment) -> list[Upload]:
    uploads = []
    for client_id in server.round_clients():
        uploads.append(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.receive(uploads[-1])
    server.close_round()
    return uploads


@pytest.fixture(scope="module")
def trained(fedavg: Experiment) -> tuple[Experiment, Server, ClientSide, Mapping[str, Tensor], list[Upload]]:
    """After two rounds; the global model that the second one started from, and its uploads.

    After so few steps erasers are so similar that at the default temperature all become the same mean.
    """
    experiment = fdse(fedavg, lambda_=0.5, tau=TAU)
    server, clients = Server(experiment), ClientSide(experiment)
    one_round(server, clients, experiment)
    before = server.state.weights
    return experiment, server, clients, before, one_round(server, clients, experiment)


def joined(tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.cat([tensors[name].double().flatten() for name in names])


def test_the_server_treats_tensors_by_their_role(trained: Any) -> None:
    experiment, server, _, before, uploads = trained
    after, roles = server.state.weights, experiment.method.roles
    assert after.keys() == experiment.method.problem.backbone.state_dict().keys()
    for names in roles.consensus:
        step = consensus_step(torch.stack([joined(sent.weights, names) - joined(before, names) for sent in uploads]))
        torch.testing.assert_close(joined(after, names), joined(before, names) + step, rtol=1e-6, atol=1e-7)
        assert bool(step.any())
    for names in roles.similarity:
        mixed = mix_by_similarity(torch.stack([joined(sent.weights, names) for sent in uploads]), TAU)
        for client_id, expected in enumerate(mixed):
            received = joined(server.downlink(client_id).weights, names)
            torch.testing.assert_close(received, expected, rtol=1e-6, atol=1e-7)
    name = "conv2.bn_dfe.running_mean"
    torch.testing.assert_close(after[name], torch.stack([sent.weights[name] for sent in uploads]).mean(dim=0))
    counter = "conv2.bn_dfe.num_batches_tracked"
    assert int(after[counter]) == max(int(sent.weights[counter]) for sent in uploads) > 0


def test_entries_of_true_and_false_are_averaged_with_the_statistics(fedavg: Experiment) -> None:
    backbone = build_backbone(ModelArgs(model="lenet5", width=4), 10, 1)
    backbone.register_buffer("mask", torch.tensor([True, False, True, False]))
    problem = replace(fedavg.method.problem, backbone=backbone)
    experiment = replace(fedavg, method=FDSE(FDSEParams(), problem))
    server = Server(experiment)
    aggregation = experiment.method.aggregation(server.state)
    local = experiment.method.roles.local
    sent = {name: tensor for name, tensor in server.state.weights.items() if name not in local}
    for client_id, mask in enumerate(([True, False, True, True], [True, False, False, False])):
        upload = Upload(1, client_id, 10, {**sent, "mask": torch.tensor(mask)}, TrainingMetrics(1.0, 1, 1.0))
        aggregation.add(upload)
    aggregation.close()
    assert server.state.weights["mask"].tolist() == [True, False, False, True]


def test_clients_share_all_but_their_erasers_and_local_statistics(trained: Any) -> None:
    experiment, server, clients, _, uploads = trained
    method = experiment.method
    assert method.personal == {f"conv{n}.bn_dse.{key}" for n in (1, 2) for key in (
        "running_mean", "running_var", "num_batches_tracked",
    )}  # fmt: skip
    erasers = {name for group in method.roles.similarity for name in group}
    first, second = server.downlink(0), server.downlink(1)
    for message in (first, uploads[0]):
        assert message.weights.keys() == server.state.weights.keys() - method.personal
    different = {name for name in first.weights if not torch.equal(first.weights[name], second.weights[name])}
    assert {"conv1.dse.weight", "conv2.dse.weight"} <= different <= erasers
    profile, data = experiment.profiles[1], experiment.clients[1]
    context = ClientContext(profile, data, clients.memories[1])
    own = method.personal_model(context, second).state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in second.weights.items())
    assert int(own["conv1.bn_dse.num_batches_tracked"]) == 2 * data.steps_per_epoch
    assert not torch.equal(own["conv1.bn_dse.running_mean"], torch.zeros(3))


def test_who_has_not_trained_starts_from_the_initial_model_s_eraser(fedavg: Experiment) -> None:
    experiment = fdse(fedavg)
    server, clients = Server(experiment), ClientSide(experiment)
    for client_id in list(server.round_clients())[:2]:
        server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
    server.close_round()
    initial = experiment.method.problem.backbone.state_dict()
    shared, erasers = experiment.method.roles.consensus[-1], experiment.method.roles.similarity[0]
    late = server.downlink(3).weights
    assert all(torch.equal(late[name], initial[name]) for name in erasers)
    assert not any(torch.equal(late[name], initial[name]) for name in shared)
    assert not all(torch.equal(server.downlink(0).weights[name], initial[name]) for name in erasers)


def gradients(experiment: Experiment, downlink: Downlink, batches: int, plain: bool = False) -> list[Tensor]:
    """Of the objective, or of cross-entropy alone, at the last of a client's first batches; no step is made."""
    client = ClientContext(experiment.profiles[0], experiment.clients[0])
    method = experiment.method
    model, loss = (
        method.load(client, downlink),
        method.problem.task_loss if plain else method.objective(client, downlink),
    )
    for batch in list(client.data.batches(1, 1))[:batches]:
        model.zero_grad()
        loss(model, batch).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_without_consistency_and_in_round_1_gradients_are_of_cross_entropy(fedavg: Experiment, trained: Any) -> None:
    experiment, server, *_ = trained
    downlink, off = server.downlink(0), fdse(fedavg, lambda_=0)
    plain = gradients(experiment, downlink, 2, plain=True)
    assert all(map(torch.equal, gradients(off, downlink, 2), plain))
    assert (
        off.method.objective(ClientContext(off.profiles[0], off.clients[0]), downlink) == off.method.problem.task_loss
    )
    assert all(map(torch.equal, gradients(experiment, replace(downlink, round=1), 2), plain))
    assert not all(map(torch.equal, gradients(experiment, downlink, 2), plain))


def test_loss_holds_what_enters_the_shared_batchnorms_to_the_received_statistics(trained: Any) -> None:
    experiment, server, *_ = trained
    client, downlink = ClientContext(experiment.profiles[0], experiment.clients[0]), server.downlink(0)
    far = {name: downlink.weights[name] + 1 for name in experiment.method.roles.statistics if "running" in name}
    downlink = replace(downlink, weights={**downlink.weights, **far})
    model, other = (experiment.method.load(client, downlink).train() for _ in range(2))
    loss = experiment.method.objective(client, downlink)
    agreed = [
        (downlink.weights[f"{name}.bn_dfe.running_mean"], downlink.weights[f"{name}.bn_dfe.running_var"])
        for name in ("conv1", "conv2")
    ]
    consistency = ConsistencyLoss(agreed, keep=0.9, beta=0.001)
    for batch in list(client.data.batches(1, 1))[:2]:
        with entering([other.conv1.bn_dfe, other.conv2.bn_dfe]) as features:
            task_loss = F.cross_entropy(other(batch.inputs), batch.targets)
        expected = task_loss + 0.5 * consistency(features)
        assert loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-6)
        assert (expected - task_loss).item() > 1e-6


def test_newcomers_adapt_the_eraser_to_their_images_without_labels(trained: Any) -> None:
    experiment, server, *_ = trained
    method, newcomer, before = experiment.method, experiment.clients[2], server.state.weights
    state = method.adapted_model(server.state, newcomer, experiment.device).state_dict()
    changed = {name for name, tensor in state.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for group in method.roles.similarity for name in group} | method.personal
    remembered = [server.state.memory.recall(f"client{client_id}")["conv1.dse.weight"] for client_id in range(4)]
    torch.testing.assert_close(before["conv1.dse.weight"], torch.stack(remembered).mean(dim=0))
    relabelled = replace(newcomer, samples=replace(newcomer.samples, labels=newcomer.samples.labels.roll(1)))
    again = method.adapted_model(server.state, relabelled, experiment.device).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in server.state.weights.items())


def test_without_adaptation_newcomers_have_statistics_of_their_own_images(fedavg: Experiment, trained: Any) -> None:
    server, newcomer = trained[1], fedavg.clients[2]
    method = fdse(fedavg, adapt_epochs=0).method
    model = method.adapted_model(server.state, newcomer, fedavg.device)
    state, before = model.state_dict(), server.state.weights
    changed = {name for name, tensor in state.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in method.personal if "running" in name}
    layer = decomposed_layers(model)["conv1"]
    images = [batch for batch in newcomer if len(batch.inputs) > 1]
    with torch.no_grad():
        extracted = [layer.dfe(batch.inputs) for batch in images]
    means = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in extracted])
    variances = torch.stack([batch.var(dim=(0, 2, 3)) for batch in extracted])
    torch.testing.assert_close(layer.bn_dse.running_mean, means.mean(dim=0))
    torch.testing.assert_close(layer.bn_dse.running_var, variances.mean(dim=0))


def test_adaptation_lowers_the_inconsistency_of_an_unseen_domain(fedavg: Experiment, trained: Any) -> None:
    server, newcomer = trained[1], fedavg.clients[2]

    def inconsistency(epochs: int, rate: float) -> float:
        method = fdse(fedavg, adapt_epochs=epochs, adapt_learning_rate=rate).method
        assert isinstance(method, FDSE)
        model = method.adapted_model(server.state, newcomer, fedavg.device).eval()
        norms = [layer.bn_dfe for layer in decomposed_layers(model).values()]
        images = torch.cat([batch.inputs for batch in newcomer])
        with entering(norms) as features, torch.no_grad():
            model.encode(images)
        agreed = [(norm.running_mean, norm.running_var) for norm in norms]
        return float(ConsistencyLoss(agreed, keep=0.0, beta=0.001)(features))

    measured, adapted = inconsistency(0, 0.3), inconsistency(10, 0.3)
    assert adapted < 0.95 * measured


def test_footprint_is_what_travels(trained: Any) -> None:
    experiment, server, _, _, uploads = trained
    method, layout = experiment.method, experiment.method.problem.layout
    cost = method.footprint(0.8)
    assert cost.parameters == sum(parameter.numel() for parameter in method.problem.backbone.parameters())
    assert cost.bytes_up == payload_bytes(uploads[0], layout) == payload_bytes(server.downlink(0), layout)
    assert cost.bytes_down == cost.bytes_up


def test_every_tensor_may_move_on_its_own(fedavg: Experiment, trained: Any) -> None:
    experiment, _, _, before, uploads = trained
    other = fdse(fedavg, granularity="per_tensor")
    server = Server(other)
    server.state.weights, server.state.round = dict(before), 1
    server.round_clients()
    for sent in uploads:
        server.receive(sent)
    server.close_round()
    names = ("conv1.dfe.weight",)
    step = consensus_step(torch.stack([joined(sent.weights, names) - joined(before, names) for sent in uploads]))
    torch.testing.assert_close(joined(server.state.weights, names), joined(before, names) + step, rtol=1e-6, atol=1e-7)
    assert experiment.method.roles.local == server.downlink(0).plan.omitted


@pytest.mark.long
def test_it_runs_on_residual_networks_whatever_the_pruning_scope(tiny_settings: SettingsFactory) -> None:
    few = ("client_num_in_total=4", "client_num_per_round=2", "client_share=0.05", "epochs=1", "personal=true")
    settings = tiny_settings("method=fdse", *few, "dapper_args.pruning.scope=grouped", "width=4")
    experiment = build_experiment(settings)
    server, records = simulate(experiment)
    last = records[-1]
    assert last.personal is not None
    assert len(last.personal.accuracy) == 4
    assert not experiment.method.problem.layout.groups
    assert last.scores is not None
    assert all(tensor.isfinite().all() for tensor in server.state.weights.values())


@pytest.mark.parametrize(
    "setting",
    [{"lambda_": -1}, {"tau": 0}, {"beta": -0.1}, {"expansion": 1}, {"keep": 1}, {"dse_act": "tanh"},
     {"granularity": "layer"}, {"adapt_epochs": -1}, {"adapt_learning_rate": 0}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.fdse"):
        FDSE.check_params(setting)


class Declared(nn.Module):
    """Two layers of unequal width, the second of which stands first in the class."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Sequential(nn.Conv2d(12, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.first = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.classes = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classes(self.second(self.first(images)).mean((2, 3)))
        return found


def test_layers_go_in_the_order_of_the_forward_pass(tiny_settings: Callable[..., Settings]) -> None:
    few = ("width=null", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.02", "comm_round=2")
    experiment = build_experiment(tiny_settings(*few, "method=fdse"), Declared())
    assert list(decomposed_layers(experiment.method.problem.backbone)) == ["first.0", "second.0"]
    assert len(simulate(experiment)[1]) == 2  # whose second compares each layer with what is agreed for it
