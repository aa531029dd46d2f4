"""Silos in processes of their own sum under masks: the same model, whoever is killed; or the round is void."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import SecureGrpcConfig, Settings
from fedml_dapper.federation import build_experiment, simulate

from ..processes import Silos
from .experiment_file import experiment_file

SettingsFactory = Callable[..., Settings]
SECURE = "dapper_args.privacy={secure_aggregation: {threshold: 3, min_holders: 2, step_timeout_s: 600}}"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Callable[..., Silos]]:
    running: list[Silos] = []

    def build(settings: Settings, config: SecureGrpcConfig, programs: Mapping[int, Path] | None = None) -> Silos:
        file = experiment_file(tmp_path, settings, config)
        running.append(Silos(tmp_path, file, settings.train_args.client_num_in_total, programs=programs))
        return running[-1]

    yield build
    for silos in running:
        silos.stop()


def of_four(tiny_settings: SettingsFactory, *overrides: str) -> Settings:
    return tiny_settings(
        "client_num_in_total=4", "client_num_per_round=4", "threads=1", "epochs=1", "image_size=16", "norm=group",
        "aggregation_weights=uniform", SECURE, "dapper_args.params.heterofl={masked_loss: false}",
        "dapper_args.params.fedrolex={masked_loss: false}", *overrides,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg"])
def test_the_model_is_that_of_the_simulation_bit_for_bit(
    federation: Callable[..., Silos], tiny_settings: SettingsFactory, config: SecureGrpcConfig, method: str
) -> None:
    settings = of_four(tiny_settings, f"method={method}", "comm_round=3")
    server, rounds = simulate(build_experiment(settings))
    silos = federation(settings, config)
    silos.start_all()
    assert [silos.wait(rank) for rank in range(5)] == [0] * 5, silos.output(0)
    saved = load_file(silos.run_dir / "global_model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in server.state.weights.items())
    assert [record.scores for record in silos.rounds()] == [record.scores for record in rounds]
