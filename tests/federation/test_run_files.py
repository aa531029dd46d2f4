"""An interrupted run that is gone on with ends as if it had not been interrupted."""

from __future__ import annotations

import copy
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedml_dapper.config import Settings
from fedml_dapper.errors import DataError
from fedml_dapper.federation import (
    CHECKPOINTS_NAME,
    LEDGER_NAME,
    MODEL_NAME,
    SETTINGS_NAME,
    ClientSide,
    LedgerWriter,
    RoundRecord,
    RunObserver,
    Server,
    build_experiment,
    read_ledger,
    simulate,
)
from fedml_dapper.federation.run_folder.checkpoint import Checkpoint
from fedml_dapper.federation.run_folder.model_file import round_of_model
from fedml_dapper.federation.run_folder.run_files import RunFiles

from ..grids import ADAPTED, ON_ADAPTERS, ON_ANY_NETWORK, first_and_drawn, sampled
from .interruptions import assert_same_end, assert_same_held, ledger_of, resumed, run_until, unfinished_in
from .undisturbed import Undisturbed, UndisturbedRuns

FOUR_ROUNDS = ("comm_round=4", "checkpoint_every=1")
VARIANTS = [
    pytest.param(method, tuple(overrides), marks=pytest.mark.long)
    for method, *overrides in (
        ("dapperfl", "personal=true", "validation_share=0.1"),
        ("fedrep", "personal=true"),
        ("fedmp", "dapper_args.params.fedmp.ratio=eucb"),
        ("fedmp", "dapper_args.params.fedmp.ratio=eucb", "client_num_per_round=4"),
        ("fedecover", "client_num_per_round=4"),
        ("partialfed", "dapper_args.params.partialfed.strategy=adaptive"),
        ("dapperfl", "personal_layers=norms", "devices=true"),
        ("fedrolex", "personal_layers=statistics"),
        ("hetlora", *ADAPTED, "dapper_args.params.hetlora={gamma: 0.5, penalty: 5}"),
    )
]
"""Besides every method as it comes: what keeps more in its memories."""

KILLED_AT_A_FLUSH = """
import os, signal
fsync, flushes_left = os.fsync, {flushes}

def fatal_in_the_end(descriptor):
    global flushes_left
    flushes_left -= 1
    if flushes_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = fatal_in_the_end
"""
PROGRAM = """
import sys
from pathlib import Path

import torch

from fedml_dapper.config import load_settings
from fedml_dapper.federation import build_experiment, simulate

torch.set_num_threads(1)
simulate(build_experiment(load_settings([Path(sys.argv[1])])), run_dir=Path(sys.argv[2]), resume=True)
"""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Checkpoint, Checkpoint]]:
    """Every checkpoint that a server makes, beside a copy of what it was then."""
    made, original = list[tuple[Checkpoint, Checkpoint]](), Server.checkpoint

    def checkpoint(server: Server) -> Checkpoint:
        new = original(server)
        made.append((new, copy.deepcopy(new)))
        return new

    monkeypatch.setattr(Server, "checkpoint", checkpoint)
    return made


@pytest.mark.parametrize(
    ("method", "overrides"),
    sampled([*((name, ()) for name in ON_ANY_NETWORK), *ON_ADAPTERS, *VARIANTS], quick=("dapperfl", "scaffold")),
)
def test_every_method_ends_as_if_it_had_not_been_interrupted(
    undisturbed: UndisturbedRuns,
    tmp_path: Path,
    kept: list[tuple[Checkpoint, Checkpoint]],
    method: str,
    overrides: tuple[str, ...],
) -> None:
    """And its checkpoints stay as they are while rounds go on."""
    whole, cut = undisturbed(method, *overrides), tmp_path / "cut"
    kept.clear()
    run_until(3, whole.settings, cut)
    assert [path.name for path in (cut / CHECKPOINTS_NAME).iterdir()] == ["round_00002.safetensors"]  # on the way out
    assert round_of_model(cut / MODEL_NAME) == 2
    again, records = resumed(whole.settings, cut)
    assert_same_end(whole, again, cut)
    assert [record.round for record in records] == [1, 2, 3]
    assert unfinished_in(cut) == []
    assert {checkpoint.round for checkpoint, _ in kept} == {1, 2, 3}
    for checkpoint, before in kept:
        assert_same_held(checkpoint, before)
        assert (checkpoint.standing, checkpoint.last_record) == (before.standing, before.last_record)


@pytest.fixture(scope="module")
def whole(undisturbed: UndisturbedRuns) -> Undisturbed:
    """A run of a method that remembers much on both sides."""
    return undisturbed("scaffold", *FOUR_ROUNDS)


@pytest.fixture(scope="module")
def settings(whole: Undisturbed) -> Settings:
    """Its settings."""
    return whole.settings


@pytest.mark.long
def test_a_run_can_be_interrupted_in_every_round(settings: Settings, whole: Undisturbed, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    for round_ in (1, 2, 3, 3, 4):
        run_until(round_, settings, cut)
        assert len(read_ledger(cut / LEDGER_NAME)[1]) == round_ - 1
    again, _ = resumed(settings, cut)
    assert_same_end(whole, again, cut)


@pytest.mark.long
@pytest.mark.parametrize(
    "tail",
    first_and_drawn(
        b'{"record":"round","round":4,"sco',
        b"",
        b"\0" * 500,
        b"\0" * 500 + b"\n\xff\n",
        b'{"record":"round"}\n{"record":"round"}\n',
    ),
)
def test_what_the_ledger_holds_beyond_the_checkpoint_is_cut(
    undisturbed: UndisturbedRuns, tmp_path: Path, tail: bytes
) -> None:
    whole, cut = undisturbed("dapperfl", *FOUR_ROUNDS, "checkpoint_every=2"), tmp_path / "cut"
    run_until(4, whole.settings, cut)
    ledger = cut / LEDGER_NAME
    (cut / CHECKPOINTS_NAME / "round_00003.safetensors").unlink()  # a killed run has no way out
    assert [path.name for path in (cut / CHECKPOINTS_NAME).iterdir()] == ["round_00002.safetensors"]
    assert ledger.read_bytes().count(b"\n") == 4
    with ledger.open("ab") as file:
        file.write(tail)
    again, records = resumed(whole.settings, cut)
    assert [record.round for record in records] == [1, 2, 3, 4]
    assert_same_end(whole, again, cut)


@pytest.mark.nightly
@pytest.mark.parametrize("lost", [3, 1])
def test_rounds_that_the_ledger_lost_are_run_again(
    settings: Settings, whole: Undisturbed, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    cut = tmp_path / "cut"
    run_until(4, settings, cut)
    lines = (cut / LEDGER_NAME).read_bytes().splitlines(keepends=True)
    del lines[lost:]
    (cut / LEDGER_NAME).write_bytes(b"".join(lines))
    again, _ = resumed(settings, cut)
    assert f"round_00003.safetensors is of round 3, the ledger ends with {lost - 1}" in caplog.messages[0]
    assert_same_end(whole, again, cut)


@pytest.mark.nightly
def test_with_no_usable_checkpoint_it_starts_over_and_says_so(
    settings: Settings, whole: Undisturbed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = tmp_path / "cut"
    run_until(4, settings, cut)
    for path in (cut / CHECKPOINTS_NAME).iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    again, _ = resumed(settings, cut)
    assert len(caplog.messages) >= 3
    assert caplog.messages[-1] == f"no usable checkpoint below {cut}: the run starts over from round 1"
    assert_same_end(whole, again, cut)


@pytest.mark.parametrize("left", first_and_drawn("torn ledger", "nothing", "empty folder", "settings", "empty ledger"))
def test_where_nothing_was_begun_a_run_starts(
    settings: Settings, whole: Undisturbed, tmp_path: Path, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir, ledger = tmp_path / "run", (whole.run_dir / LEDGER_NAME).read_text()
    if left != "nothing":
        run_dir.mkdir()
    match left:
        case "settings":
            (run_dir / SETTINGS_NAME).write_text(settings.as_yaml())
        case "empty ledger":
            (run_dir / LEDGER_NAME).touch()
        case "torn ledger":
            (run_dir / LEDGER_NAME).write_text(ledger[:50])
    server, _ = resumed(settings, run_dir)
    assert_same_end(whole, server, run_dir)
    assert (run_dir / SETTINGS_NAME).read_text() == settings.as_yaml()
    assert caplog.messages == []


def test_whatever_cuts_a_run_short_no_finished_round_is_repeated(undisturbed: UndisturbedRuns, tmp_path: Path) -> None:
    class Fail(RunObserver):
        def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
            started.append(round_)
            if round_ == 4 and started.count(4) == 1:
                raise RuntimeError("out of luck")

    whole, started = undisturbed("dapperfl", *FOUR_ROUNDS, "checkpoint_every=2"), list[int]()
    with pytest.raises(RuntimeError, match="out of luck"):
        simulate(build_experiment(whole.settings), [Fail()], tmp_path / "cut")
    again, _ = simulate(build_experiment(whole.settings), [Fail()], tmp_path / "cut", resume=True)
    assert started == [1, 2, 3, 4, 4]
    assert_same_end(whole, again, tmp_path / "cut")


@pytest.mark.nightly
@pytest.mark.parametrize("line", first_and_drawn(b"torn", b"whole", b"missing"))
def test_an_interrupt_while_the_ledger_is_written_costs_only_what_is_not_in_it(
    undisturbed: UndisturbedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    written = LedgerWriter.round_finished

    def interrupted(ledger: LedgerWriter, record: RoundRecord) -> None:
        if record.round == 3:
            if line == b"whole":
                written(ledger, record)
            elif line == b"torn":
                with ledger.path.open("ab") as file:
                    file.write(record.model_dump_json().encode()[:50])
            raise KeyboardInterrupt
        written(ledger, record)

    whole, cut = undisturbed("dapperfl"), tmp_path / "cut"
    monkeypatch.setattr(LedgerWriter, "round_finished", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate(build_experiment(whole.settings), run_dir=cut)
    monkeypatch.undo()
    expected = 3 if line == b"whole" else 2
    assert [path.name for path in (cut / CHECKPOINTS_NAME).iterdir()] == [f"round_0000{expected}.safetensors"]
    again, _ = resumed(whole.settings, cut)
    assert_same_end(whole, again, cut)


def test_a_finished_run_stays_as_it_is(settings: Settings, whole: Undisturbed, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole.run_dir, run_dir)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    again, records = resumed(settings, run_dir)
    assert records == read_ledger(run_dir / LEDGER_NAME)[1]
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
    assert_same_end(whole, again, run_dir)
    assert again.last_record == whole.held.last_record


@pytest.mark.long
def test_a_run_that_is_still_going_is_not_taken_over(settings: Settings, tmp_path: Path) -> None:
    class Impatient(RunObserver):
        def round_finished(self, record: RoundRecord) -> None:
            before = (tmp_path / LEDGER_NAME).read_bytes()
            with pytest.raises(DataError, match="another process is at this run"):
                resumed(settings, tmp_path)
            assert (tmp_path / LEDGER_NAME).read_bytes() == before

    _, records = simulate(build_experiment(settings), [Impatient()], tmp_path)
    assert read_ledger(tmp_path / LEDGER_NAME)[1] == records


def test_a_run_killed_before_its_last_file_gets_it(settings: Settings, whole: Undisturbed, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(whole.run_dir, cut)
    (cut / MODEL_NAME).unlink()
    again, _ = resumed(settings, cut)
    assert_same_end(whole, again, cut)


@pytest.mark.long
def test_what_comes_later_waits_for_what_comes_first(settings: Settings, whole: Undisturbed, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / CHECKPOINTS_NAME).touch()
    with pytest.raises(DataError, match=rf"cannot write {cut}/checkpoints/round_00001.safetensors: .* --resume"):
        simulate(build_experiment(settings), run_dir=cut)
    assert [record.round for record in read_ledger(cut / LEDGER_NAME)[1]] == [1]
    assert not (cut / MODEL_NAME).exists()
    (cut / CHECKPOINTS_NAME).unlink()
    again, _ = resumed(settings, cut)
    assert_same_end(whole, again, cut)


def test_a_server_without_the_clients_memories_saves_what_it_has(settings: Settings, tmp_path: Path) -> None:
    experiment = build_experiment(settings)
    server, clients = Server(experiment), ClientSide(experiment)
    server.is_simulation = False
    files = RunFiles(experiment, server, tmp_path)
    files.run_started(experiment.record())
    for client_id in server.round_clients():
        server.receive(clients.update(server.downlink(client_id), experiment.clients[client_id]))
    files.round_finished(server.close_round())
    files.run_finished()
    again = Server(experiment)
    assert len(RunFiles(experiment, again, tmp_path).resume() or []) == 1
    assert again.state.round == 1
    assert again.memories == {}


@pytest.mark.nightly
@pytest.mark.usefixtures("all_test_images")
def test_a_run_killed_at_any_flush_ends_as_if_it_had_not_been(
    settings: Settings, tmp_path: Path, chance: random.Random
) -> None:
    whole, _ = simulate(build_experiment(settings), run_dir=tmp_path / "whole")
    cut, file = tmp_path / "cut", tmp_path / "experiment.yaml"
    file.write_text(settings.as_yaml())
    for flushes in (chance.randint(1, 6), chance.randint(1, 3)):  # of a run of four rounds, and of what is left of it
        command = [sys.executable, "-c", KILLED_AT_A_FLUSH.format(flushes=flushes) + PROGRAM, file, cut]
        killed = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=600)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    subprocess.run([sys.executable, "-c", PROGRAM, file, cut], check=True, timeout=600)
    saved = load_file(cut / MODEL_NAME)
    assert all(tensor.equal(saved[name]) for name, tensor in whole.state.weights.items())
    assert ledger_of(cut) == ledger_of(tmp_path / "whole")
    assert unfinished_in(cut) == []
