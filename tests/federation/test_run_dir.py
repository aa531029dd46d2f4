from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import (
    LEDGER_NAME,
    MODEL_NAME,
    SETTINGS_NAME,
    Experiment,
    build_experiment,
    is_finished,
    open_run_dir,
    simulate,
)
from fedml_dapper.federation.round.roster import Roster
from fedml_dapper.files.atomic import SCRATCH_PREFIX
from fedml_dapper.files.locks import RUN_LOCK_NAME, unlock_folder
from fedml_dapper.pruning import Device

from .interruptions import FEW, run_until

SettingsFactory = Callable[..., Settings]


@pytest.fixture
def settings(tiny_settings: SettingsFactory) -> Settings:
    return tiny_settings(*FEW, "method=fedavg", "comm_round=2")


@pytest.fixture
def experiment(settings: Settings) -> Experiment:
    return build_experiment(settings)


def test_run_folders_are_new_and_never_overwritten(experiment: Experiment, tmp_path: Path) -> None:
    first, second = open_run_dir(experiment), open_run_dir(experiment)
    assert first != second
    assert open_run_dir(experiment, first) == first  # no run has begun there
    (first / LEDGER_NAME).touch()
    with pytest.raises(ConfigError, match=f"{first} holds a run already; go on with it by --resume"):
        open_run_dir(experiment, first)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write into"):
        open_run_dir(experiment, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("overrides", "difference"),
    [
        (("epochs=3",), "train_args.epochs is 2 there and 3 here"),
        (("precision=bf16",), "device_args.precision is fp32 there and bf16 here"),
        (("method=fedprox", "batch_size=8"), "dapper_args.method is fedavg there and fedprox here"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(
    tiny_settings: SettingsFactory, settings: Settings, tmp_path: Path, overrides: tuple[str, ...], difference: str
) -> None:
    run_dir = tmp_path / "run"
    run_until(2, settings, run_dir)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    other = build_experiment(tiny_settings(*FEW, "method=fedavg", "comm_round=2", *overrides))
    with pytest.raises(ConfigError, match=f"^{run_dir} holds a run with other settings: {difference}"):
        open_run_dir(other, run_dir, resume=True)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_a_run_is_not_resumed_on_other_data(settings: Settings, experiment: Experiment, tmp_path: Path) -> None:
    run_until(2, settings, tmp_path / "run")
    first, *others = experiment.clients
    fewer = replace(first, samples=first.samples.take(torch.arange(3)))
    devices = [Device(client.client_id, client.domain, client.num_samples) for client in (fewer, *others)]
    roster = Roster(experiment.settings, experiment.method, devices)
    with pytest.raises(ConfigError, match="holds a run on other data"):
        open_run_dir(replace(experiment, roster=roster), tmp_path / "run", resume=True)


def test_settings_of_the_machine_may_be_others(
    tiny_settings: SettingsFactory, settings: Settings, tmp_path: Path
) -> None:
    run_until(2, settings, tmp_path / "run")
    other = tiny_settings(*FEW, "method=fedavg", "comm_round=2", "checkpoint_every=2", "checkpoints_kept=5")
    open_run_dir(build_experiment(other), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / SETTINGS_NAME).read_text() == other.as_yaml()


def test_what_cannot_be_resumed_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume which run"):
        open_run_dir(experiment, resume=True)
    (tmp_path / LEDGER_NAME).write_text("somebody's results\n")
    with pytest.raises(DataError, match="line 1 is not the record of a run"):
        open_run_dir(experiment, tmp_path, resume=True)


def test_a_ledger_that_says_no_more_what_was_run_is_not_begun_anew_over_checkpoints(
    settings: Settings, experiment: Experiment, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    simulate(experiment, run_dir=run_dir)
    ledger = run_dir / LEDGER_NAME
    run, *rounds = ledger.read_bytes().splitlines(keepends=True)
    assert len(rounds) == 2
    damaged = {
        b"": "a ledger.jsonl that is cut off in its first line",
        run[:40]: "a ledger.jsonl that is cut off in its first line",
        b"\0" * len(run): "a ledger.jsonl that is cut off in its first line",
        run + rounds[0][:40] + b"\n" + rounds[1]: "line 2 is not the record of a round",
        run + b"\0" * 40 + b"\n" + rounds[1]: "line 2 is not the record of a round",
        run + rounds[1] + rounds[0]: "line 2 is of round 2, where round 1 is due",
    }
    for content, said in damaged.items():
        ledger.write_bytes(content)
        before = files(run_dir)
        with pytest.raises((ConfigError, DataError), match=said):
            open_run_dir(experiment, run_dir, resume=True)
        assert files(run_dir) == before
    for last in (rounds[1][:40], rounds[1][:40] + b"\n", b"\0" * 40):
        ledger.write_bytes(run + rounds[0] + last)  # a machine without power was writing it
        open_run_dir(experiment, run_dir, resume=True)
    ledger.unlink()
    with pytest.raises(ConfigError, match=r"no ledger.jsonl, so that nothing says what was run"):
        open_run_dir(experiment, run_dir, resume=True)


def test_a_run_that_ended_before_its_first_round_is_no_run_to_be_kept(experiment: Experiment, tmp_path: Path) -> None:
    run_dir = open_run_dir(experiment, tmp_path / "run")
    head = experiment.record().model_dump_json()
    (run_dir / LEDGER_NAME).write_text(f"{head}\n")
    open_run_dir(experiment, run_dir)
    assert not (run_dir / LEDGER_NAME).exists()
    (run_dir / LEDGER_NAME).write_text("somebody's results\n")
    with pytest.raises(ConfigError, match="holds a run already"):
        open_run_dir(experiment, run_dir)


@pytest.mark.long
def test_a_run_is_finished_with_its_last_global_model(
    settings: Settings, experiment: Experiment, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    assert not is_finished(run_dir, experiment)
    run_until(2, settings, run_dir)
    assert not is_finished(run_dir, experiment)
    simulate(experiment, run_dir=run_dir, resume=True)
    assert is_finished(run_dir, experiment)
    model = (run_dir / MODEL_NAME).read_bytes()
    (run_dir / MODEL_NAME).write_bytes(model[:-1])
    assert not is_finished(run_dir, experiment)


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"restart": True}], ids=str)
@pytest.mark.parametrize("name", ["settings.yaml", "report.html", "global_model.safetensors", "checkpoints/best.pt"])
def test_files_that_no_run_wrote_are_neither_replaced_nor_deleted(
    experiment: Experiment, tmp_path: Path, name: str, how: dict[str, bool]
) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("# by hand\ntrain_args: {comm_round: 2}\n")
    with pytest.raises(ConfigError, match=rf"{tmp_path} holds {name.partition('/')[0]}.*; choose another folder$"):
        open_run_dir(experiment, tmp_path, **how)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    assert own.read_text() == "# by hand\ntrain_args: {comm_round: 2}\n"


def test_begun_anew_a_run_leaves_what_others_put_beside_its_files(experiment: Experiment, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    simulate(experiment, run_dir=run_dir)
    own = {run_dir / "notes.txt", run_dir / "checkpoints" / "best.pt"}
    for file in own:
        file.touch()
    open_run_dir(experiment, run_dir, restart=True)
    assert set(files(run_dir)) == {*own, run_dir / SETTINGS_NAME}


def test_settings_that_a_killed_run_left_and_a_log_are_in_nobody_s_way(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "log.txt").touch()
    (tmp_path / SETTINGS_NAME).write_text(experiment.settings.as_yaml())
    for how in ({}, {"resume": True}, {"restart": True}):
        assert open_run_dir(experiment, tmp_path, **how) == tmp_path


def test_a_run_is_not_written_among_the_pictures_that_it_learns_from(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "chalk" / "cat").mkdir(parents=True)
    (tmp_path / "chalk" / "cat" / "1.png").touch()
    args = experiment.settings.data_args.model_copy(update={"dataset": "folder", "data_cache_dir": tmp_path})
    learning = replace(experiment, settings=experiment.settings.model_copy(update={"data_args": args}))
    for place in (tmp_path, tmp_path / "chalk", tmp_path / "chalk" / "cat"):
        for how in ({}, {"resume": True}, {"restart": True}):
            with pytest.raises(ConfigError, match=rf"^{place} is .* data; choose another for the run, e\.g\. "):
                open_run_dir(learning, place, **how)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["1.png"]
    open_run_dir(learning, tmp_path / "runs" / "mine")
    open_run_dir(learning, tmp_path / "runs")  # which holds a run
    (tmp_path / "runs" / "mine" / "tensorboard").mkdir()  # as trackers make before the first round
    open_run_dir(learning, tmp_path / "runs" / "mine")


HOLDER = """
import sys, time
from pathlib import Path
from fedml_dapper.files.locks import lock_folder
lock_folder(Path(sys.argv[1]))
print("mine", flush=True)
time.sleep(3600)  # until it is killed
"""


def files(run_dir: Path) -> dict[Path, bytes]:
    """All but who is at the run."""
    paths = (path for path in run_dir.rglob("*") if path.is_file() and path.name != RUN_LOCK_NAME)
    return {path: path.read_bytes() for path in paths}


def test_another_process_s_run_is_left_alone_altogether(experiment: Experiment, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    simulate(experiment, run_dir=run_dir)
    scratch = run_dir / f"{SCRATCH_PREFIX}0"
    scratch.mkdir()  # as where the other process is writing a file
    before = files(run_dir)
    with subprocess.Popen([sys.executable, "-c", HOLDER, run_dir], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "mine\n"
            for how in ({"resume": True}, {"restart": True}, {}):
                with pytest.raises(DataError, match=rf"{run_dir}: another .* at this run \(process {other.pid} on "):
                    open_run_dir(experiment, run_dir, **how)
            assert files(run_dir) == before
            assert scratch.is_dir()
        finally:
            other.kill()  # or a failure above would wait for it
    assert open_run_dir(experiment, run_dir, resume=True) == run_dir  # the system gave the lock back


def test_who_is_refused_a_folder_leaves_it_to_others(experiment: Experiment, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    simulate(experiment, run_dir=run_dir)
    with pytest.raises(ConfigError, match="holds a run already"):
        open_run_dir(experiment, run_dir)  # as in a notebook, which stays open
    with subprocess.Popen([sys.executable, "-c", HOLDER, run_dir], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        other.kill()


@pytest.mark.long
def test_a_run_without_its_ledger_is_begun_anew_only_when_told_to(experiment: Experiment, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    simulate(experiment, run_dir=run_dir)
    (run_dir / LEDGER_NAME).unlink()
    (run_dir / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"has checkpoints, but no ledger.jsonl, .*--restart"):
        open_run_dir(experiment, run_dir, resume=True)
    assert list((run_dir / "checkpoints").iterdir())
    open_run_dir(experiment, run_dir, restart=True)
    assert sorted(path.name for path in run_dir.iterdir()) == [RUN_LOCK_NAME, "notes.txt", "settings.yaml"]
    assert len(simulate(experiment, run_dir=run_dir, resume=True)[1]) == 2


def test_a_restart_that_broke_off_can_be_given_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    simulate(experiment, run_dir=run_dir)
    unlink = Path.unlink

    def broken_off(path: Path, missing_ok: bool = False) -> None:
        if path.name == MODEL_NAME:
            raise OSError(errno.EIO, "the disk is away")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", broken_off)
    with pytest.raises(DataError, match="the disk is away"):
        open_run_dir(experiment, run_dir, restart=True)
    monkeypatch.undo()
    unlock_folder(run_dir)
    open_run_dir(experiment, run_dir, restart=True)
    assert sorted(path.name for path in run_dir.iterdir()) == [RUN_LOCK_NAME, "settings.yaml"]


def test_checkpoints_on_another_disk_are_deleted_and_the_link_stays(experiment: Experiment, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (tmp_path / "large_disk").mkdir()
    (run_dir / "checkpoints").symlink_to(tmp_path / "large_disk")
    simulate(experiment, run_dir=run_dir)
    assert list((tmp_path / "large_disk").iterdir())
    open_run_dir(experiment, run_dir, restart=True)
    assert not list((tmp_path / "large_disk").iterdir())
    assert (run_dir / "checkpoints").is_symlink()


def test_a_checkpoint_that_is_no_file_is_passed_over(experiment: Experiment, tmp_path: Path) -> None:
    simulate(experiment, run_dir=tmp_path / "run")
    strange = tmp_path / "run" / "checkpoints" / "round_00009.safetensors"
    os.mkfifo(strange)
    assert is_finished(tmp_path / "run", experiment)
    assert len(simulate(experiment, run_dir=tmp_path / "run", resume=True)[1]) == 2
