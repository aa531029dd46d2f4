"""What holds for every method whose server cuts a sub-model out of the global model."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import load_settings
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment
from fedml_dapper.federation.round.roster import Roster
from fedml_dapper.methods import METHODS, Downlink, TrainingMetrics, Upload, payload_bytes
from fedml_dapper.methods.parts.masked_classes import MaskedClasses
from fedml_dapper.pruning import Device, PruningPlan, slim_tensors

from .sample_counts import say_that_clients_hold

DIGITS = Path(__file__).parents[2] / "config" / "digits_offline.yaml"
SUB_MODELS = ("feddrop", "fedmp", "heterofl", "fedrolex", "fjord", "fedecover", "fiarse")
RATIOS = (0.0, 0.3, 0.5, 0.7)


@pytest.fixture(scope="module")
def base() -> Experiment:
    """Four clients of four levels; loaded once, with a method to be put in."""
    few = ["client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1", "comm_round=9"]
    untested = ["frequency_of_the_test=9"]
    return build_experiment(load_settings([DIGITS], ["width=8", *few, *untested, f"ratios={list(RATIOS)}"]))


def with_method(base: Experiment, name: str, **params: Any) -> Experiment:
    method = METHODS[name]
    problem = replace(base.method.problem, ratios=base.settings.dapper_args.levels.ratios)
    return replace(base, method=method(method.check_params(params), problem))


def answer(experiment: Experiment, downlink: Downlink, weights: dict[str, Tensor], num_samples: int) -> Upload:
    """An upload of ``weights``; of a client that has images of all classes, where the method asks."""
    metrics = TrainingMetrics(loss=1.0, steps=1, seconds=0.0)
    extras = {"classes": torch.ones(10, dtype=torch.bool)} if isinstance(experiment.method, MaskedClasses) else {}
    return Upload(downlink.round, downlink.client_id, num_samples, weights, metrics, downlink.plan, extras=extras)


def server_of_random_weights(experiment: Experiment) -> Server:
    server = Server(experiment)
    for name, tensor in server.state.weights.items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape) - (0 if name.endswith("running_var") else 0.5))
    return server


@pytest.mark.long
def test_with_full_models_they_are_fedavg_bit_for_bit(base: Experiment) -> None:
    levels = base.settings.dapper_args.levels.model_copy(update={"ratios": (0.0,) * 5})
    args = base.settings.dapper_args.model_copy(update={"levels": levels})
    settings = base.settings.model_copy(update={"dapper_args": args})
    devices = [Device(client.client_id, client.domain, client.num_samples) for client in base.clients]
    base = replace(base, settings=settings, roster=Roster(settings, base.method, devices))
    plain = {"masked_loss": False, "bn_statistics": "slim"}

    def trained(name: str, **params: Any) -> dict[str, Tensor]:
        experiment = with_method(base, name, **params)
        server, clients = Server(experiment), ClientSide(experiment)
        for client_id in server.round_clients():
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
        return server.state.weights

    fedavg = trained("fedavg")
    for name, params in (
        ("feddrop", {"uniform_rho": 0}),
        ("fedmp", {}),
        ("fedmp", {"ratio": "eucb", "max_ratio": 0.1}),  # bandits of a single arm
        ("heterofl", plain),
        ("fedrolex", plain),
        ("fjord", {"bn_statistics": "slim"}),
        ("fjord", {"bn_statistics": "slim", "distillation": True}),
        ("fedecover", {"bn_statistics": "slim"}),
        ("fiarse", {"bn_statistics": "slim"}),
    ):
        assert all(torch.equal(tensor, fedavg[key]) for key, tensor in trained(name, **params).items()), name


@pytest.mark.parametrize("name", SUB_MODELS)
def test_untrained_sub_models_give_the_global_model_back(base: Experiment, name: str) -> None:
    experiment = with_method(base, name)
    server = server_of_random_weights(experiment)
    before, held = copy.deepcopy(server.state.weights), (7, 250, 31, 64)
    say_that_clients_hold(server, held)
    for client_id, samples in zip(server.round_clients(), held, strict=True):
        downlink = server.downlink(client_id)
        server.receive(answer(experiment, downlink, dict(downlink.weights), samples))
    server.close_round()
    assert all(torch.equal(tensor, before[key]) for key, tensor in server.state.weights.items())


@pytest.mark.parametrize(
    ("name", "params", "shares"),
    [
        ("feddrop", {}, (0.25, 0.75)),
        ("feddrop", {"fill": "holders"}, (1.0, 1.0)),
        ("fedmp", {}, (0.25, 0.75)),
        ("heterofl", {}, (1.0, 1.0)),
        ("fedrolex", {}, (1.0, 1.0)),
        ("fjord", {}, (1.0, 1.0)),
        ("fedecover", {}, (1.0, 1.0)),
        ("fiarse", {}, (1.0, 1.0)),
    ],
)
def test_disjoint_sub_models_move_only_what_they_hold(
    base: Experiment, name: str, params: dict[str, Any], shares: tuple[float, float]
) -> None:
    experiment = with_method(base, name, **params)
    server = server_of_random_weights(experiment)
    before = copy.deepcopy(server.state.weights)
    layout, group = experiment.method.problem.layout, "stages.0.0.conv1"
    aggregation = experiment.method.aggregation(server.state)
    for client_id, kept, moved, samples in ((0, [0, 1, 2], 1.0, 1), (1, [3, 4], 2.0, 3)):
        plan = PruningPlan({group: torch.tensor(kept)})
        slim = slim_tensors(before, layout, plan)
        weights = {key: tensor + moved if tensor.is_floating_point() else tensor for key, tensor in slim.items()}
        aggregation.add(answer(experiment, Downlink(1, client_id, {}, plan), weights, samples))
    aggregation.close()
    by_channel = [1.0 * shares[0]] * 3 + [2.0 * shares[1]] * 2 + [0.0] * 3
    difference = server.state.weights[f"{group}.weight"] - before[f"{group}.weight"]
    torch.testing.assert_close(difference, torch.tensor(by_channel)[:, None, None, None].expand(difference.shape))
    difference = server.state.weights["predictor.bias"] - before["predictor.bias"]
    torch.testing.assert_close(difference, torch.full((10,), 0.25 * 1 + 0.75 * 2))


@pytest.mark.parametrize("name", SUB_MODELS)
def test_plans_are_pure_and_both_sides_hold_what_the_footprint_says(base: Experiment, name: str) -> None:
    experiment = with_method(base, name)
    method, layout = experiment.method, experiment.method.problem.layout
    server, clients = Server(experiment), ClientSide(experiment)
    for client_id in server.round_clients():
        downlink = server.downlink(client_id)
        again = method.plan(server.state, client_id)
        upload = clients.update(downlink, experiment.clients[client_id])
        for plan in (again, upload.plan):
            assert plan.kept.keys() == downlink.plan.kept.keys()
            assert all(torch.equal(indices, plan.kept[key]) for key, indices in downlink.plan.kept.items())
        expected = slim_tensors(server.state.weights, layout, again)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in downlink.weights.items())
        assert {key: tensor.shape for key, tensor in upload.weights.items()} == {
            key: tensor.shape for key, tensor in downlink.weights.items()
        }
        cost = method.footprint(experiment.profiles[client_id].ratio)
        assert (payload_bytes(downlink, layout), payload_bytes(upload, layout)) == (cost.bytes_down, cost.bytes_up)
        assert method.model_size(upload.plan) == (cost.parameters, cost.macs)
    assert server.state.memory.values == {}
