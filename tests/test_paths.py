"""Paths with ``~`` and environment variables, wherever one may be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedml_dapper
from fedml_dapper.cli import main
from fedml_dapper.config import DataArgs, load_settings
from fedml_dapper.datasets import data_root, load_suite
from fedml_dapper.errors import ConfigError, DataError

from .brought import EXPERIMENT, brought, load_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, also known as ``$PLACE``, which is not the working directory."""
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "home"


@pytest.mark.parametrize("written", ["~", "$PLACE", "${PLACE}"])
@pytest.mark.parametrize(
    ("key", "file"),
    [
        ("data_args.data_cache_dir", "data/"),
        ("data_args.dataset", "my_data.py:load"),
        ("data_args.partition", "split.py:deal"),
        ("model_args.model", "net.py:Net"),
        ("model_args.weights", "weights.safetensors"),
        ("train_args.task", "task.py:Task"),
        ("dapper_args.method", "method.py:Method"),
        ("dapper_args.output_dir", "runs/"),
        ("dapper_args.fleet.devices", "board.yaml"),
        ("dapper_args.fleet.network", "net.yaml"),
        ("silo_args.data_cache_dir", "data/"),
        ("silo_args.device", "board.yaml"),
        ("client_specific_args.data_silo_config", "silo.yaml"),
        ("comm_args.dapper_grpc.certificates", "keys/"),
        ("comm_args.dapper_grpc.token_file", "token"),
        ("comm_args.dapper_grpc.members_file", "members.yaml"),
        ("comm_args.dapper_grpc.audit_file", "audit.jsonl"),
    ],
)
def test_are_expanded_in_every_setting_that_names_a_place(home: Path, key: str, file: str, written: str) -> None:
    place = home / file.partition(":")[0]
    if file.endswith("/"):
        place.mkdir(exist_ok=True)
    else:
        place.touch()
    (home / "keys").mkdir(exist_ok=True)
    listed = key.endswith(("devices", "data_silo_config"))
    asked: dict[str, object] = {key: [f"{written}/{file}"] if listed else f"{written}/{file}"}
    if key.endswith("data_silo_config"):
        asked[key] = [f"{written}/{file}"] * 2
    if "dapper_grpc" in key or key.startswith("silo_args"):
        server = {"server_address": "localhost:1", "certificates": str(home / "keys")}
        server |= {key.rpartition(".")[2]: str(asked.pop(key))} if "dapper_grpc" in key else {"token_file": None}
        asked |= {"data_args.partition": "own"} if key.startswith("silo_args") else {}
        asked |= {"dapper_args.fleet.round_s": 60} if key == "silo_args.device" else {}
        asked |= {"training_type": "cross_silo", "backend": "DAPPER_GRPC", "comm_args.dapper_grpc": server}
    if "fleet" in key:
        (home / "board.yaml").touch()
        asked = {"dapper_args.fleet.devices": [str(home / "board.yaml")], "dapper_args.fleet.round_s": 60} | asked
    built_in = EXPERIMENT.replace("my_data.py:load", "digits").replace("net.py:Net", "lenet5")
    (home / "experiment.yaml").write_text(built_in)
    value: object = load_settings(["~/experiment.yaml"], asked)
    for step in key.split("."):
        value = getattr(value, step)
    assert str(value[0] if listed else value).removesuffix("/") == str(home / file).removesuffix("/")  # type: ignore[index]


def test_a_variable_that_is_not_set_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    stranger = brought(home, load_of())
    for asked in ({"data_args.data_cache_dir": "$NOT_THERE/data"}, {"model_args.model": "$NOT_THERE/net.py:Net"}):
        with pytest.raises(ConfigError, match=r"the environment has no variable NOT_THERE; set it, or write the path"):
            load_settings([stranger.experiment], asked)
    with pytest.raises(ConfigError, match="no variable NOT_THERE"):
        load_settings(["$NOT_THERE/experiment.yaml"])


def test_a_dollar_in_a_name_that_is_there_is_a_letter(home: Path) -> None:
    folder = Path("price_$5")
    folder.mkdir()
    stranger = brought(home, load_of())
    assert load_settings([stranger.experiment], {"data_args.data_cache_dir": str(folder)}).data_args.data_cache_dir == (
        folder.resolve()
    )


@pytest.mark.parametrize("written", ["~", "$PLACE"])
def test_programs_may_write_them_too(home: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    brought(home, load_of())
    run = fedml_dapper.run(f"{written}/experiment.yaml", output=f"{written}/run", progress=False)
    assert run.folder == home / "run"
    assert fedml_dapper.Run.open(f"{written}/run").summary.rounds == 1
    assert fedml_dapper.load_model(f"{written}/run/global_model.safetensors").state_dict()
    assert os.listdir() == []
    monkeypatch.setenv("DAPPER_DATA", f"{written}/data")
    assert data_root(None) == home / "data"


@pytest.mark.parametrize("written", ["~", "$PLACE", "${PLACE}"])
def test_commands_take_them_where_a_shell_leaves_them(home: Path, written: str) -> None:
    stranger = brought(home, load_of())
    for command in (
        ["init", f"{written}/begun.yaml", "--yes"],
        ["data", "check", f"--config={written}/{stranger.experiment.name}"],
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    assert (home / "begun.yaml").is_file()
    for command in (
        ["report", f"{written}/none"],
        ["audit", f"{written}/none.jsonl"],
        ["predict", f"{written}/none", f"{written}/none.png"],
        ["silos", "list", f"{written}/none.json"],
    ):
        result = CliRunner().invoke(main, command, prog_name="fedml-dapper")
        assert result.exit_code == 2
        assert str(home) in result.stderr
    assert os.listdir() == []


def test_a_name_may_be_too_long(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"^a+\.\.\.: a name that is too long for a file"):
        load_settings("a" * 5000)
    stranger = brought(home, load_of())
    for key, text in {"model_args.model": "a.py:Net", "data_args.data_cache_dir": "a"}.items():
        with pytest.raises(ConfigError, match=rf"{key}: .*a\.\.\.: a name that is too long for a file"):
            load_settings(stranger.experiment, {key: "a" * 5000 + text})


LATIN_1 = os.fsdecode(b"donn\xe9es")


def test_a_name_that_is_not_utf_8_is_refused_before_a_ledger_would_have_to_hold_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / LATIN_1
    folder.mkdir()
    (folder / "my_data.py").write_text("def load(): return {}")
    (folder / "experiment.yaml").write_text("data_args: {dataset: 'my_data.py:load'}\nmodel_args: {model: lenet5}")
    with pytest.raises(
        ConfigError, match=r"donn\\udce9es.*: a name that is not UTF-8, which no ledger can hold; rename"
    ):
        load_settings([folder / "experiment.yaml"])
    monkeypatch.chdir(folder)
    with pytest.raises(
        ConfigError, match=r"data_args.dataset: .*donn\\udce9es/my_data.py:load': a name that is not UTF"
    ):
        load_settings(["experiment.yaml"])
    for command in (["report", LATIN_1], ["run", "--output", LATIN_1, "-c", "quickstart.yaml"]):
        result = CliRunner().invoke(main, command, prog_name="fedml-dapper")
        assert result.exit_code == 2
        assert result.stderr.startswith("fedml-dapper: 'donn")
        assert len(result.stderr.splitlines()) == 1


def test_so_is_a_class_s_folder(home: Path) -> None:
    (home / "shots" / LATIN_1).mkdir(parents=True)
    with pytest.raises(DataError, match=r"shots: 'donn\\udce9es': a name that is not UTF-8"):
        load_suite(DataArgs(dataset="folder", data_cache_dir=home / "shots"))
