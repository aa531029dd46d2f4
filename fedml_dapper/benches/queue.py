"""Queue of a bench's cells: several at a time, each in a process of its own; finished ones are never run again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from fedml_dapper.benches.cell import HELD, is_finished
from fedml_dapper.benches.grid import Cell, folder_name
from fedml_dapper.benches.room import Room
from fedml_dapper.config import Settings, check, read_yaml, with_places_of
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import LEDGER_NAME, SETTINGS_NAME, changed_params
from fedml_dapper.federation.run_folder.ledger import count_rounds
from fedml_dapper.files.atomic import explained, written_whole
from fedml_dapper.files.regular_file import check_plain
from fedml_dapper.fleet import with_asked_levels
from fedml_dapper.methods import effective_params

LOG_NAME = "log.txt"
_POLL_S = 0.5


@dataclass(frozen=True)
class Progress:
    """Progress of a queue. Rounds are those of all cells, finished ones included."""

    cells_done: int
    cells: int
    rounds_done: int
    rounds: int
    running: tuple[str, ...]
    to_go: timedelta | None
    """Estimated time left; None until a first round is finished."""


@dataclass
class Outcome:
    """Result of a queue."""

    failed: dict[str, Path] = field(default_factory=dict)
    """Cell's name -> the log with the reason."""
    elsewhere: list[str] = field(default_factory=list)
    """Names of the cells that another queue is running."""
    stopped: bool = False
    """Whether the time was up before the last cell was finished."""


def run_queue(
    cells: Sequence[Cell],
    store: Path,
    *,
    jobs: int | Room,
    max_seconds: float | None,
    tell: Callable[[Progress], None],
) -> Outcome:
    """Run the unfinished ``cells`` in folders below ``store``, ``jobs`` at a time.

    A cell that fails does not stop the others. On KeyboardInterrupt all running cells are stopped before it is raised.

    Args:
        store: Folder of all benches' cells.
        jobs: Most cells that run at the same time, or the room that they have to share.
        max_seconds: Time after which running cells are stopped; they are resumed from their last checkpoint next time.
        tell: Called with the progress, about twice a second.

    Raises:
        ConfigError: A folder holds a run of other settings than its name says, or the code of a cell changed meanwhile.
    """
    started = time.monotonic()
    outcome = Outcome()
    folders = {store / cell.folder: cell for cell in cells}
    for folder, cell in folders.items():
        _check_settings(folder, cell)
    waiting = [folder for folder in folders if not is_finished(folder)]
    rounds = {folder: _rounds(folder) for folder in folders}
    rounds_before = sum(rounds.values())
    running: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < _at_a_time(jobs, sum(rounds.values()) - rounds_before, running):
                folder = waiting.pop(0)
                running[folder] = _start(folder, folders[folder])
            time.sleep(_POLL_S)
            rounds |= {folder: _rounds(folder) for folder in running}  # of the others none is added
            for folder in [folder for folder, process in running.items() if process.poll() is not None]:
                code = running.pop(folder).returncode
                if code == HELD:
                    outcome.elsewhere.append(_name(folders[folder]))
                elif code != 0:
                    outcome.failed[_name(folders[folder])] = folder / LOG_NAME
            tell(_progress(folders, rounds, running, rounds_before, time.monotonic() - started))
            if max_seconds is not None and time.monotonic() - started > max_seconds:
                outcome.stopped = bool(waiting or running)
                break
    finally:
        for process in running.values():
            process.kill()  # checkpoints are written whole or not at all, so killing is safe
        for process in running.values():
            process.wait()
    return outcome


def _check_settings(folder: Path, cell: Cell) -> None:
    (begun, _) = count_rounds(folder / LEDGER_NAME)
    if folder_name(with_asked_levels(_settings(folder, cell), cell.settings)) != folder.name:
        raise ConfigError(
            f"{folder}: its {SETTINGS_NAME} is another run's: it was edited, or a default changed; move it away"
        )
    args = cell.settings.dapper_args
    changed = "" if begun is None else changed_params(begun.params, effective_params(args))
    if changed:
        raise ConfigError(f"{folder}: a default of {args.method} changed since it was run: {changed}; move it away")


def _settings(folder: Path, cell: Cell) -> Settings:
    """The settings of a cell that has begun, perhaps on another machine, with all files where they are here."""
    saved = folder / SETTINGS_NAME
    if not saved.exists():
        return cell.settings
    return with_places_of(check(Settings, read_yaml(saved), where=str(saved)), cell.settings)


def _start(folder: Path, cell: Cell) -> subprocess.Popen[bytes]:
    if cell.folder != folder.name:
        raise ConfigError(
            f"{cell.variant.label}: its code, weights or pictures have changed since this bench began; give the command"
            " once more"
        )
    folder.mkdir(parents=True, exist_ok=True)
    settings = _settings(folder, cell)
    with written_whole(folder / SETTINGS_NAME) as scratch:
        scratch.write_text(settings.as_yaml(), encoding="utf-8")
    with explained(folder / LOG_NAME):
        check_plain(folder / LOG_NAME)
    with (folder / LOG_NAME).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fedml_dapper.benches.cell", str(folder), str(os.getpid())],
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _at_a_time(jobs: int | Room, gained: int, running: Collection[Path]) -> int:
    if isinstance(jobs, int):
        return jobs
    return jobs.cells(gained if running else 0)  # a cell that has ended no longer shows what it took


def _progress(
    folders: Mapping[Path, Cell],
    rounds: Mapping[Path, int],
    running: Collection[Path],
    rounds_before: int,
    seconds: float,
) -> Progress:
    total = sum(cell.settings.train_args.comm_round for cell in folders.values())
    done = sum(rounds.values())
    gained = done - rounds_before
    return Progress(
        cells_done=sum(is_finished(folder) for folder in folders),
        cells=len(folders),
        rounds_done=done,
        rounds=total,
        running=tuple(_name(folders[folder]) for folder in running),
        to_go=timedelta(seconds=round(seconds / gained * (total - done))) if gained > 0 else None,
    )


def _rounds(folder: Path) -> int:
    return count_rounds(folder / LEDGER_NAME)[1]


def _name(cell: Cell) -> str:
    return f"{cell.variant.label}, seed {cell.seed}"
