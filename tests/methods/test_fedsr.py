"""FedSR, by hand or bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.federation.wire.agreement import Agreement
from fedml_dapper.federation.wire.codec import Codec
from fedml_dapper.methods import ClientContext, Memory, payload_bytes
from fedml_dapper.methods.catalogue.fedsr import ClassReferences, FedSR, FedSRParams, StochasticBackbone, kl, length
from fedml_dapper.methods.contract.local_training import Loss
from fedml_dapper.methods.contract.messages import Downlink
from fedml_dapper.models import example_image
from fedml_dapper.pruning import trace_layout

PERSONAL = {"references.mean", "references.scale", "references.k"}


def fedsr(fedavg: Experiment, **values: Any) -> Experiment:
    return replace(fedavg, method=FedSR(FedSRParams(**values), fedavg.method.problem))


def widened(experiment: Experiment) -> StochasticBackbone:
    model = experiment.method.problem.backbone
    assert isinstance(model, StochasticBackbone)
    return model


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def client_loss(experiment: Experiment, client_id: int = 0, round_: int = 1) -> float:
    """The objective on the first batch of the client, at the initial model."""
    data = experiment.clients[client_id]
    sent = Server(experiment).downlink(client_id)
    downlink = Downlink(round_, client_id, sent.weights, sent.plan)
    client = ClientContext(experiment.profiles[client_id], data)
    method = experiment.method
    batch = next(experiment.clients[0].batches(1, 1))
    return method.objective(client, downlink)(method.load(client, downlink).train(), batch).item()


def test_divergence_by_hand() -> None:
    mean, std = torch.tensor([[1.0, 0.0]]), torch.ones(1, 2)
    references = ClassReferences(num_classes=3, width=2)
    divergence = references.divergence(mean, std, torch.tensor([2]))
    assert divergence.item() == pytest.approx(0.414766, abs=1e-6)  # softplus(1) = 1.313262
    assert kl(3 * mean, 3 * std, 3 * mean, 3 * std).item() == 0
    with torch.no_grad():
        references.k.fill_(-2.0)
        references.mean[0] = torch.tensor([-2.0, 0.0])
        references.scale[0] = torch.tensor(2.0).expm1().log()  # softplus gives 2
    divergence = references.divergence(torch.cat([mean, mean]), torch.ones(2, 2), torch.tensor([0, 2]))
    at_two = kl(-2 * mean, 2 * std, torch.zeros(1, 2), torch.full((1, 2), 1.313262)).item()
    assert divergence.item() == pytest.approx((0 + at_two) / 2, rel=1e-5)  # k scales both; its sign only the mean


def test_length_by_hand() -> None:
    representations = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert (length(representations, "l2").item(), length(representations, "squared").item()) == (2.5, 12.5)


class OnWidenedNet(FedSR):
    """FedAvg on FedSR's network."""

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        del client, downlink
        return self.problem.task_loss


def test_without_terms_and_spread_it_is_fedavg_on_the_widened_net(fedavg: Experiment) -> None:
    def upload(kind: type[FedSR], alpha_l2r: float) -> dict[str, Tensor]:
        settings = FedSRParams(alpha_l2r=alpha_l2r, alpha_cmi=0, test_samples=0)
        experiment = replace(fedavg, method=kind(settings, fedavg.method.problem))
        model = widened(experiment)
        with torch.no_grad():  # softplus(-200) is 0, as is its gradient
            model.head.weight[64:] = 0
            model.head.bias[64:] = -200
        return dict(ClientSide(experiment).update(Server(experiment).downlink(0), fedavg.clients[0]).weights)

    reference = upload(OnWidenedNet, 0)
    assert same(upload(FedSR, 0), reference)
    assert not same(upload(FedSR, 0.01), reference)


def test_loss_is_the_sum_of_its_terms(fedavg: Experiment) -> None:
    def at(alpha_l2r: float, alpha_cmi: float, **values: Any) -> float:
        return client_loss(fedsr(fedavg, alpha_l2r=alpha_l2r, alpha_cmi=alpha_cmi, **values))

    task_loss = at(0, 0)
    l2r, squared, cmi = at(1, 0) - task_loss, at(1, 0, l2r_norm="squared") - task_loss, at(0, 1) - task_loss
    assert at(0.5, 0.25) == pytest.approx(task_loss + 0.5 * l2r + 0.25 * cmi, rel=1e-4)
    batch = next(fedavg.clients[0].batches(1, 1))
    mean, std = widened(fedsr(fedavg)).train().distribution(batch.inputs)
    reference = torch.zeros_like(mean), torch.full_like(std, 1.313262)
    assert cmi == pytest.approx(kl(mean, std, *reference).item(), rel=1e-3)
    assert squared == pytest.approx((mean.square() + std.square()).sum(dim=1).mean().item(), rel=0.1)  # E ||z||^2
    assert 0 < l2r < squared


def test_noise_depends_on_client_and_round_and_on_nothing_else(fedavg: Experiment) -> None:
    first = client_loss(fedsr(fedavg))
    torch.manual_seed(99)
    assert client_loss(fedsr(fedavg)) == first
    assert client_loss(fedsr(fedavg), round_=2) != first
    assert client_loss(fedsr(fedavg), client_id=1) != first


def test_references_are_trained_and_stay_with_the_client(fedavg: Experiment) -> None:
    experiment = fedsr(fedavg, alpha_cmi=0.1)
    method, server, clients = experiment.method, Server(experiment), ClientSide(experiment)
    upload = clients.update(server.downlink(0), experiment.clients[0])
    assert not PERSONAL & upload.weights.keys()
    assert payload_bytes(upload, method.problem.layout) == method.footprint(0.0).bytes_up
    kept = clients.memories[0].recall("personal")
    initial = widened(experiment).state_dict()
    assert kept.keys() == PERSONAL
    assert all(not torch.equal(tensor, initial[name]) for name, tensor in kept.items())
    context = ClientContext(experiment.profiles[0], experiment.clients[0], clients.memories[0])
    loaded = method.load(context, server.downlink(0)).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in kept.items())

    codec = Codec(method.problem.layout, Agreement.of(experiment))
    travelled, memory = codec.decode(codec.encode(upload, clients.memories[0]))
    assert isinstance(memory, Memory)
    assert same(memory.recall("personal"), kept)
    assert same(dict(travelled.weights), dict(upload.weights))


def test_references_can_be_shared(fedavg: Experiment) -> None:
    experiment = fedsr(fedavg, shared_references=True, alpha_cmi=0.1)
    server, clients = Server(experiment), ClientSide(experiment)
    for client_id in server.round_clients():
        upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
        assert upload.weights.keys() >= PERSONAL
        server.receive(upload)
    server.close_round()
    assert not clients.memories[0].tensors
    assert float(server.state.weights["references.k"]) != 1.0


def test_prediction_is_the_mean_over_fixed_draws(fedavg: Experiment) -> None:
    model = widened(fedsr(fedavg, test_samples=3)).eval()
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        predicted = model(images)
        mean, std = model.distribution(images)
        noise = model._test_noise
        by_hand = torch.stack([model.predict(mean + std * noise[i]).softmax(dim=1) for i in range(3)]).mean(dim=0)
        torch.testing.assert_close(predicted.exp(), by_hand)
        model(torch.randn(2, 3, 32, 32))
        torch.testing.assert_close(model(images.flip(0)).flip(0), predicted)  # neither order nor batch matters
        torch.testing.assert_close(model(images[:1]), predicted[:1])
    again = widened(fedsr(fedavg, test_samples=3))
    assert torch.equal(again._test_noise, noise)
    assert same(again.state_dict(), model.state_dict())


def test_zero_draws_predict_from_the_mean(fedavg: Experiment) -> None:
    model = widened(fedsr(fedavg, test_samples=0)).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), model.predict(model.encode(images)))


@pytest.mark.filterwarnings("error::UserWarning")
def test_widened_net_is_traced_in_every_scope(fedavg: Experiment) -> None:
    experiment, backbone = fedsr(fedavg), copy.deepcopy(fedavg.method.problem.backbone)
    head, references = 64 * 128 + 128, 2 * 10 * 64 + 1
    parameters = sum(tensor.numel() for tensor in backbone.parameters()) + head + references
    assert experiment.method.footprint(0.8).parameters == parameters
    groups = trace_layout(widened(experiment), example_image(32), "grouped").groups
    assert "encoder.stem.0" in groups
    encoder = widened(experiment).encoder.eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(encoder.encode(images), backbone.eval().encode(images))  # the same initial weights as FedAvg


@pytest.mark.parametrize("setting", [{"alpha_l2r": -1}, {"l2r_norm": "l1"}, {"test_samples": -1}])
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.fedsr"):
        FedSR.check_params(setting)
