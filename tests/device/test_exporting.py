"""A device exports in place the model that it keeps, and the file says what the device itself predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedml_dapper.config import Settings
from fedml_dapper.deployment.format_names import FORMAT_NAMES
from fedml_dapper.deployment.formats import FORMATS
from fedml_dapper.deployment.sidecar import read_sidecar
from fedml_dapper.device.exporting import export_kept
from fedml_dapper.device.keeping import KEPT_MODEL_NAME, DeviceFolder
from fedml_dapper.device.offline import predict_offline
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.export import predict
from fedml_dapper.federation import ClientSide, Server, build_experiment
from fedml_dapper.federation.run_folder.model_file import load_model

from .conftest import Devices


@pytest.fixture
def folder(tiny_settings: Callable[..., Settings], tmp_path: Path) -> Path:
    """What a device of the weakest level keeps, which was sent a slim model, and a picture beside it."""
    few = ("client_share=0.02", "dapper_args.levels.assignment=[5, 5, 5, 5, 5, 5, 5, 5, 5, 5]", "norm=batch")
    experiment = build_experiment(tiny_settings("method=dapperfl_slim", *few))
    server = Server(experiment)
    client_id = next(iter(server.round_clients()))
    kept = tmp_path / "silo-1"
    DeviceFolder(experiment, ClientSide(experiment), kept).received(server.downlink(client_id))
    pixels = torch.randint(0, 256, (40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    Image.fromarray(pixels.numpy()).save(tmp_path / "0.png")
    return kept


def test_all_formats_are_named() -> None:
    assert set(FORMAT_NAMES) == FORMATS.keys()


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_file_says_what_the_device_predicts(folder: Path, tmp_path: Path, name: str) -> None:
    [file] = export_kept(folder, [name], tmp_path / "out")
    assert file.path == tmp_path / "out" / FORMATS[name].file_name
    assert file.bytes == file.path.stat().st_size
    assert file.difference < 1e-4
    [own] = predict_offline(folder, [tmp_path / "0.png"])
    [found] = predict(tmp_path / "out", [tmp_path / "0.png"])
    assert found.label == own.label
    assert found.probability == pytest.approx(own.probability, abs=1e-4)


def test_the_sidecar_says_what_the_model_is(folder: Path, tmp_path: Path) -> None:
    export_kept(folder, ["safetensors"], tmp_path / "out")
    about = read_sidecar(tmp_path / "out")
    model = load_model(folder / KEPT_MODEL_NAME)
    assert about.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (about.level, about.ratio, about.rounds) == (5, 0.8, 0)
    assert (about.whose, about.changes) == ("the newest model that this device was sent", ())
    assert about.names_classes


def test_statistics_are_those_of_the_device_s_own_pictures_where_it_names_them(folder: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(3):
        Image.new("RGB", (40, 40), (200, 10 * number, 10)).save(pictures / f"{number}.png")
    export_kept(folder, ["safetensors"], tmp_path / "out", pictures)
    plain = load_model(folder / KEPT_MODEL_NAME).state_dict()
    calibrated = load_model(tmp_path / "out" / "model.safetensors").state_dict()
    changed = {name for name in plain if not plain[name].equal(calibrated[name])}
    assert changed
    assert all("running_" in name or "num_batches" in name for name in changed)
    assert read_sidecar(tmp_path / "out").changes == (
        "BatchNorm statistics measured on 3 pictures (pictures), without labels",
    )


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no model in .*`dapper-device run --output` keeps the newest one there"):
        export_kept(tmp_path, ["safetensors"], tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is there already and not empty"):
        export_kept(folder, ["safetensors"], tmp_path / "full")
    (folder / KEPT_MODEL_NAME).write_bytes((folder / KEPT_MODEL_NAME).read_bytes()[:-5])
    with pytest.raises(DataError, match="is damaged"):
        export_kept(folder, ["safetensors"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_device_exports_without_what_it_has_not(devices: Devices, folder: Path) -> None:
    exported = devices.told("export", str(folder), "--format", "torchscript", "--format", "safetensors", "-o", "out")
    assert exported.returncode == 0, exported.stderr
    first, second = exported.stdout.splitlines()
    assert first.startswith("out/model.torchscript: ")
    assert "of the model's outputs at most" in second
    told = devices.told("export", str(folder), "-o", "other")
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert told.stderr.startswith("dapper-device: --format onnx needs onnx, ")
    assert "; pip install 'fedml-dapper" in told.stderr
    assert not (devices.folder / "other").exists()
