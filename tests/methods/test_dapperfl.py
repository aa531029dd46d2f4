"""DapperFL, by hand or bit for bit."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import Upload, payload_bytes
from fedml_dapper.methods.catalogue import dapperfl
from fedml_dapper.methods.contract import LocalTraining
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import DENSE, plan_by_importance, slim_model, slim_tensors

from .plain_sgd import descend, sgd

SettingsFactory = Callable[..., Settings]
OFF = "dapper_args.params.dapperfl={alpha_0: 0, alpha_min: 0, gamma: 0}"
DENSE_LEVELS = "ratios=[0.0]"


def params(**values: Any) -> str:
    return f"dapper_args.params.dapperfl={values}".replace("'", "").replace(": False", ": false")


def final_weights(settings: Settings) -> dict[str, Tensor]:
    server, _ = simulate(build_experiment(settings))
    return server.state.weights


def one_upload(experiment: Experiment, client_id: int) -> tuple[Server, Upload]:
    server = Server(experiment)
    server.round_clients()
    return server, ClientSide(experiment).update(server.downlink(client_id), experiment.clients[client_id])


def client_of_level(experiment: Experiment, level: int) -> int:
    return next(profile.client_id for profile in experiment.profiles if profile.level == level)


@pytest.mark.parametrize("norm", ["batch", pytest.param("standardised", marks=pytest.mark.nightly)])
def test_with_everything_off_it_is_fedavg_bit_for_bit(tiny_settings: SettingsFactory, norm: str) -> None:
    network = f"norm={norm}"
    dapperfl = final_weights(tiny_settings(OFF, DENSE_LEVELS, network))
    fedavg = final_weights(tiny_settings("method=fedavg", network))
    assert all(torch.equal(tensor, fedavg[name]) for name, tensor in dapperfl.items())
    with_dar = final_weights(tiny_settings(params(alpha_0=0, alpha_min=0), DENSE_LEVELS, network))
    assert any(not torch.equal(tensor, fedavg[name]) for name, tensor in with_dar.items())


def test_fusion_alone_blends_fedavg_with_the_previous_model(tiny_settings: SettingsFactory) -> None:
    one_round = ("comm_round=1", "epochs=1", DENSE_LEVELS)
    experiment = build_experiment(tiny_settings(*one_round))
    initial = experiment.method.problem.backbone.state_dict()
    fused = final_weights(tiny_settings(*one_round, params(alpha_0=0.3, alpha_min=0.3, gamma=0)))
    fedavg = final_weights(tiny_settings(*one_round, "method=fedavg"))
    trainable = {name for name, _ in experiment.method.problem.backbone.named_parameters()}
    for name, tensor in fused.items():
        expected = 0.3 * initial[name] + 0.7 * fedavg[name] if name in trainable else fedavg[name]
        torch.testing.assert_close(tensor, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("level", [1, 3])
def test_a_client_s_round_by_hand(tiny_settings: SettingsFactory, level: int) -> None:
    """Algorithm 1 in plain torch: both epochs descend cross-entropy + gamma ||z||^2 (Eq. 3-5), and the second one, on
    what is left of the fused model, goes on with the momentum of the first."""
    gamma, alpha = 0.1, 0.3
    experiment = build_experiment(tiny_settings(params(gamma=gamma, alpha_0=alpha, alpha_min=alpha)))
    client = client_of_level(experiment, level)
    _, upload = one_upload(experiment, client)
    problem = experiment.method.problem
    received = problem.backbone.state_dict()

    def epoch(model: Backbone, optimizer: torch.optim.SGD, number: int) -> None:
        batches = experiment.clients[client].batches(1, number)
        descend(model, optimizer, batches, lambda z: gamma * z.square().sum(dim=1).mean())

    dense = copy.deepcopy(problem.backbone)
    optimizer = sgd(dense, problem.training)
    epoch(dense, optimizer, 1)
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            parameter.copy_(alpha * received[name] + (1 - alpha) * parameter)
    plan = plan_by_importance(problem.layout, dense.state_dict(), upload.plan.widths)
    assert plan.equals(upload.plan)
    momenta = {name: optimizer.state[parameter]["momentum_buffer"] for name, parameter in dense.named_parameters()}
    slim = slim_model(dense, problem.layout, plan)
    optimizer = sgd(slim, problem.training)
    for name, momentum in slim_tensors(momenta, problem.layout, plan).items():
        optimizer.state[slim.get_parameter(name)]["momentum_buffer"] = momentum.clone()
    epoch(slim, optimizer, 2)
    for name, parameter in slim.named_parameters():
        torch.testing.assert_close(upload.weights[name], parameter.detach(), atol=1e-6, rtol=1e-5)


def test_upload_is_slim_and_costs_what_the_footprint_says(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings())
    method, layout = experiment.method, experiment.method.problem.layout
    for level, ratio in enumerate((0.0, 0.2, 0.4, 0.6, 0.8), start=1):
        _, upload = one_upload(experiment, client_of_level(experiment, level))
        cost = method.footprint(ratio)
        assert len(upload.unsliced) == (0 if ratio == 0 else 24)  # mean and variance of 12 BatchNorms
        trainable = sum(tensor.numel() for name, tensor in upload.weights.items() if layout.tensors[name].trainable)
        assert trainable == cost.parameters
        assert payload_bytes(upload, layout) == cost.bytes_up


def test_the_dense_model_is_not_held_while_the_slim_one_trains(
    tiny_settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def cut(model: nn.Module, *rest: Any) -> nn.Module:
        dense.extend(weakref.ref(parameter) for parameter in model.parameters())
        return slim_model(model, *rest)

    def epoch(training: LocalTraining, *rest: Any, times: int = 1, **options: Any) -> None:
        for _ in range(times):
            train(training, *rest, **options)
            alive.append(sum(parameter() is not None for parameter in dense))

    train = LocalTraining.epoch
    monkeypatch.setattr(dapperfl, "slim_model", cut)
    monkeypatch.setattr(LocalTraining, "epoch", epoch)
    experiment = build_experiment(tiny_settings("epochs=3"))
    one_upload(experiment, client_of_level(experiment, 5))
    assert dense
    assert alive == [0, 0, 0]


def test_importance_is_taken_on_the_fused_weights(tiny_settings: SettingsFactory) -> None:
    fast = ("epochs=1", "ratios=[0.5]", "learning_rate=0.3")
    frozen = build_experiment(tiny_settings(params(alpha_0=1.0, alpha_min=1.0), *fast))
    _, upload = one_upload(frozen, 0)
    _, unfused = one_upload(build_experiment(tiny_settings(params(fusion=False), *fast)), 0)
    assert any(not kept.equal(unfused.plan.kept[name]) for name, kept in upload.plan.kept.items())
    initial = frozen.method.problem.backbone.state_dict()
    for name, indices in upload.plan.kept.items():
        scores = initial[f"{name}.weight"].abs().double().flatten(1).sum(1)
        assert indices.tolist() == sorted(scores.topk(len(indices)).indices.tolist())
    trainable = {name for name, _ in frozen.method.problem.backbone.named_parameters()}
    kept = slim_tensors({name: initial[name] for name in trainable}, frozen.method.problem.layout, upload.plan)
    assert all(torch.equal(upload.weights[name], tensor) for name, tensor in kept.items())


@pytest.mark.long
def test_statistics_are_those_of_the_dense_epoch(tiny_settings: SettingsFactory) -> None:
    def statistics_after(epochs: int, choice: str) -> dict[str, Tensor]:
        experiment = build_experiment(tiny_settings(f"epochs={epochs}", params(bn_statistics=choice)))
        _, upload = one_upload(experiment, client_of_level(experiment, 5))
        return {name: tensor for name, tensor in upload.weights.items() if "running" in name}

    one, three = statistics_after(1, "dense_epoch"), statistics_after(3, "dense_epoch")
    assert all(torch.equal(tensor, three[name]) for name, tensor in one.items())
    assert statistics_after(3, "slim")["stages.3.0.bn1.running_mean"].shape < one["stages.3.0.bn1.running_mean"].shape
    recalibrated = statistics_after(1, "recalibrate"), statistics_after(3, "recalibrate")
    assert all(torch.equal(tensor, recalibrated[1][name]) for name, tensor in recalibrated[0].items())
    assert any(not torch.equal(tensor, one[name]) for name, tensor in recalibrated[0].items())


def test_what_everyone_drops_never_changes(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings(params(alpha_0=1.0, alpha_min=1.0), "ratios=[0.8]", "comm_round=1")
    experiment = build_experiment(settings)
    initial = experiment.method.problem.backbone.state_dict()
    _, upload = one_upload(experiment, 0)  # alpha = 1: every client prunes the same, initial weights
    after = final_weights(settings)
    name = "stages.3.0.conv1"
    dropped = sorted(set(range(64)) - set(upload.plan.kept[name].tolist()))
    assert torch.equal(after[f"{name}.weight"][dropped], initial[f"{name}.weight"][dropped])
    assert not torch.equal(after[f"{name}.weight"], initial[f"{name}.weight"])


def test_permuting_arrival_changes_nothing(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings())
    results = []
    for order in (range(5), [2, 4, 0, 1, 3]):
        server, clients = Server(experiment), ClientSide(experiment)
        server.round_clients()
        for client_id in order:
            server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
        server.close_round()
        results.append(server.state.weights)
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


def test_momentum_is_carried_unless_told_otherwise(tiny_settings: SettingsFactory) -> None:
    def upload(carry: str) -> Upload:
        experiment = build_experiment(tiny_settings(f"dapper_args.params.dapperfl.carry_momentum={carry}"))
        return one_upload(experiment, client_of_level(experiment, 5))[1]

    carried, fresh = upload("true"), upload("false")
    assert torch.equal(carried.plan.kept["stages.0.0.conv1"], fresh.plan.kept["stages.0.0.conv1"])
    assert not torch.equal(carried.weights["predictor.weight"], fresh.weights["predictor.weight"])


@pytest.mark.parametrize("switch", ["fusion_scope=weights", "fusion_scope=all", "dar_in_finetune=false", "dar_norm=l2"])
def test_each_switch_changes_the_upload(tiny_settings: SettingsFactory, switch: str) -> None:
    base = one_upload(build_experiment(tiny_settings()), 0)[1]
    other = one_upload(build_experiment(tiny_settings(f"dapper_args.params.dapperfl.{switch}")), 0)[1]
    assert any(
        tensor.shape != other.weights[name].shape or not torch.equal(tensor, other.weights[name])
        for name, tensor in base.weights.items()
    )


OFFICIAL = ("scope=official_mask", "ratio_of=channels", "assignment=index_mod")


def test_official_compatibility_masks_and_zero_fills(tiny_settings: SettingsFactory) -> None:
    switches = params(fusion=False, recovery="zero", dar_norm="l2", bn_statistics="slim")
    experiment = build_experiment(tiny_settings(*OFFICIAL, switches, "ratios=[0.8]", "comm_round=1"))
    _, upload = one_upload(experiment, 0)
    weights = upload.weights["stages.3.0.conv2.weight"]
    assert upload.plan is DENSE
    assert float((weights != 0).double().mean()) == pytest.approx(0.04, abs=0.01)  # (1 - rho)^2
    server, _ = simulate(experiment)
    everyone = [one_upload(experiment, client_id)[1].weights for client_id in range(5)]
    dropped = torch.stack([w["stages.3.0.conv2.weight"] == 0 for w in everyone]).all(dim=0)
    assert dropped.any()
    assert bool((server.state.weights["stages.3.0.conv2.weight"][dropped] == 0).all())


def test_official_masks_refuse_what_does_not_fit_them(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match="recovery: zero"):
        build_experiment(tiny_settings("scope=official_mask"))
