"""A file from a stranger names code in vain: only code that this user ran here runs, or what is consented to."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fedml_dapper
from fedml_dapper.config import Reference, Settings
from fedml_dapper.deployment.formats import FORMATS
from fedml_dapper.errors import ConfigError
from fedml_dapper.evaluation import write_run_report
from fedml_dapper.federation import LEDGER_NAME, MODEL_NAME, build_experiment, simulate
from fedml_dapper.federation.run_folder import own_code
from fedml_dapper.federation.run_folder.file_names import CHECKPOINTS_NAME
from fedml_dapper.federation.run_folder.finished import open_finished
from fedml_dapper.federation.run_folder.own_code import (
    NOTES_NAME,
    check_consent,
    check_program,
    note_code,
    note_program,
)

SettingsFactory = Callable[..., Settings]
FEW = (
    "client_num_in_total=5", "client_num_per_round=5", "client_share=0.02", "batch_size=8", "image_size=16",
    "comm_round=1", "epochs=1", "method=fedavg",
)  # fmt: skip
OWN = ("width=null", "ratios=[0, 0, 0, 0, 0]")
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))
"""


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's notes, still missing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(own_code, "_noted_here", set())
    return tmp_path / "state" / "fedml_dapper" / NOTES_NAME


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once a package ``stranger``, or code beside the model, was imported or called."""
    sprung = tmp_path / "sprung"
    spring = f"""
from pathlib import Path

def run(*arguments, **more):
    Path({str(sprung)!r}).touch()

run()
"""
    package = tmp_path / "path" / "stranger"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(spring)
    (package / "inner.py").write_text("run = print\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "net.py").write_text(spring)
    monkeypatch.syspath_prepend(str(package.parent))
    yield sprung
    for name in [name for name in sys.modules if name.partition(".")[0] == "stranger"]:
        del sys.modules[name]


def put(settings: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        settings = settings[section]
    settings[last] = value


def change(path: Path, key: str, value: object, sources: dict[str, str] | None = None) -> None:
    """Write another value into the settings of a model's file."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
    put(about["origin"]["settings"], key, value)
    about["origin"]["sources"] = sources or {}
    save_file(load_file(path), path, {"about": json.dumps(about)})


NAMED = (
    ("model_args.model", "subprocess:run"),
    ("model_args.model", "stranger:run"),
    ("model_args.model", "stranger.inner:run"),
    ("model_args.model", "net.py:run"),
    ("train_args.task", "stranger:run"),
    ("dapper_args.method", "stranger.inner:run"),
)
DATA = (("data_args.dataset", "stranger:run"), ("data_args.partition", "stranger.inner:run"))


@pytest.mark.parametrize(("key", "value"), NAMED)
def test_a_model_s_file_runs_no_code_of_its_choice(
    tiny_settings: SettingsFactory, tmp_path: Path, trap: Path, key: str, value: str
) -> None:
    simulate(build_experiment(tiny_settings(*FEW)), run_dir=tmp_path / "run")
    path = tmp_path / "run" / MODEL_NAME
    reference = Reference.parse(value)
    assert reference is not None
    there = reference if reference.file is None else Reference(str(path.parent / reference.place), reference.name)
    for sources in ({}, {key: there.with_digest}):
        change(path, key, value, sources)
        for load in (fedml_dapper.load_model, FORMATS["safetensors"].read):
            with pytest.raises(ConfigError, match=f"{key}: .* wants to run `.*`, which no run .* --trust-code"):
                load(path)
    assert not trap.exists()


@pytest.mark.parametrize(("key", "value"), [*NAMED, *DATA])
def test_a_run_s_folder_runs_no_code_of_its_choice(
    tiny_settings: SettingsFactory, tmp_path: Path, trap: Path, key: str, value: str
) -> None:
    folder = tmp_path / "run"
    simulate(build_experiment(tiny_settings(*FEW)), run_dir=folder)
    shutil.rmtree(folder / CHECKPOINTS_NAME)  # they would not fit the other settings
    first, *rest = (folder / LEDGER_NAME).read_text().splitlines(keepends=True)
    record = json.loads(first)
    put(record["settings"], key, value.replace("net.py", str(folder / "net.py")))
    (folder / LEDGER_NAME).write_text(json.dumps(record | {"sources": {}}) + "\n" + "".join(rest))
    if (key, value) in DATA:
        assert f"{key}: " in open_finished(folder).without_data  # the model is there without them
    else:
        with pytest.raises(ConfigError, match=f"{key}: .* wants to run"):
            fedml_dapper.Run.open(folder).model()
    write_run_report(folder)
    assert not trap.exists()


@pytest.mark.parametrize("arguments", [{"pretrained": True}, {"checkpoint_path": "x.pth"}, {"weights": "DEFAULT"}])
def test_a_library_s_network_fetches_nothing_for_a_stranger(
    tiny_settings: SettingsFactory, tmp_path: Path, arguments: dict[str, object]
) -> None:
    simulate(build_experiment(tiny_settings(*FEW)), run_dir=tmp_path / "run")
    path = tmp_path / "run" / MODEL_NAME
    change(path, "model_args", {"model": "torchvision:resnet18", "arguments": arguments})
    with pytest.raises(ConfigError, match=f"`torchvision:resnet18` with {next(iter(arguments))}"):
        fedml_dapper.load_model(path)
    change(path, "model_args", {"model": "torchvision:io.read_file", "arguments": {"path": "x"}})
    with pytest.raises(ConfigError, match=r"torchvision has no network `io.read_file`"):
        fedml_dapper.load_model(path)


def test_one_s_own_run_goes_on_as_long_as_its_code_is_what_it_was(
    tiny_settings: SettingsFactory, tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, path = tmp_path / "net.py", tmp_path / "run" / MODEL_NAME
    code.write_text(NET)
    simulate(build_experiment(tiny_settings(*FEW, f"model={code}:Net", *OWN)), run_dir=path.parent)
    assert str(code) in notes.read_text()
    monkeypatch.setattr(own_code, "_noted_here", set())  # as in a later process
    fedml_dapper.load_model(path)
    assert open_finished(path.parent).experiment is not None

    change(path, "model_args.model", f"{code}:nn")
    with pytest.raises(ConfigError, match=r"wants to run .*net.py:nn"):  # another object of one's own file
        fedml_dapper.load_model(path)
    change(path, "model_args.model", f"{code}:Net")
    code.write_text(NET + "# changed\n")
    with pytest.raises(ConfigError, match=r"wants to run .*net.py:Net"):
        fedml_dapper.load_model(path)
    fedml_dapper.load_model(path, trust_code=True)


def test_a_program_that_one_wrote_runs_as_long_as_it_is_what_it_was(tmp_path: Path) -> None:
    program = tmp_path / "model.pt2"
    program.write_bytes(b"program")
    for read in (FORMATS["torch-export"].read, FORMATS["torchscript"].read):
        with pytest.raises(ConfigError, match=r"model.pt2 is a program, and no export of yours .* trust_code=True"):
            read(program)
    check_program(program, trust_code=True)
    note_program(program)
    check_program(program, trust_code=False)
    check_program(program.rename(tmp_path / "moved.pt2"), trust_code=False)
    program.write_bytes(b"another")
    with pytest.raises(ConfigError, match="is a program"):
        check_program(program, trust_code=False)


def test_without_a_place_for_notes_a_run_still_knows_its_own_code(
    tiny_settings: SettingsFactory, tmp_path: Path, notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = tmp_path / "net.py"
    code.write_text(NET)
    settings = tiny_settings(*FEW, f"model={code}:Net", *OWN)
    notes.parent.mkdir(parents=True)
    os.mkfifo(notes)
    note_code(settings)
    assert "cannot note" in caplog.text
    check_consent(settings, ("model_args.model",), tmp_path, trust_code=False)


def test_a_torn_note_is_none(tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first.pt2", tmp_path / "second.pt2"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    note_program(first)
    with notes.open("a") as file:
        file.write('["torn')
    note_program(second)
    monkeypatch.setattr(own_code, "_noted_here", set())
    check_program(first, trust_code=False)
    check_program(second, trust_code=False)
