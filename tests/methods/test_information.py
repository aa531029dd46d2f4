"""Information maximisation without labels: what moves, and what happens where predictions collapse."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.datasets import ClientData
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.methods.parts import information
from fedml_dapper.methods.parts.information import Adaptation, gains_and_biases, maximise_information
from fedml_dapper.models import Backbone

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=4", "client_num_per_round=4", "client_share=0.1", "image_size=16", "comm_round=1")
CPU = torch.device("cpu")


@pytest.fixture(params=["group", "standardised"])
def trained(request: pytest.FixtureRequest, tiny_settings: SettingsFactory) -> tuple[Backbone, ClientData]:
    experiment = build_experiment(tiny_settings(*FEW, f"norm={request.param}", "learning_rate=0.05"))
    server, _ = simulate(experiment)
    return experiment.method.global_model(server.state).eval(), experiment.clients[0]


def state_of(model: Backbone) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def certainty(model: Backbone, data: ClientData) -> tuple[float, float]:
    """Mean entropy, and the entropy of the mean, written out."""
    with torch.no_grad():
        shares = torch.cat([model(inputs).softmax(dim=1) for inputs, _ in data]).double()
    mean = shares.mean(dim=0)
    return float(-(shares * shares.log()).sum(dim=1).mean()), float(-(mean * mean.log()).sum())


def test_predictions_get_more_certain_and_no_less_diverse_by_gains_and_biases_alone(
    trained: tuple[Backbone, ClientData],
) -> None:
    model, data = trained
    before, (expected, diversity) = state_of(model), certainty(model, data)
    moving = {id(parameter) for parameter in gains_and_biases(model)}
    found = maximise_information(model, data, CPU, seed=1)
    after, left = certainty(model, data)
    assert found == Adaptation(information.PASSES, pytest.approx(expected), pytest.approx(after))
    assert left - after > diversity - expected
    changed = {name for name, tensor in model.state_dict().items() if not tensor.equal(before[name])}
    assert changed
    assert changed == {name for name, parameter in model.named_parameters() if id(parameter) in moving}
    assert not any("predictor" in name for name in changed)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.nightly
def test_it_repeats_bit_for_bit_and_labels_do_not_matter(trained: tuple[Backbone, ClientData]) -> None:
    model, data = trained
    again = copy.deepcopy(model)
    maximise_information(model, data, CPU, seed=1)
    data.samples.labels.fill_(0)  # type: ignore[attr-defined]
    maximise_information(again, data, CPU, seed=1)
    assert all(tensor.equal(again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_pass_that_crowds_predictions_is_taken_back(
    trained: tuple[Backbone, ClientData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(information, "LEARNING_RATE", 2.0)
    model, data = trained
    before = state_of(model)
    found = maximise_information(model, data, CPU, seed=1)
    assert found == Adaptation(0, found.before, found.before)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
