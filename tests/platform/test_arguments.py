"""Settings through FedML's flat ``args`` and back."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from fedml_dapper.config import Settings, load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.platform.arguments import init, settings_of, start
from fedml_dapper.platform.program import note_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data" / "experiment.yaml"


def test_keys_of_several_sections_stay_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings: Settings = load_settings([EXAMPLE], ["model_args.arguments={}", "data_args.arguments={samples: 80}"])
    file = tmp_path / "experiment.yaml"
    file.write_text(settings.as_yaml())
    monkeypatch.setattr("sys.argv", ["program"])
    args = init(file)
    read = settings_of(args)
    assert read.data_args.arguments == {"samples": 80}
    assert read.model_args.arguments == {}


def test_a_program_may_go_to_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("data_args: {dataset: digits_offline}\nmodel_args: {model: lenet5}")
    monkeypatch.setattr("sys.argv", ["program"])
    monkeypatch.chdir(tmp_path)
    args = init("experiment.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert settings_of(args).model_args.model == "lenet5"


def test_a_home_that_cannot_be_written_is_named_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file, as root may write into every folder")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.argv", ["program"])
    with pytest.raises(ConfigError, match=f"FedML writes into {tmp_path}/home/.fedml, .*set HOME to a folder that can"):
        start(load_settings([EXAMPLE]), {}, Namespace())


def test_other_args_than_those_of_init_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"args name no experiment file; make them by fedml_dapper.platform.init\(\)"):
        settings_of(Namespace(rank=0))


def test_what_is_no_network_is_called_what_it_is() -> None:
    with pytest.raises(ConfigError, match=r"the program passes a str as its model; pass a torch.nn.Module, or what"):
        note_model(Namespace(), "resnet18")  # type: ignore[arg-type]
