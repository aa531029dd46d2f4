"""Cells as real processes: nothing is run twice, and nothing is lost when someone is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedml_dapper.benches import queue
from fedml_dapper.benches.cell import LOCK_NAME, ORPHANED, is_finished
from fedml_dapper.benches.diagnosis import DIAGNOSIS_NAME, Diagnosis
from fedml_dapper.benches.grid import Bench, Cell, cells
from fedml_dapper.benches.queue import Progress, run_queue
from fedml_dapper.benches.room import Room
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation import CHECKPOINTS_NAME, LEDGER_NAME, SETTINGS_NAME, build_experiment
from fedml_dapper.federation.run_folder.ledger import count_rounds
from fedml_dapper.files.locks import locked

from ..holding import held_before
from ..waiting import wait_until

ROOT = Path(__file__).parents[2]
TINY_LEVELS = {"levels": {"ratios": [0.0, 0.3]}, "pruning": {"ratio_of": "training_flops"}}
TINY = {
    "model_args": {"width": 8},
    "data_args": {"client_share": 0.08, "validation_share": 0.1, "image_size": 16},
    "train_args": {"comm_round": 3, "epochs": 2, "batch_size": 16, "client_num_in_total": 5, "client_num_per_round": 5},
    "dapper_args": {"checkpoint_every": 1},
}


def tiny_cells(
    rounds: int = 3,
    methods: tuple[str, ...] = ("dapperfl", "fedavg"),
    dapper_args: dict[str, Any] | None = None,
    **data_args: Any,
) -> list[Cell]:
    bench = Bench.model_validate(
        {
            "name": "tiny",
            "title": "tiny",
            "source": "none",
            "experiment": "digits_offline.yaml",
            "profiles": {"small": {"seeds": [1], "note": "tiny", "settings": TINY}},
            "reference": methods[0],
            "variants": [{"label": method, "method": method} for method in methods],
        }
    )
    chosen = {"train_args": {"comm_round": rounds}, "data_args": data_args, "dapper_args": dapper_args or {}}
    return cells(bench, "small", overrides=chosen)


def without_seconds(ledger: Path) -> list[Any]:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "seconds"}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return [strip(json.loads(line)) for line in ledger.read_text().splitlines()]


def run(chosen: list[Cell], store: Path, **options: Any) -> tuple[Any, list[Progress]]:
    said: list[Progress] = []
    return run_queue(chosen, store, **({"jobs": 2, "max_seconds": None, "tell": said.append} | options)), said


def test_a_folder_with_other_settings_than_its_name_says_is_refused(tmp_path: Path) -> None:
    [cell] = tiny_cells(methods=("fedavg",))
    folder = tmp_path / cell.folder
    folder.mkdir()
    settings = cell.settings.as_yaml().replace("epochs: 2", "epochs: 3")
    (folder / SETTINGS_NAME).write_text(settings)
    with pytest.raises(ConfigError, match="is another run's"):
        run([cell], tmp_path)


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_cell_whose_levels_are_solved_for_goes_on(tmp_path: Path, epochs: int) -> None:
    """Its run writes down the ratios of parameters that its levels have come to, and its name does not change by it."""
    [asked] = tiny_cells(methods=("dapperfl",), dapper_args=TINY_LEVELS)
    begun = build_experiment(asked.settings).settings
    assert begun.dapper_args.pruning.ratio_of == "parameters"
    folder = tmp_path / asked.folder
    folder.mkdir()
    (folder / SETTINGS_NAME).write_text(begun.as_yaml().replace("epochs: 2", f"epochs: {epochs}"))
    (folder / DIAGNOSIS_NAME).touch()  # a finished one, which is not run
    if epochs == 2:
        assert not run([asked], tmp_path)[0].failed
    else:
        with pytest.raises(ConfigError, match="is another run's"):
            run([asked], tmp_path)


OWN = """
from fedml_dapper.methods import Method, MethodParams


class Own(Method[MethodParams]):
    name = "own"
    Params = MethodParams
"""


def own_cells(folder: Path, rounds: int = 1) -> list[Cell]:
    """A cell of a method in ``folder``, and FedAvg's."""
    folder.mkdir(exist_ok=True)
    (folder / "own.py").write_text(OWN)
    return tiny_cells(rounds=rounds, methods=("fedavg", f"{folder / 'own.py'}:Own"))


@pytest.mark.nightly
def test_a_cell_goes_on_after_its_method_was_moved(tmp_path: Path) -> None:
    store = tmp_path / "store"
    [_, begun] = own_cells(tmp_path / "one")
    folder = store / begun.folder
    assert not run([begun], store)[0].failed
    (folder / DIAGNOSIS_NAME).unlink()
    (tmp_path / "one").rename(tmp_path / "other")
    [_, moved] = own_cells(tmp_path / "other")
    assert not run([moved], store)[0].failed
    assert is_finished(folder)
    assert str(tmp_path / "other") in (folder / SETTINGS_NAME).read_text()


def test_a_finished_cell_whose_method_was_moved_is_not_refused(tmp_path: Path) -> None:
    [_, begun] = own_cells(tmp_path / "one")
    folder = tmp_path / begun.folder
    folder.mkdir()
    (folder / SETTINGS_NAME).write_text(begun.settings.as_yaml())
    (folder / DIAGNOSIS_NAME).touch()
    (tmp_path / "one").rename(tmp_path / "other")
    [_, moved] = own_cells(tmp_path / "other")
    assert not run([moved], tmp_path)[0].failed


def test_a_method_that_is_edited_while_others_run_ends_the_queue(tmp_path: Path) -> None:
    chosen = own_cells(tmp_path / "own")

    def edit(progress: Progress) -> None:
        (tmp_path / "own" / "own.py").write_text(OWN + "# another one")

    with pytest.raises(ConfigError, match="Own: its code, weights or pictures have changed since this bench began"):
        run(chosen, tmp_path / "store", jobs=1, tell=edit)
    assert not (tmp_path / "store" / chosen[1].folder).exists()


@pytest.mark.nightly
def test_a_run_of_other_defaults_is_refused(tmp_path: Path) -> None:
    """Names of folders leave defaults out, so that a default that changes has to be noticed otherwise."""
    [cell] = tiny_cells(rounds=1, methods=("fedprox",))
    run([cell], tmp_path)
    ledger = tmp_path / cell.folder / LEDGER_NAME
    first, *rounds = ledger.read_text().splitlines(keepends=True)
    assert '"params":{' in first
    ledger.write_text("".join([first.replace('"mu":', '"mu":2'), *rounds]))
    with pytest.raises(ConfigError, match=r"a default of fedprox changed since it was run: mu is 2.* there and 0"):
        run([cell], tmp_path)


@pytest.mark.nightly
def test_all_cells_are_run_once(tmp_path: Path) -> None:
    chosen = tiny_cells()
    outcome, said = run(chosen, tmp_path)
    assert (outcome.failed, outcome.stopped) == ({}, False)
    assert (said[-1].cells_done, said[-1].rounds_done, said[-1].rounds) == (2, 6, 6)
    for cell in chosen:
        folder = tmp_path / cell.folder
        assert is_finished(folder)
        assert not (folder / CHECKPOINTS_NAME).exists()
        diagnosis = Diagnosis.load(folder / DIAGNOSIS_NAME)
        assert len(diagnosis.confusion) == 4
        assert {score.client for score in diagnosis.levels} == set(range(5))
        assert len(diagnosis.embedding.x) == len(diagnosis.embedding.label)
    stamps = [(tmp_path / cell.folder / LEDGER_NAME).stat().st_mtime_ns for cell in chosen]
    again, said = run(chosen, tmp_path)
    assert not again.failed
    assert said == []
    assert [(tmp_path / cell.folder / LEDGER_NAME).stat().st_mtime_ns for cell in chosen] == stamps


@pytest.mark.nightly
def test_a_first_cell_shows_how_many_have_room(tmp_path: Path) -> None:
    free = [10 << 30, 8 << 30]
    chosen = tiny_cells(methods=("dapperfl", "fedavg", "fedprox"))
    outcome, said = run(chosen, tmp_path, jobs=Room(lambda: free.pop(0), cores=2))
    assert not outcome.failed
    assert {len(progress.running) for progress in said if progress.rounds_done == 0} == {1}
    assert max(len(progress.running) for progress in said) == 2


@pytest.mark.nightly
def test_a_failed_cell_does_not_stop_the_others_and_its_log_says_why(tmp_path: Path) -> None:
    [broken] = tiny_cells(methods=("dapperfl",), dataset="office_caltech10", data_cache_dir=str(tmp_path / "nothing"))
    [sound] = tiny_cells(rounds=1, methods=("fedavg",))
    outcome, _ = run([broken, sound], tmp_path, jobs=1)
    assert list(outcome.failed) == ["dapperfl, seed 1"]
    assert "no images of domain" in outcome.failed["dapperfl, seed 1"].read_text()
    assert is_finished(tmp_path / sound.folder)
    assert not is_finished(tmp_path / broken.folder)


def test_a_cell_that_another_queue_has_finished_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    [first, second] = tiny_cells(rounds=1)
    ledger = tmp_path / second.folder / LEDGER_NAME
    finished = list[str]()

    def tell(progress: Progress) -> None:
        if not finished:
            run([second], tmp_path)
            finished.append(ledger.read_text())

    outcome, _ = run([first, second], tmp_path, jobs=1, tell=tell)
    assert (outcome.failed, outcome.elsewhere) == ({}, [])
    assert ledger.read_text() == finished[0]


@pytest.mark.long
def test_a_cell_that_another_queue_is_running_has_not_failed(tmp_path: Path) -> None:
    [cell] = tiny_cells(rounds=1, methods=("fedavg",))
    folder = tmp_path / cell.folder
    folder.mkdir()
    with locked(folder / LOCK_NAME, 0):
        outcome, _ = run([cell], tmp_path)
    assert (outcome.failed, outcome.elsewhere) == ({}, ["fedavg, seed 1"])


def test_a_cell_whose_queue_is_gone_before_it_looks_ends_at_once(tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, "-m", "fedml_dapper.benches.cell", str(tmp_path), "0"], cwd=ROOT, check=False, timeout=60
    )
    assert gone.returncode == ORPHANED


@pytest.mark.nightly
def test_a_queue_killed_at_any_time_goes_on_and_ends_with_the_same_numbers(tmp_path: Path) -> None:
    chosen = tiny_cells(rounds=4, methods=("dapperfl",))
    ledger = tmp_path / "killed" / chosen[0].folder / LEDGER_NAME
    queue_of_its_own = f"""
from pathlib import Path
from tests.benches.test_queue import run, tiny_cells
run(tiny_cells(rounds=4, methods=("dapperfl",)), Path({str(tmp_path / "killed")!r}))
"""
    (tmp_path / "sitecustomize.py").write_text(held_before(4))  # for the cell too, which notices after a moment
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    for rounds in (1, 2):
        killed = subprocess.Popen([sys.executable, "-c", queue_of_its_own], cwd=ROOT, env=environment)
        wait_until(lambda killed=killed, r=rounds: killed.poll() is not None or count_rounds(ledger)[1] >= r)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    assert not is_finished(ledger.parent)
    run(chosen, tmp_path / "killed")
    run(chosen, tmp_path / "whole")
    whole = tmp_path / "whole" / chosen[0].folder
    assert without_seconds(ledger) == without_seconds(whole / LEDGER_NAME)
    assert (ledger.parent / DIAGNOSIS_NAME).read_text() == (whole / DIAGNOSIS_NAME).read_text()


@pytest.mark.nightly
def test_when_the_time_is_up_running_cells_stop_and_go_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=time.sleep)
    monkeypatch.setattr(queue, "time", clock)

    def tell(progress: Progress) -> None:
        clock.now = 9.0 if progress.rounds_done else 0.0  # the time is up once there is something to go on from

    chosen = tiny_cells(rounds=400, methods=("fedavg",))
    outcome, _ = run(chosen, tmp_path, max_seconds=8, tell=tell)
    assert outcome.stopped
    assert not is_finished(tmp_path / chosen[0].folder)
    [shorter] = tiny_cells(rounds=1, methods=("fedavg",))
    assert shorter.folder != chosen[0].folder


@pytest.mark.parametrize("text", ["", "{}", '{"confusion": 1}'])
def test_a_foreign_diagnosis_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / DIAGNOSIS_NAME).write_text(text)
    with pytest.raises(DataError, match="not the diagnosis of a cell"):
        Diagnosis.load(tmp_path / DIAGNOSIS_NAME)


def test_a_log_is_no_pipe(tmp_path: Path) -> None:
    [cell, _] = tiny_cells()
    log = tmp_path / cell.folder / queue.LOG_NAME
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)  # else a writer would wait for ever
    with pytest.raises(DataError, match=r"cannot write .*: it is a pipe, and has to be a plain file"):
        run([cell], tmp_path)
    os.close(reader)
