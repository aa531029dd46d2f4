"""What each device gets: the model of every level on every domain, as sent and with statistics of its own."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
import torch
from torch import nn

from fedml_dapper.config import Settings
from fedml_dapper.datasets import TestData
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.federation.run_folder.records import DeviceScores
from fedml_dapper.federation.scoring import after_round
from fedml_dapper.federation.scoring import devices as devices_module
from fedml_dapper.federation.scoring.metrics import metrics_of
from fedml_dapper.federation.scoring.testing import Figures, evaluate
from fedml_dapper.methods import recalibrate
from fedml_dapper.tasks import Task

from ..grids import sampled

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=5", "client_num_per_round=5", "comm_round=1", "devices=true")


def devices(settings: Settings) -> DeviceScores:
    found = simulate(build_experiment(settings))[1][-1].devices
    assert found is not None
    return found


@pytest.mark.long
def test_they_are_the_cut_models_accuracies_and_nothing_else_changes(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW))
    server, rounds = simulate(experiment)
    plain, _ = simulate(build_experiment(tiny_settings(*FEW, "devices=false")))
    assert all(torch.equal(tensor, plain.state.weights[name]) for name, tensor in server.state.weights.items())
    found, method = rounds[-1].devices, experiment.method
    assert found is not None
    assert found.own_statistics is not None
    task, device = method.problem.task, experiment.device
    for level in range(1, 6):
        model = method.level_model(server.state, level)
        expected = {test.domain: evaluate(model, task, test, device).headline for test in experiment.tests}
        figures = found.sent.levels[level - 1]
        assert (figures.level, figures.domain_accuracy) == (level, expected)
        assert figures.accuracy == fmean(expected.values())
        for test in experiment.tests:
            first = next(client for client in experiment.clients if client.domain == test.domain)
            model = method.level_model(server.state, level)
            model.load_state_dict({**model.state_dict(), **recalibrate(model, first, device)})
            measured = found.own_statistics.levels[level - 1].domain_accuracy[test.domain]
            assert measured == evaluate(model, task, test, device).headline
    own = [found.sent.levels[p.level - 1].domain_accuracy[p.domain] for p in experiment.profiles]
    assert found.sent.clients == tuple(own)
    assert (found.sent.accuracy, found.sent.worst) == (fmean(own), min(own))
    assert found.own_statistics.clients != found.sent.clients
    assert metrics_of(rounds[-1])["device_accuracy/mean"] == found.sent.accuracy
    assert metrics_of(rounds[-1])["device_accuracy/level_5"] == found.sent.levels[4].accuracy


def test_a_method_without_models_for_weak_devices_says_so(tiny_settings: SettingsFactory) -> None:
    found = devices(tiny_settings(*FEW, "method=fedavg"))
    assert [level.accuracy is None for level in found.sent.levels] == [False, True, True, True, True]
    assert found.sent.accuracy is None
    assert sum(value is None for value in found.sent.clients) == 4


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    sampled(
        [
            *("dapperfl_slim", "heterofl", "fedrolex", "feddrop", "fedmp", "nefl", "depthfl", "scalefl"),
            *("fjord", "fedecover", "fiarse", "dapperfl_exits"),
        ],
        always=("dapperfl_slim", "heterofl", "depthfl"),
    ),
)
def test_methods_that_slim_have_them(tiny_settings: SettingsFactory, method: str) -> None:
    experiment = build_experiment(tiny_settings(*FEW, f"method={method}"))
    server, rounds = simulate(experiment)
    found = rounds[-1].devices
    assert found is not None
    assert found.sent.accuracy is not None
    task, test = experiment.method.problem.task, experiment.tests[0]
    for figures in found.sent.levels:
        model = experiment.method.level_model(server.state, figures.level)
        assert figures.domain_accuracy[test.domain] == evaluate(model, task, test, experiment.device).headline


def test_each_model_is_tested_once_on_each_domain(
    tiny_settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strongest level's is the global one, which is tested anyway."""
    tested: list[tuple[int, str]] = []

    def counting(model: nn.Module, task: Task, test: TestData, device: torch.device) -> Figures:
        tested.append((sum(tensor.numel() for tensor in model.parameters()), test.domain))
        return evaluate(model, task, test, device)

    for module in (devices_module, after_round):
        monkeypatch.setattr(module, "evaluate", counting)
    experiment = build_experiment(tiny_settings(*FEW, "method=dapperfl_slim", "norm=standardised", "comm_round=1"))
    simulate(experiment)
    assert len(set(tested)) == len(tested) == 5 * len(experiment.tests)


def test_networks_without_statistics_have_none_to_measure(tiny_settings: SettingsFactory) -> None:
    assert devices(tiny_settings(*FEW, "norm=standardised")).own_statistics is None


@pytest.mark.parametrize("method", ["fedrep", "local"])
def test_without_a_global_model_there_is_nothing_to_cut(tiny_settings: SettingsFactory, method: str) -> None:
    _, rounds = simulate(build_experiment(tiny_settings(*FEW, f"method={method}", "comm_round=1")))
    assert rounds[-1].devices is None
