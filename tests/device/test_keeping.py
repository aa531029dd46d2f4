"""What a device keeps: a memory that is whole after a kill at any moment, and the newest model, which works offline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.device.keeping import MEMORY_NAME, DeviceFolder
from fedml_dapper.device.offline import predict_offline
from fedml_dapper.errors import DataError
from fedml_dapper.federation import ClientSide, Experiment, build_experiment, simulate
from fedml_dapper.methods import Downlink, Memory
from fedml_dapper.pruning import DENSE

from ..platform.processes import Silos
from ..waiting import wait_until
from .conftest import NUM_DEVICES, Devices


@pytest.mark.long
def test_a_device_that_is_killed_goes_on_with_its_memory_and_the_run_is_the_same(
    devices: Devices, server: Callable[[], Silos]
) -> None:
    devices.write("scaffold", train_args={"comm_round": 3})
    server_process = server()
    for rank in range(1, NUM_DEVICES + 1):
        devices.start(rank)
    wait_until(lambda: "client 0: round 1, loss" in devices.output(1), otherwise=lambda: devices.output(1))
    devices.processes[1].kill()
    devices.processes[1].wait()
    devices.start(1)
    assert server_process.wait(0) == 0, server_process.output(0)
    assert devices.processes[1].wait(300) == 0, devices.output(1)
    assert "this device goes on with what it remembers of round" in devices.output(1)
    experiment = build_experiment(load_settings([devices.folder / "simulation.yaml"]))
    simulate(experiment, run_dir=devices.folder / "alone")
    alone = load_file(devices.folder / "alone" / "global_model.safetensors")
    across = load_file(server_process.run_dir / "global_model.safetensors")
    assert all(alone[name].equal(across[name]) for name in alone)
    picture = devices.folder / "pictures" / "chalk" / "test" / "bar" / "0.png"
    told = devices.told("predict", "runs/silo-1", str(picture))
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"{picture}: ")
    assert told.stdout.endswith(" %\n")


@pytest.fixture
def experiment(tiny_settings: Callable[..., Settings]) -> Experiment:
    return build_experiment(tiny_settings("method=scaffold"))


def remembered(experiment: Experiment, folder: Path) -> Memory:
    clients = ClientSide(experiment)
    DeviceFolder(experiment, clients, folder).recall(0)
    return clients.memories.get(0, Memory())


def test_a_memory_comes_back_as_it_was(experiment: Experiment, tmp_path: Path) -> None:
    clients = ClientSide(experiment)
    clients.memories[0] = Memory({"drift/a": torch.arange(3.0)}, {"rounds": 2, "seen": [1, 2]})
    DeviceFolder(experiment, clients, tmp_path).heard(Downlink(2, 0, {}, DENSE))
    found = remembered(experiment, tmp_path)
    assert found.values == {"rounds": 2, "seen": [1, 2]}
    assert found.tensors.keys() == {"drift/a"}
    assert found.tensors["drift/a"].equal(torch.arange(3.0))


@pytest.mark.parametrize("damage", ["cut", "other experiment"])
def test_a_memory_of_no_use_is_said_and_left(
    experiment: Experiment,
    tiny_settings: Callable[..., Settings],
    tmp_path: Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = ClientSide(experiment)
    clients.memories[0] = Memory({}, {"rounds": 2})
    DeviceFolder(experiment, clients, tmp_path).heard(Downlink(2, 0, {}, DENSE))
    if damage == "cut":
        file = tmp_path / MEMORY_NAME
        file.write_bytes(file.read_bytes()[:-3])
    else:
        experiment = build_experiment(tiny_settings("method=scaffold", "epochs=3"))
    with caplog.at_level(logging.WARNING):
        assert remembered(experiment, tmp_path).values == {}
    assert "begins without a memory" in caplog.text


def test_a_method_that_remembers_nothing_leaves_no_memory(experiment: Experiment, tmp_path: Path) -> None:
    DeviceFolder(experiment, ClientSide(experiment), tmp_path).heard(Downlink(2, 0, {}, DENSE))
    assert list(tmp_path.iterdir()) == []


def test_the_newest_model_names_classes_without_a_server(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no model in .*`dapper-device run --output` keeps the newest one there"):
        predict_offline(tmp_path, [tmp_path / "0.png"])
    weights = experiment.method.problem.backbone.state_dict()
    folder = DeviceFolder(experiment, ClientSide(experiment), tmp_path)
    folder.received(Downlink(3, 0, dict(weights), DENSE))
    Image.new("RGB", (40, 40), (200, 10, 10)).save(tmp_path / "0.png")
    [answer] = predict_offline(tmp_path, [tmp_path / "0.png"])
    assert answer.label in experiment.classes
    assert 1 / experiment.num_classes <= answer.probability <= 1
    with pytest.raises(DataError, match=r"1.png: not a readable picture"):
        predict_offline(tmp_path, [tmp_path / "1.png"])
