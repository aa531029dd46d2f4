"""SCAFFOLD, by hand and by its optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import ModelArgs, PruningArgs, TrainArgs
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import (
    ClientContext,
    Downlink,
    FedAvg,
    Memory,
    Problem,
    ServerState,
    TrainingMetrics,
    Upload,
    payload_bytes,
)
from fedml_dapper.methods.catalogue.fedavg import FedAvgParams
from fedml_dapper.methods.catalogue.scaffold import (
    SCAFFOLD,
    SCAFFOLDParams,
    correct,
    new_control,
    server_step,
    unit_steps,
)
from fedml_dapper.methods.contract.local_training import Loss
from fedml_dapper.models import build_backbone, example_image

from .sample_counts import say_that_clients_hold

COUNTS = (10, 250, 3, 77)
"""Samples that the uploads are said to stem from; the clients really hold equally many."""


def scaffold(fedavg: Experiment, **values: Any) -> Experiment:
    return replace(fedavg, method=SCAFFOLD(SCAFFOLDParams(**values), fedavg.method.problem))


def play(experiment: Experiment, rounds: int) -> tuple[Server, ClientSide]:
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)
    say_that_clients_hold(server, COUNTS)
    for _ in range(rounds):
        for client_id, count in zip(server.round_clients(), COUNTS, strict=True):
            upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
            server.receive(replace(upload, num_samples=count))
        server.close_round()
    return server, clients


def stationary(
    corrects: bool, rounds: int = 400, steps: int = 10, eta: float = 0.05
) -> tuple[float, float, list[float]]:
    """x, c and the c_i after full-gradient rounds on f1 = w^2 / 2 and f2 = 3 (w - 4)^2 / 2 from x = 10."""
    curvature, optimum = torch.tensor([1.0, 3.0]).double(), torch.tensor([0.0, 4.0]).double()
    steps, eta = 10, 0.05
    x, c, own = torch.tensor(10.0).double(), torch.tensor(0.0).double(), torch.zeros(2).double()
    for _ in range(400):
        w = nn.Parameter(x.repeat(2))  # of both clients
        optimizer = torch.optim.SGD([w], eta)
        for _ in range(steps):
            w.grad = curvature * (w.detach() - optimum)
            if corrects:
                correct({"w": w}, {"w": c}, {"w": own})
            optimizer.step()
        renewed = new_control(own, c, x, w.detach(), eta * unit_steps(steps, 0.0))
        c = c + (renewed - own).mean()
        x = server_step(x, w.detach().mean(), 1.0)
        own = renewed
    return float(x), float(c), own.tolist()


def test_it_finds_the_optimum_that_fedavg_misses() -> None:
    x, c, own = stationary(corrects=True)
    assert x == pytest.approx(3.0, abs=1e-6)
    assert c == pytest.approx(0.0, abs=1e-6)
    assert own == pytest.approx([3.0, -3.0], abs=1e-6)  # the clients' gradients at 3
    assert stationary(corrects=False)[0] == pytest.approx(2.667330, abs=1e-6)


def test_option_two_by_hand() -> None:
    tensor = torch.tensor
    assert float(new_control(tensor(0.5), tensor(0.25), tensor(3.0), tensor(1.0), 4 * 0.1)) == pytest.approx(5.25)


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 5.0), (0.5, 1 + 1.5 + 1.75 + 1.875 + 1.9375)])
def test_momentum_is_divided_out(momentum: float, expected: float) -> None:
    assert unit_steps(5, momentum) == expected
    w = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD([w], 0.1, momentum)
    for _ in range(5):
        w.grad = torch.tensor(0.7)
        optimizer.step()
    zero = torch.tensor(0.0)
    control = new_control(zero, zero, torch.tensor(2.0), w.detach(), 0.1 * unit_steps(5, momentum))
    assert float(control) == pytest.approx(0.7, rel=1e-5)


def test_first_round_is_fedavg_without_momentum_and_uniform_bit_for_bit(fedavg: Experiment) -> None:
    problem = fedavg.method.problem
    assert problem.training.momentum == 0.9
    plain = replace(problem, uniform_weights=True, training=problem.training.model_copy(update={"momentum": 0.0}))
    expected, _ = play(replace(fedavg, method=FedAvg(FedAvgParams(), plain)), 2)
    once, _ = play(replace(fedavg, method=FedAvg(FedAvgParams(), plain)), 1)
    first, _ = play(scaffold(fedavg), 1)
    assert all(torch.equal(tensor, first.state.weights[name]) for name, tensor in once.state.weights.items())

    second, clients = play(scaffold(fedavg), 2)
    assert not torch.equal(second.state.weights["predictor.weight"], expected.state.weights["predictor.weight"])
    c = second.state.memory.recall("control")
    assert c.keys() == dict(problem.backbone.named_parameters()).keys()
    for name, tensor in c.items():  # sum_i c_i = N c
        own = sum(clients.memories[client_id].recall("control")[name] for client_id in range(4))
        torch.testing.assert_close(own, 4 * tensor, rtol=1e-4, atol=1e-5)
    assert float(c["predictor.weight"].abs().max()) > 1e-3


def test_a_step_is_moved_by_c_and_its_trace_is_the_gradient(fedavg: Experiment) -> None:
    experiment = scaffold(fedavg)
    method, data = experiment.method, experiment.clients[0]
    data = replace(data, samples=data.samples.take(torch.arange(data.batch_size)))
    assert data.steps_per_epoch == 1
    downlink = Server(experiment).downlink(0)
    c = {name: torch.full_like(tensor, 0.5) for name, tensor in downlink.extras.items()}
    variants = {"plain": ({}, {}), "moved": (c, {}), "cancelled": (c, c)}
    uploads, traces = {}, {}
    for key, (sent, own) in variants.items():
        memory = Memory()
        memory.keep("control", own)
        client = ClientContext(experiment.profiles[0], data, memory)
        uploads[key] = method.local_update(client, replace(downlink, extras={**downlink.extras, **sent}))
        traces[key] = memory.recall("control")
    for name, moved_by in c.items():
        plain, moved, cancelled = (uploads[key].weights[name] for key in variants)
        torch.testing.assert_close(plain - moved, 0.01 * moved_by, rtol=1e-3, atol=1e-7)  # eta c
        assert torch.equal(plain, cancelled)
        for key in ("moved", "cancelled"):  # c_i+ is the gradient at x, whatever c and c_i were
            torch.testing.assert_close(traces[key][name], traces["plain"][name], rtol=1e-3, atol=5e-5)
        torch.testing.assert_close(uploads["cancelled"].extras[name], traces["cancelled"][name] - moved_by)


class SCAFFOLDOnASlope(SCAFFOLD):
    """Every parameter's gradient is 0.1 everywhere."""

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        return lambda model, batch: 0.1 * torch.stack([parameter.sum() for parameter in model.parameters()]).sum()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_divisor_is_that_of_the_steps_really_made(fedavg: Experiment, momentum: float) -> None:
    method = SCAFFOLDOnASlope(SCAFFOLDParams(momentum=momentum), fedavg.method.problem)
    client = ClientContext(fedavg.profiles[0], fedavg.clients[0])
    assert client.data.steps_per_epoch == 2  # of 33 samples: a last batch of one is dropped
    method.local_update(client, Server(replace(fedavg, method=method)).downlink(0))
    for tensor in client.memory.recall("control").values():
        torch.testing.assert_close(tensor, torch.full_like(tensor, 0.1), rtol=2e-3, atol=0)  # weight decay is in it


@pytest.fixture
def upload(fedavg: Experiment) -> Upload:
    """Parameters, buffers and control variates that are all one more than the initial ones."""
    state = fedavg.method.problem.backbone.state_dict()
    controls = {
        name: torch.ones_like(parameter) for name, parameter in fedavg.method.problem.backbone.named_parameters()
    }
    metrics = TrainingMetrics(1.0, 1, 0.0)
    return Upload(1, 0, 5, {name: tensor + 1 for name, tensor in state.items()}, metrics, extras=controls)


def state_of(fedavg: Experiment, clients: int) -> ServerState:
    weights: dict[str, Tensor] = dict(fedavg.method.problem.backbone.state_dict())
    return ServerState(0, weights, fedavg.profiles[:clients])


@pytest.mark.parametrize(("clients", "share"), [(1, 1.0), (4, 0.25)])
def test_server_steps(fedavg: Experiment, upload: Upload, clients: int, share: float) -> None:
    server = state_of(fedavg, clients)
    before = server.weights
    aggregation = scaffold(fedavg, eta_g=0.5).method.aggregation(server)
    aggregation.add(upload)
    aggregation.close()
    for name, tensor in server.memory.recall("control").items():
        assert torch.equal(tensor, torch.full_like(tensor, share))  # |S| / N; of one client it is c_1
        torch.testing.assert_close(server.weights[name], before[name] + 0.5)
    assert torch.equal(server.weights["stem.1.running_mean"], before["stem.1.running_mean"] + 1)
    counter = server.weights["stem.1.num_batches_tracked"]
    assert (int(counter), counter.dtype) == (1, torch.int64)


def test_an_upload_that_does_not_fit_changes_nothing(fedavg: Experiment, upload: Upload) -> None:
    server = state_of(fedavg, 1)
    aggregation = scaffold(fedavg).method.aggregation(server)
    short = {name: tensor for name, tensor in upload.weights.items() if name != "predictor.bias"}
    doubled = {name: 2 * tensor for name, tensor in upload.weights.items()}
    for bad in (replace(upload, weights=doubled, extras={}), replace(upload, weights=short)):
        with pytest.raises(ProtocolError, match="differ from the expected"):
            aggregation.add(bad)
    aggregation.add(upload)
    aggregation.close()
    assert torch.equal(server.weights["predictor.bias"], upload.weights["predictor.bias"])
    assert float(server.memory.recall("control")["predictor.bias"][0]) == 1.0


def test_footprint_counts_the_control_variates(fedavg: Experiment) -> None:
    experiment = scaffold(fedavg)
    cost, plain, layout = (
        experiment.method.footprint(0.0),
        fedavg.method.footprint(0.0),
        experiment.method.problem.layout,
    )
    downlink = Server(experiment).downlink(0)
    upload = ClientSide(experiment).update(downlink, experiment.clients[0])
    assert (payload_bytes(downlink, layout), payload_bytes(upload, layout)) == (cost.bytes_down, cost.bytes_up)
    assert cost.bytes_up - plain.bytes_up == 4 * cost.parameters


def test_frozen_parameters_have_no_control_variates() -> None:
    example = example_image(16)
    backbone = build_backbone(ModelArgs(model="resnet10", width=4), 10, 0, example)
    backbone.get_submodule("stages").requires_grad_(False)
    problem = Problem(backbone, example, TrainArgs(), PruningArgs(), uniform_weights=False, seed=0, ratios=(0.0,))
    scaffold, plain = SCAFFOLD(SCAFFOLDParams(), problem), FedAvg(FedAvgParams(), problem)
    extra = scaffold.footprint(0.0).bytes_up - plain.footprint(0.0).bytes_up
    assert extra == 4 * sum(each.numel() for each in backbone.parameters() if each.requires_grad)


@pytest.mark.parametrize("setting", [{"eta_g": 0}, {"momentum": 1}])
def test_settings_out_of_range_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.scaffold"):
        SCAFFOLD.check_params(setting)
