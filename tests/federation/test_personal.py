"""Clients' own models on their own samples, and a domain that nobody trains on."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, pstdev

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.config import Settings
from fedml_dapper.datasets import TestData
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import ClientSide, Experiment, Server, build_experiment, simulate
from fedml_dapper.federation.scoring.after_round import summarise
from fedml_dapper.federation.scoring.testing import evaluate
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import slim_model, slim_tensors

SettingsFactory = Callable[..., Settings]
FEW = ("method=fedavg", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1")


def scored(experiment: Experiment, model: Backbone, test: TestData) -> float:
    return evaluate(model, experiment.method.problem.task, test, experiment.device).headline


def test_statistics_by_hand() -> None:
    scores = summarise([50.0, 100.0, 60.0], [10, 30, 20])
    assert (scores.overall, scores.average, scores.worst) == (pytest.approx(78 + 1 / 3), 70.0, 50.0)
    assert scores.deviation == pytest.approx(pstdev([50, 100, 60]))
    assert scores.accuracy == (50.0, 100.0, 60.0)


def test_of_fedavg_it_is_the_global_model_at_every_client(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings(*FEW, "personal=true", "client_num_per_round=2"))
    server, records = simulate(experiment)
    model, last = experiment.method.global_model(server.state), records[-1]
    assert last.personal is not None
    expected = [scored(experiment, model, own.test) for own in experiment.client_tests]
    assert list(last.personal.accuracy) == expected
    assert len(last.clients) == 2
    assert last.validation is None
    for client in last.clients:  # before training they held the previous round's global model
        assert client.accuracy_before == records[0].personal.accuracy[client.client]  # type: ignore[union-attr]
        assert client.accuracy_after is not None


@pytest.mark.parametrize("method", ["fedavg", "dapperfl"])
def test_after_training_it_is_what_the_client_trained(tiny_settings: SettingsFactory, method: str) -> None:
    experiment = build_experiment(tiny_settings(*FEW, f"method={method}", "personal=true", "epochs=3", "image_size=32"))
    server = Server(experiment)
    client_id = max(server.round_clients(), key=lambda client: experiment.profiles[client].ratio)
    clients = ClientSide(experiment)
    upload = clients.update(server.downlink(client_id), experiment.clients[client_id])
    layout = experiment.method.problem.layout
    model = slim_model(experiment.method.problem.backbone, layout, upload.plan)
    whole = {name: upload.weights[name] for name in upload.unsliced}
    own = clients.memories[client_id].recall("slim_statistics")
    model.load_state_dict({**upload.weights, **slim_tensors(whole, layout, upload.plan), **own})
    expected = scored(experiment, model, experiment.client_tests[client_id].test)
    assert upload.metrics.accuracy_after == expected
    initial = scored(experiment, experiment.method.problem.backbone, experiment.client_tests[client_id].test)
    assert upload.metrics.accuracy_before == initial
    assert method != "fedavg" or initial != expected


@pytest.mark.nightly
@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.nightly), "fdse"])
def test_own_models_are_scored_as_they_were_trained_if_so_set(tiny_settings: SettingsFactory, method: str) -> None:
    few = (*FEW, f"method={method}", "client_num_per_round=2", "comm_round=2", "validation_share=0.2")
    runs = {
        which: simulate(build_experiment(tiny_settings(*few, f"personal={which}")))
        for which in ("trained", "aggregated", "true")
    }
    trained, aggregated = runs["trained"][1], runs["aggregated"][1]
    own = dict[int, float]()
    for record in trained:
        own |= {client.client: client.accuracy_after for client in record.clients}  # type: ignore[misc]
    assert trained[-1].personal is not None
    assert {client: trained[-1].personal.accuracy[client] for client in own} == own
    assert trained[-1].validation is not None
    assert trained[-1].validation.accuracy != aggregated[-1].validation.accuracy  # type: ignore[union-attr]
    untrained = set(range(4)) - own.keys()
    for client in untrained:  # these have nothing but what they would start from
        assert trained[-1].personal.accuracy[client] == aggregated[-1].personal.accuracy[client]  # type: ignore[union-attr]
    assert trained[-1].personal.accuracy != aggregated[-1].personal.accuracy  # type: ignore[union-attr]
    assert runs["true"][1][-1].personal == aggregated[-1].personal
    weights = [server.state.weights for server, _ in runs.values()]
    assert all(tensor.equal(other[name]) for other in weights for name, tensor in weights[0].items())


def test_any_other_word_for_own_models_is_refused(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"evaluation.personal.*is 'both'; choose aggregated, trained or false"):
        tiny_settings(*FEW, "personal=both")


@pytest.mark.nightly
def test_a_slim_models_own_accuracy_does_not_depend_on_the_statistics_it_sends(tiny_settings: SettingsFactory) -> None:
    after = {}
    for statistics in ("slim", "dense_epoch", "recalibrate"):
        chosen = f"dapper_args.params.dapperfl.bn_statistics={statistics}"
        settings = tiny_settings(*FEW, "method=dapperfl", "personal=true", "comm_round=1", "epochs=3", chosen)
        [record] = simulate(build_experiment(settings))[1]
        after[statistics] = [client.accuracy_after for client in record.clients if client.ratio > 0]
    assert after["slim"] == after["dense_epoch"] == after["recalibrate"]


def test_unless_asked_for_nothing_personal_is_measured(tiny_settings: SettingsFactory) -> None:
    _, records = simulate(build_experiment(tiny_settings(*FEW, "comm_round=1")))
    assert records[0].personal is None
    assert records[0].clients[0].accuracy_before is None


@pytest.mark.nightly
def test_evaluation_leaves_no_trace(tiny_settings: SettingsFactory) -> None:
    plain, _ = simulate(build_experiment(tiny_settings(*FEW)))
    measured, _ = simulate(build_experiment(tiny_settings(*FEW, "personal=true")))
    assert all(tensor.equal(measured.state.weights[name]) for name, tensor in plain.state.weights.items())


def test_nobody_trains_on_the_unseen_domain_and_it_is_scored_apart(tiny_settings: SettingsFactory) -> None:
    whole = build_experiment(tiny_settings(*FEW))
    left_out = whole.tests[1].domain
    experiment = build_experiment(tiny_settings(*FEW, f"unseen_domain={left_out}", "comm_round=1"))
    assert left_out not in {profile.domain for profile in experiment.profiles}
    server, records = simulate(experiment)
    scores = records[0].scores
    assert scores is not None
    assert left_out not in scores.domain_accuracy
    assert scores.global_accuracy == pytest.approx(fmean(scores.domain_accuracy.values()))
    model = experiment.method.global_model(server.state)
    assert scores.unseen_accuracy == scored(experiment, model, whole.tests[1])
    record = experiment.record()
    assert record.unseen_domain == left_out
    assert left_out not in record.domains


def test_an_unknown_domain_is_named(tiny_settings: SettingsFactory) -> None:
    with pytest.raises(ConfigError, match=r"evaluation.unseen_domain: no domain `fonds`; did you mean `fonts`"):
        build_experiment(tiny_settings(*FEW, "unseen_domain=fonds"))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_client_whose_model_diverged_ends_no_round(bad: float) -> None:
    scores = summarise([50.0, bad, 60.0], [10, 30, 20])
    assert not math.isfinite(scores.average)
    assert math.isnan(scores.deviation)
    assert scores.accuracy[1:2] == pytest.approx([bad], nan_ok=True)


class DroppingOut(nn.Module):
    """A network whose training draws from torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 8 * 8, 16), nn.BatchNorm1d(16), nn.ReLU()
        )
        self.classes = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classes(self.body(images))
        return found


@pytest.mark.parametrize("asked", [("method=fedbabu",), ("method=fedavg", "devices=true"), ("method=heterofl",)])
def test_tests_of_a_network_with_dropout_repeat(tiny_settings: SettingsFactory, asked: tuple[str, ...]) -> None:
    found = []
    for noise in (1, 2):
        settings = tiny_settings(
            *FEW, *asked, "width=null", "image_size=8", "ratios=[0.0]", "comm_round=1", "personal=true",
            "dapper_args.params.heterofl={bn_statistics: dense, masked_loss: false}",
        )  # fmt: skip
        torch.manual_seed(0)
        experiment = build_experiment(settings, DroppingOut())
        torch.manual_seed(noise)  # which nobody's figures may depend on
        _, [record] = simulate(experiment)
        found.append((record.scores, record.personal, record.devices))
    assert found[0] == found[1]
