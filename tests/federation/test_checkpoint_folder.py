from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedml_dapper.config import Settings
from fedml_dapper.errors import DataError
from fedml_dapper.federation import Experiment, SharedSettings, build_experiment
from fedml_dapper.federation.run_folder import tensor_file
from fedml_dapper.federation.run_folder.checkpoint import save_checkpoint
from fedml_dapper.federation.run_folder.checkpoint_folder import CheckpointFolder

from .interruptions import FEW
from .test_checkpoint import checkpoint, record

SettingsFactory = Callable[..., Settings]


@pytest.fixture
def experiment(tiny_settings: SettingsFactory) -> Experiment:
    return build_experiment(tiny_settings("method=fedavg", *FEW))


def rounds_in(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("round_")) for path in folder.glob("round_*.safetensors"))


def filled(folder: Path, experiment: Experiment, accuracies: dict[int, float | None]) -> CheckpointFolder:
    checkpoints = CheckpointFolder(folder, experiment)
    for round_, accuracy in accuracies.items():
        checkpoints.save(checkpoint(last_record=record(round_, accuracy)))
    return checkpoints


@pytest.mark.parametrize(
    ("accuracies", "left"),
    [
        ({1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}, [3, 4]),
        ({1: 10.0, 2: 50.0, 3: 30.0, 4: 40.0}, [2, 3, 4]),
        ({1: 50.0, 2: 50.0, 3: 30.0, 4: 50.0}, [1, 3, 4]),
        ({5: None, 10: 10.0, 15: None, 20: None, 25: None}, [10, 20, 25]),
        ({1: None, 2: None, 3: None}, [2, 3]),
        ({99_998: 1.0, 99_999: 2.0, 100_000: 3.0}, [99_999, 100_000]),
    ],
)
def test_the_latest_and_the_best_stay(
    experiment: Experiment, tmp_path: Path, accuracies: dict[int, float | None], left: list[int]
) -> None:
    filled(tmp_path / "checkpoints", experiment, accuracies)
    assert rounds_in(tmp_path / "checkpoints") == left


def test_how_many_stay_is_a_setting(experiment: Experiment, tmp_path: Path) -> None:
    kept = experiment.settings.dapper_args.model_copy(update={"checkpoints_kept": 1})
    thrifty = replace(experiment, settings=experiment.settings.model_copy(update={"dapper_args": kept}))
    filled(tmp_path, thrifty, {1: 10.0, 2: 30.0, 3: 20.0, 4: 25.0})
    assert rounds_in(tmp_path) == [2, 4]


def test_without_damage_the_latest_is_taken(
    experiment: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    latest = filled(tmp_path, experiment, {1: 1.0, 2: 2.0}).latest(2)
    assert latest is not None
    assert latest.round == 2
    assert caplog.messages == []
    assert CheckpointFolder(tmp_path / "none", experiment).latest(9) is None


@pytest.mark.parametrize("damage", ["cut", "emptied", "flipped", "folder", "fifo", "foreign", "ahead"])
def test_one_that_cannot_be_used_is_set_aside_and_the_one_before_it_taken(
    experiment: Experiment,
    tiny_settings: SettingsFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    checkpoints = filled(tmp_path, experiment, {1: 9.0, 2: 5.0, 3: 6.0, 4: 7.0})
    path, finished = tmp_path / "round_00004.safetensors", 4
    content = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(content[:-20])
        case "emptied":
            path.write_bytes(b"")
        case "flipped":
            path.write_bytes(content[:-5] + bytes([content[-5] ^ 4]) + content[-4:])
        case "folder":
            path.unlink()
            path.mkdir()
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "foreign":
            other = build_experiment(tiny_settings("method=fedavg", *FEW, "random_seed=2"))
            save_checkpoint(checkpoint(last_record=record(4)), SharedSettings.of_experiment(other), path)
        case "ahead":
            finished = 3
    with caplog.at_level(logging.WARNING):
        found = checkpoints.latest(finished)
    assert found is not None
    assert found.round == 3
    [message] = caplog.messages
    assert message.startswith(f"checkpoint {path} is ")
    assert message.endswith("; looking for an earlier one")
    assert "\n" not in message
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "round_00001.safetensors", "round_00003.safetensors", "round_00004.safetensors.refused"
    ]  # fmt: skip
    checkpoints.save(checkpoint(last_record=record(4, 7.0)))  # its place is free
    assert rounds_in(tmp_path) == [1, 3, 4]


@pytest.mark.parametrize("trouble", ["input/output error", "a later version's"])
def test_one_that_may_be_whole_is_not_set_aside(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    checkpoints = filled(tmp_path, experiment, {1: 9.0, 2: 5.0})
    path = tmp_path / "round_00002.safetensors"

    def failing(*_args: object, **_named: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if trouble == "input/output error":
        monkeypatch.setattr(tensor_file, "safe_open", failing)
    else:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        save_file(load_file(path), path, metadata | {"schema": "99"})
    with pytest.raises(
        DataError, match=r"cannot be read: Input/output error|is of schema 99, .* go on with the version"
    ):
        checkpoints.latest(2)
    assert rounds_in(tmp_path) == [1, 2]


def test_later_ones_of_an_earlier_life_do_not_push_out_new_ones(experiment: Experiment, tmp_path: Path) -> None:
    filled(tmp_path, experiment, {7: 9.0, 8: 9.0})
    filled(tmp_path, experiment, {1: 1.0, 2: 2.0, 3: 3.0})
    assert rounds_in(tmp_path) == [2, 3, 7, 8]


def test_what_somebody_put_there_stays(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "round_00001.safetensors").mkdir()
    filled(tmp_path, experiment, {2: 2.0, 3: 3.0, 4: 4.0})
    assert rounds_in(tmp_path) == [1, 3, 4]


def test_the_best_one_is_the_last_resort(experiment: Experiment, tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, experiment, {1: 9.0, 2: 5.0, 3: 6.0, 4: 7.0})
    for round_ in (3, 4):
        (tmp_path / f"round_0000{round_}.safetensors").write_bytes(b"")
    found = checkpoints.latest(4)
    assert found is not None
    assert found.round == 1
    assert checkpoints.latest(0) is None
