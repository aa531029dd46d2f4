"""Runs on a GPU: every method, and how close the figures stay to the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedml_dapper.config import Settings
from fedml_dapper.federation import Server, build_experiment, simulate
from fedml_dapper.pruning import Tensors

from ..grids import ON_ADAPTERS, ON_ANY_NETWORK

SettingsFactory = Callable[..., Settings]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FEW = ("client_num_in_total=5", "client_num_per_round=5")  # one of each level
DEVICES = "dapper_args.evaluation={devices: true}"


@pytest.mark.parametrize(("method", "network"), [*((name, ()) for name in sorted(ON_ANY_NETWORK)), *ON_ADAPTERS])
def test_every_method_trains_and_is_tested(
    tiny_settings: SettingsFactory, method: str, network: tuple[str, ...]
) -> None:
    chosen = (*FEW, *network, DEVICES, f"method={method}", "using_gpu=true")
    server, records = simulate(build_experiment(tiny_settings(*chosen)))
    assert records[-1].scores is not None
    for name, tensor in server.state.weights.items():
        assert tensor.is_cuda, name
        assert bool(torch.isfinite(tensor).all()), name


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(tiny_settings: SettingsFactory, precision: str) -> None:
    server, _ = simulate(build_experiment(tiny_settings(*FEW, "using_gpu=true", f"precision={precision}")))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in server.state.weights.values())


def test_the_paper_s_network_is_taken(tiny_settings: SettingsFactory) -> None:
    """Slim and dense outputs agree to four digits, which TF32 does not have."""
    wide = ("model=resnet18", "width=64", "image_size=32")
    assert build_experiment(tiny_settings(*FEW, *wide, "using_gpu=true")).device.type == "cuda"


def test_a_round_changes_the_model_as_on_the_cpu(tiny_settings: SettingsFactory) -> None:
    """What is random is drawn on the CPU for both. Rounding alone changes so short a training by half a percent."""
    short = (*FEW, "method=fedavg", "comm_round=1", "epochs=1")
    of_cpu, of_gpu = (build_experiment(tiny_settings(*short, f"using_gpu={gpu}")) for gpu in ("false", "true"))
    start = Server(of_cpu).state.weights
    assert _distance(_cpu(Server(of_gpu).state.weights), start) == 0
    after = simulate(of_cpu)[0].state.weights
    assert _distance(_cpu(simulate(of_gpu)[0].state.weights), after) < 0.05 * _distance(after, start)


def test_a_run_is_resumed(tiny_settings: SettingsFactory, tmp_path: Path) -> None:
    short = (*FEW, "method=fedavg", "epochs=1", "using_gpu=true")
    first = simulate(build_experiment(tiny_settings(*short, "comm_round=1")), run_dir=tmp_path / "resumed")[0]
    once = _cpu(first.state.weights)
    again, records = simulate(build_experiment(tiny_settings(*short)), run_dir=tmp_path / "resumed", resume=True)
    assert [record.round for record in records] == [1, 2]
    assert all(tensor.is_cuda for tensor in again.state.weights.values())
    whole = _cpu(simulate(build_experiment(tiny_settings(*short)))[0].state.weights)
    assert _distance(_cpu(again.state.weights), whole) < 0.1 * _distance(whole, once)


def _cpu(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _distance(one: Tensors, other: Tensors) -> float:
    return sum(float((tensor.double() - other[name].double()).square().sum()) for name, tensor in one.items()) ** 0.5
