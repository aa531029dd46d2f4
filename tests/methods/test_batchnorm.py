from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedml_dapper.config import Settings
from fedml_dapper.datasets import Batch
from fedml_dapper.federation import build_experiment
from fedml_dapper.methods.contract.batchnorm import recalibrate, running_statistics

SettingsFactory = Callable[..., Settings]


def test_statistics_are_found_by_layer_type_and_shared_only_on_request() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm1d(2)))
    assert sorted(running_statistics(model)) == [
        "1.running_mean", "1.running_var", "2.0.running_mean", "2.0.running_var"
    ]  # fmt: skip
    running_statistics(model)["1.running_mean"].fill_(7)
    assert float(model.get_buffer("1.running_mean")[0]) == 0
    running_statistics(model, copy=False)["1.running_mean"].fill_(7)
    assert float(model.get_buffer("1.running_mean")[0]) == 7


def test_recalibration_measures_the_clients_images_and_gives_the_model_back(tiny_settings: SettingsFactory) -> None:
    experiment = build_experiment(tiny_settings("client_share=0.02", "batch_size=64"))
    model, client = experiment.method.problem.backbone, experiment.clients[0]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    statistics = recalibrate(model, client, experiment.device)
    [(images, _)] = list(client)
    features = model.get_submodule("stem.0")(images)
    torch.testing.assert_close(statistics["stem.1.running_mean"], features.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(statistics["stem.1.running_var"], features.var(dim=(0, 2, 3)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    norm = model.get_submodule("stem.1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.momentum == 0.1


def test_recalibration_draws_nothing() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4))
    inputs = torch.randn(8, 4)
    generator = torch.get_rng_state()
    statistics = recalibrate(model, [Batch(inputs, torch.zeros(8))], torch.device("cpu"))  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), generator)
    torch.testing.assert_close(statistics["1.running_mean"], inputs.mean(dim=0))  # as in evaluation


def test_batches_of_one_alone_leave_the_statistics_as_they_are() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    model(torch.randn(8, 4) + 3)
    before = running_statistics(model)
    alone = [Batch(torch.randn(1, 4), torch.zeros(1))] * 3
    measured = recalibrate(model, alone, torch.device("cpu"))  # type: ignore[arg-type]
    assert measured.keys() == before.keys()
    assert all(tensor.equal(before[name]) for name, tensor in measured.items())
    mixed = recalibrate(model, [*alone, Batch(torch.ones(2, 4), torch.zeros(2))], torch.device("cpu"))  # type: ignore[arg-type]
    torch.testing.assert_close(mixed["0.running_mean"], torch.ones(4))
