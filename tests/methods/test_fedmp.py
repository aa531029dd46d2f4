"""FedMP; what it shares with other sub-model methods is in test_sub_models.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import Memory, ServerState, TrainingMetrics, Upload
from fedml_dapper.methods.catalogue.fedmp import FedMP, rewards
from fedml_dapper.methods.parts.ratio_bandit import Leaf
from fedml_dapper.pruning import slim_tensors

from .sample_counts import say_that_clients_hold

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1", "frequency_of_the_test=9")
LEVELS = "ratios=[0.0, 0.3, 0.5, 0.7]"
EUCB = "dapper_args.params.fedmp={ratio: eucb}"


def untrained_round(server: Server, losses: Sequence[float], samples: Sequence[int]) -> None:
    say_that_clients_hold(server, samples)
    for client_id in server.round_clients():
        sent = server.downlink(client_id)
        metrics = TrainingMetrics(losses[client_id], 1, 0.0)
        server.receive(Upload(sent.round, client_id, samples[client_id], dict(sent.weights), metrics, sent.plan))
    server.close_round()


def fedmp(experiment: Experiment) -> FedMP:
    assert isinstance(experiment.method, FedMP)
    return experiment.method


def test_masks_follow_the_global_weights_of_the_round(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=fedmp", "ratios=[0.5]", *FEW))
    state, group = Server(experiment).state, "stages.0.0.conv1"
    strong = int(experiment.method.plan(state, 0).kept[group][0])
    state.weights[f"{group}.weight"][strong] = 0
    assert strong not in experiment.method.plan(state, 0).kept[group].tolist()


def test_masks_are_those_of_dapperfl_without_its_dense_epoch(tiny_settings: SettingsFactory) -> None:
    frozen = "dapper_args.params.dapperfl={alpha_0: 1, alpha_min: 1, gamma: 0}"
    ours, theirs = (build_experiment(tiny_settings(f"method={m}", frozen, LEVELS, *FEW)) for m in ("fedmp", "dapperfl"))
    weakest = max(ours.profiles, key=lambda profile: profile.ratio).client_id
    plan = ours.method.plan(Server(ours).state, weakest)
    upload = ClientSide(theirs).update(Server(theirs).downlink(weakest), theirs.clients[weakest])
    assert plan.kept.keys() == upload.plan.kept.keys()
    assert all(torch.equal(indices, upload.plan.kept[name]) for name, indices in plan.kept.items())


def test_aggregation_is_residual_recovery(tiny_settings: SettingsFactory) -> None:
    """W = sum p_i (expand(slim_i) + W - W M_i), bit for bit where float64 is exact."""
    experiment = build_experiment(tiny_settings("method=fedmp", LEVELS, *FEW))
    method, layout, server = experiment.method, experiment.method.problem.layout, Server(experiment)
    before = server.state.weights
    for tensor in before.values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randint(-999, 999, tensor.shape) / 256)
    counts = (7, 250, 31, 64)
    aggregation = method.aggregation(server.state)
    expected = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in before.items()}
    for client_id, count in enumerate(counts):
        plan = method.plan(server.state, client_id)
        slim = slim_tensors(before, layout, plan)
        trained = {
            name: tensor + torch.randint(-99, 99, tensor.shape) / 256 if tensor.is_floating_point() else tensor
            for name, tensor in slim.items()
        }
        aggregation.add(Upload(1, client_id, count, trained, TrainingMetrics(1.0, 1, 0.0), plan))
        for name, tensor in before.items():
            axes = {axis.dim: plan.kept[axis.group] for axis in layout.tensors[name].axes if axis.group in plan.kept}
            rows = axes.get(0, torch.arange(tensor.shape[0])) if tensor.dim() else ...
            residual, expanded = tensor.double().clone(), torch.zeros_like(tensor, dtype=torch.float64)
            kept = (rows[:, None], axes[1]) if 1 in axes else (rows,)  # type: ignore[index]
            residual[kept], expanded[kept] = 0, trained[name].double()
            expected[name] += count * (expanded + residual)
    aggregation.close()
    for name, tensor in server.state.weights.items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, (expected[name] / sum(counts)).float()), name


def test_rewards_by_hand() -> None:
    earned = rewards(
        losses={0: 1.5, 1: 1.0, 2: 3.0, 3: 0.1},
        previous={"0": 2.0, "1": 2.0, "2": 2.0},
        times={0: 10.0, 1: 30.0, 2: 20.0, 3: 20.0},
    )
    assert earned == {0: pytest.approx(0.25 / 1.5), 1: pytest.approx(0.5 / 1.5), 2: 0.0}  # a rise earns nothing
    assert rewards({0: 1.0}, {"0": 2.0}, {0: 5.0}) == {0: 0.5}  # alone there is no spread
    assert rewards({0: 0.0}, {"0": 0.0}, {0: 5.0}) == {0: 0.0}


def test_bandits_learn_from_estimated_times_only(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("method=fedmp", EUCB, LEVELS, *FEW, "comm_round=9"))
    method, server = fedmp(experiment), Server(experiment)
    assert method.arms == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    untrained_round(server, (2.0, 2.0, 2.0, 2.0), (10, 20, 30, 40))
    assert [method.ratio(server.state, client_id) for client_id in range(4)] == [0.4] * 4  # nothing to compare yet
    macs = method.footprint(0.4).macs
    times = [macs * n / (1 - experiment.profiles[i].ratio) for i, n in enumerate((10, 20, 30, 40))]
    untrained_round(server, (1.0, 2.0, 3.0, 1.5), (10, 20, 30, 40))
    mean = sum(times) / 4
    for client_id, decrease in enumerate((0.5, 0.0, 0.0, 0.25)):
        half = decrease / (1 + abs(times[client_id] - mean) / mean) / 2
        leaves = method.leaves(server.state, client_id)
        assert leaves == [Leaf(0, 4, 0.5, pytest.approx(half)), Leaf(4, 9, 0.5, pytest.approx(half))]
        assert method.ratio(server.state, client_id) == 0.2
    assert json.loads(json.dumps(server.state.memory.values)) == server.state.memory.values


@pytest.mark.nightly
def test_eucb_runs_repeat_and_restart_from_memory(tiny_settings: SettingsFactory) -> None:
    settings = tiny_settings("method=fedmp", EUCB, LEVELS, *FEW, "comm_round=3")
    experiments = [build_experiment(settings) for _ in range(2)]
    (first, records), (second, again) = (simulate(experiment) for experiment in experiments)
    assert first.state.memory == second.state.memory
    assert all(torch.equal(tensor, second.state.weights[name]) for name, tensor in first.state.weights.items())
    sizes = [[client.params for client in record.clients] for record in records]
    assert sizes == [[client.params for client in record.clients] for record in again]
    assert len({size for round_ in sizes for size in round_}) > 1
    restored = ServerState(
        3, {}, first.state.profiles, Memory(values=json.loads(json.dumps(first.state.memory.values)))
    )
    method = fedmp(experiments[0])
    for client_id in range(4):
        assert method.leaves(restored, client_id) == method.leaves(first.state, client_id)
        assert method.ratio(restored, client_id) == method.ratio(first.state, client_id)


def test_arms_out_of_reach_are_refused_at_start(tiny_settings: SettingsFactory) -> None:
    problem = build_experiment(tiny_settings("method=fedmp", *FEW)).method.problem
    FedMP(FedMP.check_params({"ratio": "fixed", "max_ratio": 1.0, "theta": 0.11}), problem)
    with pytest.raises(ConfigError, match=r"dapper_args.params.fedmp.max_ratio: ratio 0.99 asks for"):
        FedMP(FedMP.check_params({"ratio": "eucb", "max_ratio": 1.0, "theta": 0.11}), problem)


def test_a_level_s_model_is_the_level_s_whatever_a_bandit_likes(tiny_settings: SettingsFactory) -> None:
    few = ("method=fedmp", LEVELS, *FEW)
    learning, fixed = (fedmp(build_experiment(tiny_settings(*few, *more))) for more in ((EUCB,), ()))
    state = Server(build_experiment(tiny_settings(*few, EUCB))).state
    state.memory.values["leaves"] = {"0": [[0, 1, 1.0, 5.0], [1, 9, 1.0, 0.0]]}  # client 0's likes the full model
    for level in range(1, 5):
        sizes = [sum(p.numel() for p in each.level_model(state, level).parameters()) for each in (learning, fixed)]
        assert sizes[0] == sizes[1]
    phases = learning.local_phases(state.profiles[3])
    assert [phase.passes[0].plan.kept == {} for phase in phases] == [True, *[False] * (len(learning.arms) - 1)]
    assert sum(phase.epochs for phase in phases) == pytest.approx(learning.problem.training.epochs)
