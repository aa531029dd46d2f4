"""A model's file is enough to build its network: no experiment file, no data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fedml_dapper
from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import MODEL_NAME, Experiment, build_experiment
from fedml_dapper.federation.run_folder.model_file import load_model, origin_of, read_model, round_of_model, save_model
from fedml_dapper.federation.run_folder.own_code import note_code
from fedml_dapper.methods import ServerState
from fedml_dapper.process.provenance import commit

from ..grids import ON_ANY_NETWORK, sampled

SettingsFactory = Callable[..., Settings]
FEW = (
    "client_num_in_total=5", "client_num_per_round=5", "client_share=0.02", "batch_size=8", "image_size=16",
    "comm_round=1", "epochs=1",
)  # fmt: skip
OWN_NET = Path(__file__).parents[2] / "examples" / "own_model" / "my_model.py"


@pytest.fixture
def experiment(tiny_settings: SettingsFactory) -> Experiment:
    return build_experiment(tiny_settings(*FEW))


def saved(experiment: Experiment, folder: Path, level: int | None = None) -> tuple[Path, torch.nn.Module]:
    """The file of a new model, and the model."""
    method, path = experiment.method, folder / MODEL_NAME
    state = ServerState(0, method.problem.backbone.state_dict(), experiment.profiles)
    model = method.global_model(state) if level is None else method.level_model(state, level)
    save_model(model.state_dict(), path, 7, origin_of(experiment))
    return path, model.eval()


def test_it_says_of_which_round_it_is(experiment: Experiment, tmp_path: Path) -> None:
    path, model = saved(experiment, tmp_path)
    assert load_file(path).keys() == model.state_dict().keys()
    assert round_of_model(path) == 7
    path.write_bytes(path.read_bytes()[:-1])
    assert round_of_model(path) is None
    save_file({"weight": torch.ones(2)}, path)
    assert round_of_model(path) is None
    assert round_of_model(tmp_path) is None


def test_it_says_where_it_comes_from(experiment: Experiment, tmp_path: Path) -> None:
    origin = read_model(saved(experiment, tmp_path)[0]).origin
    assert origin is not None
    assert (origin.suite, origin.method, origin.version) == (
        "digits_offline (input 16x16)", "dapperfl", fedml_dapper.__version__,
    )  # fmt: skip
    assert origin.commit == commit()
    assert origin.classes == tuple("0123456789")
    assert origin.input_shape == (1, 3, 16, 16)
    assert origin.preprocessing == experiment.preprocessing
    assert origin.settings["dapper_args"]["levels"]["ratios"] == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert str(tmp_path) not in origin.model_dump_json()  # nothing of the machine


@pytest.mark.parametrize("method", sampled(sorted(ON_ANY_NETWORK)))
def test_every_method_s_model_is_rebuilt_without_experiment_file_or_data(
    tiny_settings: SettingsFactory, tmp_path: Path, method: str
) -> None:
    network = ("model=resnet18", "dapper_args.params.nefl.mode=both") if method == "nefl" else ()
    experiment = build_experiment(tiny_settings(*FEW, f"method={method}", *network))
    level = None if not experiment.method.slims else 4
    path, model = saved(experiment, tmp_path, level)
    images = torch.randn(3, 3, 16, 16)
    rebuilt = fedml_dapper.load_model(path)
    assert not rebuilt.training
    assert rebuilt(images).equal(model(images))


@pytest.mark.parametrize("norm", ["group", "standardised"])
def test_narrow_ones_are_rebuilt_under_every_norm(tiny_settings: SettingsFactory, tmp_path: Path, norm: str) -> None:
    path, model = saved(build_experiment(tiny_settings(*FEW, f"norm={norm}", "scope=grouped")), tmp_path, level=5)
    images = torch.randn(3, 3, 16, 16)
    assert load_model(path)(images).equal(model(images))


def test_a_network_of_one_s_own_is_found_where_it_was_or_beside_the_file(
    tiny_settings: SettingsFactory, tmp_path: Path
) -> None:
    code = tmp_path / "code" / "my_net.py"
    code.parent.mkdir()
    shutil.copy(OWN_NET, code)
    args = (f"model={code}:Net", "width=null", "model_args.arguments={channels: 8}", "ratios=[0, 0.3, 0.5]")
    experiment = build_experiment(tiny_settings(*FEW, *args))
    note_code(experiment.settings)  # as a run does
    path, model = saved(experiment, tmp_path, level=3)
    images = torch.randn(3, 3, 16, 16)
    assert load_model(path)(images).equal(model(images))
    code.rename(tmp_path / code.name)
    with pytest.raises(ConfigError, match=r"wants to run `.*my_net.py:Net`, which no run of yours on this machine"):
        load_model(path)  # whoever hands over a model can put code beside it
    assert load_model(path, trust_code=True)(images).equal(model(images))
    (tmp_path / code.name).write_text(OWN_NET.read_text() + "\n# another\n")
    with pytest.raises(ConfigError, match=r"was made with my_net.py:Net \(source .*, here is my_net"):
        load_model(path)
    (tmp_path / code.name).unlink()
    with pytest.raises(ConfigError, match="put the file that it was made with where it was, or beside the model"):
        load_model(path)


def test_files_that_say_too_little_or_something_else_are_refused(experiment: Experiment, tmp_path: Path) -> None:
    path, _ = saved(experiment, tmp_path)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
    for metadata, message in [
        ({"round": "7"}, r"earlier version.*fedml_dapper.Run.open\(FOLDER\).model\(\)"),
        ({}, "none of a run's"),
        ({"about": json.dumps(about | {"of_tomorrow": 1})}, "of another version"),
    ]:
        save_file(tensors, path, metadata)
        with pytest.raises(DataError, match=message):
            load_model(path)
    save_file(tensors | {"predictor.bias": torch.zeros(3)}, path, {"about": json.dumps(about)})
    with pytest.raises(DataError, match="do not fit the network it names"):
        load_model(path)
    with pytest.raises(DataError, match="no global model at"):
        load_model(tmp_path / "nothing")
