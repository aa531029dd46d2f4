"""Running statistics for each capability level: averaged apart, or measured after the aggregation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import Experiment, Server, build_experiment, simulate
from fedml_dapper.methods import ClientContext, Memory
from fedml_dapper.methods.contract.batchnorm import recalibrate, running_statistics

SettingsFactory = Callable[..., Settings]
METHODS = ("heterofl", "fedrolex", "fjord", "fedecover", "fiarse", "dapperfl_slim")
FEW = ("epochs=1", "client_num_in_total=6", "client_num_per_round=6", "client_share=0.05", "comm_round=2")


def build(tiny_settings: SettingsFactory, method: str, choice: str, *more: str) -> Experiment:
    switch = f"dapper_args.params.{method}={{bn_statistics: {choice}}}"
    return build_experiment(tiny_settings(f"method={method}", *FEW, switch, *more))


def by_hand(uploads: list[tuple[dict[str, Tensor], dict[str, Tensor], int]], name: str, before: Tensor) -> Tensor:
    """The mean of a vector of channels over those that hold them: (kept by group, weights, samples) of each upload."""
    total, weights = torch.zeros(len(before), dtype=torch.float64), torch.zeros(len(before), dtype=torch.float64)
    for kept, sent, samples in uploads:
        index = kept.get(name, torch.arange(len(before)))
        total[index] += sent[name].double() * samples
        weights[index] += samples
    return torch.where(weights > 0, total / weights.clamp(min=1), before.double()).float()


@pytest.mark.parametrize("method", METHODS)
def test_statistics_of_a_level_are_the_mean_of_its_clients(tiny_settings: SettingsFactory, method: str) -> None:
    experiment = build(tiny_settings, method, "by_level", "importance=filters")
    server, layout = Server(experiment), experiment.method.problem.layout
    state, names = server.state, running_statistics(experiment.method.problem.backbone)
    before, sent = dict(state.weights), defaultdict[int, list[tuple[dict[str, Tensor], dict[str, Tensor], int]]](list)
    state.clients = tuple(range(len(experiment.profiles)))
    aggregation = experiment.method.aggregation(state)
    for profile, data in zip(experiment.profiles, experiment.clients, strict=True):
        upload = experiment.method.local_update(ClientContext(profile, data), server.downlink(profile.client_id))
        aggregation.add(upload)
        kept = {
            name: upload.plan.kept[axis.group]
            for name in names
            for axis in layout.tensors[name].axes
            if axis.group in upload.plan.kept
        }
        sent[profile.level].append((kept, dict(upload.weights), upload.num_samples))
    aggregation.close()
    assert len(sent) > 2
    for level, uploads in sent.items():
        own = experiment.method.as_of_level(state, level).weights  # type: ignore[attr-defined]
        for name in names:
            torch.testing.assert_close(own[name], by_hand(uploads, name, before[name]), rtol=1e-6, atol=1e-7)
        model = experiment.method.level_model(state, level)
        assert any(
            not torch.equal(tensor, before[name][: len(tensor)]) for name, tensor in running_statistics(model).items()
        )
    strongest = experiment.method.as_of_level(state, min(sent)).weights  # type: ignore[attr-defined]
    assert all(torch.equal(state.weights[name], strongest[name]) for name in names)


@pytest.mark.long
def test_clients_get_their_level_s_statistics_and_all_else_is_as_ever(tiny_settings: SettingsFactory) -> None:
    finished = [
        (experiment := build(tiny_settings, "heterofl", choice), simulate(experiment)[0].state)
        for choice in ("by_level", "recalibrate")
    ]
    (experiment, state), (_, plain) = finished
    names = running_statistics(experiment.method.problem.backbone)
    changed = {name for name, tensor in state.weights.items() if not torch.equal(tensor, plain.weights[name])}
    assert changed == set(names)
    for profile in experiment.profiles:
        message = experiment.method.downlink(state, profile.client_id)
        carried = {name: tensor for name, tensor in message.weights.items() if name in names}
        level = running_statistics(
            experiment.method.level_model(state, profile.level)
        )  # HeteroFL's windows are all alike
        assert all(torch.equal(tensor, level[name]) for name, tensor in carried.items())


@pytest.mark.parametrize("method", METHODS)
def test_exact_statistics_are_measured_by_those_who_can_run_the_level(
    tiny_settings: SettingsFactory, method: str
) -> None:
    experiment = build(tiny_settings, method, "exact", "comm_round=1")
    state = simulate(experiment)[0].state
    for level in range(1, 6):
        model = experiment.method.level_model(state, level)
        able = [data for data, each in zip(experiment.clients, experiment.profiles, strict=True) if each.level <= level]
        expected = recalibrate(model, chain.from_iterable(able), torch.device("cpu"))
        found = running_statistics(model)
        assert found
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    whole = running_statistics(experiment.method.global_model(state))
    assert all(
        torch.equal(t, whole[name]) for name, t in running_statistics(experiment.method.level_model(state, 1)).items()
    )


def test_networks_without_batchnorm_have_none_to_keep_apart(tiny_settings: SettingsFactory) -> None:
    experiment = build(tiny_settings, "dapperfl_slim", "by_level", "norm=standardised", "comm_round=1")
    state = simulate(experiment)[0].state
    assert not [name for name in state.memory.tensors if name.startswith("statistics")]


@pytest.mark.parametrize("choice", ["by_level", "exact", "dense"])
def test_statistics_that_stay_at_home_are_not_the_server_s(tiny_settings: SettingsFactory, choice: str) -> None:
    with pytest.raises(ConfigError, match="choose recalibrate or slim"):
        build(tiny_settings, "heterofl", choice, "personal_layers=statistics")


def test_few_clients_of_a_level_are_no_majority(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"few clients each, in which .* `median` finds no majority"):
        build(tiny_settings, "heterofl", "by_level", "dapper_args.defence.aggregation=median")


@pytest.mark.parametrize("choice", ["by_level", "exact"])
def test_a_level_s_model_is_not_made_up_where_its_statistics_are_lost(
    tiny_settings: SettingsFactory, choice: str
) -> None:
    experiment = build(tiny_settings, "heterofl", choice, "comm_round=1")
    state = simulate(experiment)[0].state
    assert experiment.method.level_model(state, 5) is not None
    with pytest.raises(DataError, match="keep the run's checkpoints folder"):
        experiment.method.level_model(replace(state, memory=Memory()), 5)


def test_the_strongest_level_that_ever_took_part_is_the_global_model_s(tiny_settings: SettingsFactory) -> None:
    experiment = build(tiny_settings, "heterofl", "by_level", "comm_round=1")
    state = simulate(experiment)[0].state
    level_1 = state.memory.recall("statistics of level 1")
    state.profiles = tuple(replace(profile, level=max(2, profile.level)) for profile in state.profiles)
    state.clients = (0,)
    aggregation = experiment.method.aggregation(state)
    profile = replace(state.profiles[0], ratio=experiment.method.problem.ratios[state.profiles[0].level - 1])
    state.profiles = (profile, *state.profiles[1:])
    downlink = experiment.method.downlink(state, 0)
    aggregation.add(experiment.method.local_update(ClientContext(profile, experiment.clients[0]), downlink))
    aggregation.close()
    assert all(torch.equal(state.weights[name], tensor) for name, tensor in level_1.items())
