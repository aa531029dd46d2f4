"""FedDyn, by hand and by its optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import ClientSide, Experiment, Server
from fedml_dapper.methods import ClientContext, ServerState, TrainingMetrics, Upload
from fedml_dapper.methods.catalogue.feddyn import FedDyn, FedDynParams, dynamic, new_drift, new_gradient


def feddyn(fedavg: Experiment, **values: Any) -> Experiment:
    return replace(fedavg, method=FedDyn(FedDynParams(**values), fedavg.method.problem))


def test_term_by_hand() -> None:
    w = {"a": torch.tensor([1.0, 2.0], requires_grad=True)}
    term = dynamic(w, {"a": torch.tensor([3.0, -1.0])}, {"a": torch.tensor([2.0, 4.0])}, alpha=0.5)
    assert term.item() == -(3 - 2) + 0.25 * (1 + 4)
    term.backward()
    assert w["a"].grad is not None
    assert w["a"].grad.tolist() == [-3 + 0.5 * -1, 1 + 0.5 * -2]  # -g + alpha (w - W)
    first = dynamic(w, {}, {"a": torch.tensor([2.0, 4.0])}, alpha=0.5)
    assert first.item() == 0.25 * 5


def test_exact_solves_meet_in_the_optimum() -> None:
    """f1 = w^2 / 2 and f2 = (w - 4)^2 / 2 from W = 10, alpha 0.5."""
    alpha, optimum = 0.5, torch.tensor([0.0, 4.0]).double()
    received, h, g = torch.tensor(10.0).double(), torch.tensor(0.0).double(), torch.zeros(2).double()
    for _ in range(100):
        w = nn.Parameter((optimum + g + alpha * received) / (1 + alpha))
        objective = (w - optimum).square().sum() / 2 + dynamic({"w": w}, {"w": g}, {"w": received}, alpha)
        objective.backward()
        assert w.grad is not None
        assert w.grad.abs().max() < 1e-12  # the local solve is exact
        g = new_gradient(g, w.detach(), received, alpha)
        torch.testing.assert_close(g, w.detach() - optimum)  # g_i is the loss's gradient at the local optimum
        mean = w.detach().mean()
        h = new_drift(h, mean, received, alpha, share=1.0)
        received = mean - h / alpha
    assert float(received) == pytest.approx(2.0, abs=1e-6)
    assert g.tolist() == pytest.approx([2.0, -2.0], abs=1e-6)
    assert float(h) == pytest.approx(0.0, abs=1e-6)


def test_first_gradient_is_fedavgs_and_later_ones_are_not(fedavg: Experiment) -> None:
    experiment = feddyn(fedavg)
    method, data = experiment.method, experiment.clients[0]
    client, downlink = ClientContext(experiment.profiles[0], data), Server(experiment).downlink(0)
    batch = next(data.batches(1, 1))

    def gradient() -> tuple[float, Tensor]:
        model = method.load(client, downlink)
        value = method.objective(client, downlink)(model, batch)
        value.backward()
        assert model.predictor.bias.grad is not None
        return value.item(), model.predictor.bias.grad

    model = method.load(client, downlink)
    plain = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
    plain.backward()
    value, first = gradient()
    assert value == plain.item()
    assert torch.equal(first, model.predictor.bias.grad)
    method.local_update(client, downlink)
    torch.testing.assert_close(gradient()[1], first - client.memory.recall("gradient")["predictor.bias"])


def test_memory_is_by_client_and_parameter(fedavg: Experiment) -> None:
    experiment = feddyn(fedavg, alpha=0.2)
    server = Server(experiment)
    clients = ClientSide(experiment, server.memories)
    names = dict(experiment.method.problem.backbone.named_parameters()).keys()
    expected: dict[int, Tensor] = {}
    for client_id in (0, 2, 2):  # as with partial participation
        downlink = server.downlink(client_id)
        upload = clients.update(downlink, experiment.clients[client_id])
        moved = upload.weights["predictor.weight"] - downlink.weights["predictor.weight"]
        expected[client_id] = expected.get(client_id, torch.zeros_like(moved)) - 0.2 * moved
        remembered = clients.memories[client_id].recall("gradient")
        assert remembered.keys() == names
        torch.testing.assert_close(remembered["predictor.weight"], expected[client_id], rtol=1e-6, atol=1e-8)
    assert not torch.equal(expected[0], expected[2])
    assert 1 not in clients.memories


@pytest.fixture
def state(fedavg: Experiment) -> ServerState:
    return ServerState(0, dict(fedavg.method.problem.backbone.state_dict()), fedavg.profiles)


def moved(state: ServerState, client_id: int, num_samples: int, by: float) -> Upload:
    """An upload in which everything is ``by`` more than what ``state`` holds."""
    weights = {name: tensor + torch.tensor(by).to(tensor.dtype) for name, tensor in state.weights.items()}
    return Upload(1, client_id, num_samples, weights, TrainingMetrics(1.0, 1, 0.0))


def test_server_by_hand(fedavg: Experiment, state: ServerState) -> None:
    method, before = feddyn(fedavg, alpha=0.5).method, dict(state.weights)
    aggregation = method.aggregation(state)
    for client_id, num_samples, by in ((0, 1, 1.0), (3, 100, 3.0)):
        aggregation.add(moved(state, client_id, num_samples, by))
    aggregation.close()
    h = state.memory.recall("h")
    assert h.keys() == dict(method.problem.backbone.named_parameters()).keys()
    for name, tensor in h.items():  # two of four clients, by 2 in the mean: -(0.5 / 4) (1 + 3)
        torch.testing.assert_close(tensor, torch.full_like(tensor, -0.5), rtol=1e-5, atol=0)
        torch.testing.assert_close(state.weights[name], before[name] + 2 + 0.5 / 0.5)
    statistics, counter = (f"stem.1.{name}" for name in ("running_mean", "num_batches_tracked"))
    assert torch.equal(state.weights[statistics], before[statistics] + 2)  # no drift on buffers
    assert (int(state.weights[counter]), state.weights[counter].dtype) == (3, torch.int64)

    second = method.aggregation(state)
    second.add(moved(state, 1, 1, -4.0))
    second.close()
    for tensor in state.memory.recall("h").values():
        torch.testing.assert_close(tensor, torch.zeros_like(tensor), rtol=0, atol=1e-5)  # -0.5 + 0.5 / 4 * 4
    torch.testing.assert_close(state.weights["predictor.bias"], before["predictor.bias"] + 3 - 4)  # then it is the mean


def test_an_upload_that_does_not_fit_changes_nothing(fedavg: Experiment, state: ServerState) -> None:
    aggregation, before = feddyn(fedavg).method.aggregation(state), dict(state.weights)
    good = moved(state, 0, 1, 1.0)
    with pytest.raises(ProtocolError, match=r"predictor\.bias"):
        aggregation.add(replace(good, weights={**good.weights, "predictor.bias": torch.zeros(3)}))
    aggregation.add(good)
    aggregation.close()
    torch.testing.assert_close(state.weights["predictor.bias"], before["predictor.bias"] + 1 + 1 / 4)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dapper_args\.params\.feddyn"):
        FedDyn.check_params({"alpha": 0})


def test_the_order_in_which_memory_comes_back_does_not_matter() -> None:
    weights = {name: torch.ones(1) for name in "abc"}
    gradient = {"a": torch.tensor([1e8]), "b": torch.tensor([1.0]), "c": torch.tensor([-1e8])}
    reordered = {name: gradient[name] for name in "acb"}  # in float32, 1e8 + 1 - 1e8 is 0, and 1e8 - 1e8 + 1 is 1
    assert dynamic(weights, reordered, weights, 0.1).equal(dynamic(weights, gradient, weights, 0.1))
