"""A device takes part without FedML, torchvision and the like, and trains the same bits as one process would."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedml_dapper.config import ModelArgs, load_settings
from fedml_dapper.device.checking import refuse_too_little_memory
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.models import build_backbone
from fedml_dapper.pruning.layout import Scope
from fedml_dapper.pruning.tracing import dependencies, trace_layout

from ..platform.processes import Silos
from .conftest import NUM_DEVICES, Devices
from .lightly import FORBIDDEN


def test_what_is_forbidden_cannot_be_imported(devices: Devices) -> None:
    devices.write()
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import lightly\n"
    code += "sys.meta_path.insert(0, lightly.Forbidding())\nimport rich"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'rich', which a device does not have" in tried.stderr
    assert {"fedml", "torch_pruning", "torchvision"} <= FORBIDDEN


@pytest.mark.long
@pytest.mark.parametrize("method", ["dapperfl", "dapperfl_slim"])
def test_devices_and_a_server_train_the_bits_of_one_process(
    devices: Devices, server: Callable[[], Silos], method: str
) -> None:
    devices.write(method)
    server_process = server()
    for rank in range(1, NUM_DEVICES + 1):
        devices.start(rank)
    assert server_process.wait(0) == 0, server_process.output(0)
    for rank, process in devices.processes.items():
        assert process.wait(300) == 0, devices.output(rank)
        assert f"client {rank - 1}: round 2, loss" in devices.output(rank)
    experiment = build_experiment(load_settings([devices.folder / "simulation.yaml"]))
    simulate(experiment, run_dir=devices.folder / "alone")
    alone = load_file(devices.folder / "alone" / "global_model.safetensors")
    across = load_file(server_process.run_dir / "global_model.safetensors")
    assert alone.keys() == across.keys()
    assert all(alone[name].equal(across[name]) for name in alone)


@pytest.mark.long
def test_check_says_what_a_device_holds_and_needs(devices: Devices) -> None:
    devices.write()
    said = devices.told("check", "shared.yaml", "--rank", "3")
    assert said.returncode == 0, said.stderr
    certificate, data, level, memory, left = said.stdout.splitlines()
    assert certificate == f"certificate: silo-3, for the server at {devices.grpc['server_address']}"
    assert re.fullmatch(r"data: \d+ training samples of domain (chalk|ink)", data)
    assert re.fullmatch(r"level [123]: dapperfl_slim, 0\.\d\d MB down and 0\.\d\d MB up a round", level)
    assert re.fullmatch(r"memory: \d+ MB before training, \d+ MB more in the largest step, peak \d+ MB", memory)
    assert re.fullmatch(r"memory left: \d+ MB \(.+\)", left)


@pytest.mark.long
def test_what_does_not_fit_a_device_is_one_line(devices: Devices) -> None:
    devices.write()
    for arguments, said in (
        (["run", "shared.yaml"], "holds those of silo-1, silo-2, silo-3, and a device is one silo"),
        (["run", "shared.yaml", "--rank", "7"], "silo-7: the experiment has 3 silos"),
        (["check", "simulation.yaml"], "a device takes part over comm_args.backend DAPPER_GRPC, and this"),
        (["run", "nothing.yaml"], "nothing.yaml"),
    ):
        told = devices.told(*arguments)
        assert told.returncode == 2, told.stderr
        [line] = told.stderr.splitlines()
        assert line.startswith("dapper-device: ")
        assert said in line


@pytest.mark.long
def test_a_level_beyond_the_device_s_memory_is_refused_before_it_joins(devices: Devices) -> None:
    devices.write(model_args={"width": 64}, train_args={"batch_size": 4096})
    devices.start(1, data_bytes=2_000_000_000)
    assert devices.processes[1].wait(300) == 2
    [line] = devices.output(1).splitlines()[-1:]
    assert re.search(r"level [123] needs \d+ MB, and \d+ MB are left \(the limit RLIMIT_DATA of this process\)", line)
    assert "take a weaker level (silo_args.level), or lower train_args.micro_batch_size (now 4096 samples" in line


def test_a_level_that_the_experiment_has_not_is_one_line(devices: Devices) -> None:
    devices.write(
        data_args={"partition": "own", "data_cache_dir": "pictures/ink", "classes": ["bar", "circle", "cross"]}
    )
    asked = ["silo_args.level=4", "silo_args.domain=ink"]
    experiment = build_experiment(load_settings([devices.folder / "shared.yaml"], asked), rank=1)
    with pytest.raises(ConfigError, match=r"silo_args.level is 4, but dapper_args.levels.ratios has 3 levels"):
        refuse_too_little_memory(experiment, 1)


@pytest.mark.long
def test_memory_that_runs_out_on_the_way_is_one_line(devices: Devices) -> None:
    devices.write(model_args={"width": 64})
    devices.start(1, data_bytes=720_000_000)
    assert devices.processes[1].wait(300) == 2
    [line] = devices.output(1).splitlines()[-1:]
    assert "memory has run out at " in line


@pytest.mark.parametrize("scope", ["internal", "grouped"])
@pytest.mark.parametrize("model", ["resnet10", "resnet18"])
def test_channels_that_are_followed_are_those_of_torch_pruning_s_graph(
    model: str, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a device without torch-pruning has the layout of its server."""
    example = torch.zeros(1, 3, 32, 32)
    backbone = build_backbone(ModelArgs(model=model, width=8), 5, 1, example)
    by_graph = trace_layout(backbone, example, scope)
    monkeypatch.setattr(dependencies, "_torch_pruning", lambda: None)
    assert trace_layout(backbone, example, scope) == by_graph
    assert by_graph.groups
