"""A finished run opened again: with its data, without them, and where its code is another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import CHECKPOINTS_NAME, LEDGER_NAME, MODEL_NAME, build_experiment, simulate
from fedml_dapper.federation.run_folder.finished import open_finished
from fedml_dapper.methods import Method, ServerState
from tests.examples.pictures import make_pictures

SettingsFactory = Callable[..., Settings]
FEW = ("client_num_in_total=3", "client_num_per_round=3", "comm_round=1", "epochs=1", "client_share=null")
LEVELS = (1, 2, 3, 4, 5)
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    make_pictures(tmp_path / "pictures", per_class=6)
    return tmp_path / "pictures"


def run_on(pictures: Path, tiny_settings: SettingsFactory, *overrides: str) -> tuple[Path, dict[int, torch.Tensor]]:
    """The folder of a run, and what its levels' models give."""
    folder, where = pictures.parent / "run", ("dataset=folder", f"data_cache_dir={pictures}", "image_size=16")
    experiment = build_experiment(tiny_settings(*FEW, *where, *overrides))
    server, _ = simulate(experiment, run_dir=folder)
    return folder, {level: outputs(experiment.method, server.state, level) for level in LEVELS}


def outputs(method: Method[Any], state: ServerState, level: int) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = method.level_model(state, level).eval()(IMAGES)
    return found


@pytest.mark.long
@pytest.mark.parametrize("method", ["dapperfl", "nefl"])
def test_its_models_are_the_same_where_the_data_are_gone(
    pictures: Path, tiny_settings: SettingsFactory, method: str
) -> None:
    network = (
        ("model=resnet18", "width=4") if method == "nefl" else ()
    )  # whose levels differ in what the server remembers
    folder, expected = run_on(pictures, tiny_settings, f"method={method}", *network)
    with_data = open_finished(folder)
    assert with_data.experiment is not None
    assert with_data.without_data == ""
    shutil.rmtree(pictures)
    without = open_finished(folder)
    assert without.experiment is None
    assert "no folder" in without.without_data
    assert without.origin == with_data.origin
    assert without.state.profiles == with_data.state.profiles
    for level in LEVELS:
        assert outputs(with_data.method, with_data.state, level).equal(expected[level])
        assert outputs(without.method, without.state, level).equal(expected[level])


def test_a_run_of_an_earlier_version_takes_its_data(pictures: Path, tiny_settings: SettingsFactory) -> None:
    folder, expected = run_on(pictures, tiny_settings)
    save_file(load_file(folder / MODEL_NAME), folder / MODEL_NAME, {"round": "1"})  # all that it wrote
    earlier = open_finished(folder)
    assert earlier.state.round == 1
    assert outputs(earlier.method, earlier.state, 4).equal(expected[4])
    shutil.rmtree(pictures)
    with pytest.raises(
        DataError, match=r"is of an earlier version, which has to have the run's data beside it: .*no folder"
    ):
        open_finished(folder)


NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 24, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, num_classes))
"""


def test_code_that_is_not_what_it_was_is_refused(
    pictures: Path, tmp_path: Path, tiny_settings: SettingsFactory
) -> None:
    code = tmp_path / "net.py"
    code.write_text(NET)
    folder, _ = run_on(
        pictures, tiny_settings, "ratios=[0, 0, 0, 0, 0]", f"model={code}:Net", "width=null", "method=fedavg"
    )
    assert open_finished(folder).experiment is not None
    code.write_text(NET + "# changed\n")
    with pytest.raises(
        ConfigError, match=r"model_args.model: .* was made with net.py:Net \(source .*, here is net.py:Net"
    ):
        open_finished(folder)


def test_a_network_that_a_program_passed_is_the_program_s(
    pictures: Path, tmp_path: Path, tiny_settings: SettingsFactory
) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 24, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    net.append(torch.nn.Linear(24, 6))
    where = ("dataset=folder", f"data_cache_dir={pictures}", "image_size=16", "model=null", "width=null")
    experiment = build_experiment(tiny_settings(*FEW, *where, "method=fedavg"), model=net)
    simulate(experiment, run_dir=tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"a program passed the network, .*Sequential.*, so that only it can build it"
    ):
        open_finished(tmp_path / "run")


def test_a_method_is_as_it_was_in_the_run_whatever_its_defaults_are_today(
    pictures: Path, tiny_settings: SettingsFactory
) -> None:
    folder, _ = run_on(pictures, tiny_settings, "method=fedavgm")
    shutil.rmtree(folder / CHECKPOINTS_NAME)
    first, *rest = (folder / LEDGER_NAME).read_text().splitlines(keepends=True)
    record = json.loads(first)
    record["params"]["server_momentum"] = 0.25  # as of a default that changed
    (folder / LEDGER_NAME).write_text(json.dumps(record) + "\n" + "".join(rest))
    assert open_finished(folder).method.params.server_momentum == 0.25


@pytest.mark.parametrize("of_the_device", ["precision=bf16", "capture=off"])
def test_a_run_on_another_device_is_opened_here(
    pictures: Path, tiny_settings: SettingsFactory, of_the_device: str
) -> None:
    folder, expected = run_on(pictures, tiny_settings, of_the_device)
    here = open_finished(folder)
    assert here.experiment is not None
    assert here.experiment.settings.device_args.precision == "fp32"
    assert outputs(here.method, here.state, 4).equal(expected[4])


DATA = """
import torch
from torch.utils.data import TensorDataset

def load():
    part = TensorDataset(torch.randn(30, 3, 16, 16), torch.arange(30) % 6)
    return {"one": (part, part)}
"""


@pytest.mark.parametrize("since", ["edited", "gone"])
def test_a_run_whose_data_function_is_another_by_now_has_its_models(
    tmp_path: Path, tiny_settings: SettingsFactory, since: str
) -> None:
    code = tmp_path / "own_data.py"
    code.write_text(DATA)
    own = (f"dataset={code}:load", "image_size=null", "partition=domain_shares")
    ran = build_experiment(tiny_settings(*FEW, *own, "method=fedbn", "ratios=[0, 0, 0, 0, 0]"))
    server, _ = simulate(ran, run_dir=tmp_path / "run")
    if since == "edited":
        code.write_text(DATA + "# edited\n")
    else:
        code.unlink()
    opened = open_finished(tmp_path / "run")
    assert opened.experiment is None
    assert opened.without_data
    assert opened.memories.keys() == {0, 1, 2}
    assert outputs(opened.method, opened.state, 1).equal(outputs(ran.method, server.state, 1))
