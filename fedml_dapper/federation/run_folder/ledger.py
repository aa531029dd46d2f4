"""The ledger of a run: a JSONL file with one :class:`RunRecord` line, then one :class:`RoundRecord` line per round."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fedml_dapper import __version__
from fedml_dapper.errors import DataError
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.run_folder.records import Record, RoundRecord, RunRecord
from fedml_dapper.federation.wire.versions import is_older
from fedml_dapper.files import xz
from fedml_dapper.files.atomic import explained, written_whole
from fedml_dapper.files.locks import try_lock


class LedgerWriter(RunObserver):
    """Appends each record as it comes, and waits until it is on the disk: an interrupted run keeps its finished rounds.

    While it is open, a lock on the file keeps others from writing, where the file system has locks. It also keeps out a
    second run of this process, which the lock of the run's folder does not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None  # unbuffered, so that nothing is left to write when a disk was full

    def run_started(self, record: RunRecord) -> None:
        self._open("xb")
        self._write(record)

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        """Drop what stands after ``rounds``, and note in the first line what differs from now on, in one replacement.

        Raises:
            DataError: Another process is writing.
        """
        self._open("ab")
        content = self.path.read_bytes()
        first, *lines = content.split(b"\n")[: 1 + len(rounds)]
        before = _run_of(first, self.path)
        now = record.after(before, len(rounds))
        if now is not before:
            first = now.model_dump_json().encode()
        kept = b"".join(line + b"\n" for line in (first, *lines))
        if kept != content:
            with written_whole(self.path) as scratch:
                scratch.write_bytes(kept)
            self.run_finished()  # the open file, and the lock on it, are those of the file that was replaced
            self._open("ab")

    def round_finished(self, record: RoundRecord) -> None:
        self._write(record)

    def run_finished(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, mode: Literal["xb", "ab"]) -> None:
        with explained(self.path):
            self._file = self.path.open(mode, buffering=0)
        if not try_lock(self._file.fileno(), self.path):
            raise DataError(f"{self.path}: another process is at this run; wait for its end, or end it")

    def _write(self, record: Record) -> None:
        assert self._file is not None, "run_started comes first"
        with explained(self.path):
            line = f"{record.model_dump_json()}\n".encode()
            while line:
                line = line[self._file.write(line) :]  # a disk that is nearly full takes a part, and then none
            os.fsync(self._file.fileno())


def read_unfinished(path: Path) -> tuple[RunRecord, list[RoundRecord]] | None:
    """Read the part of a ledger from which a run can be resumed.

    Returns:
        The run and its rounds, without the end of the file where that is torn or damaged, as a machine leaves it that
        loses its power. None where there is no ledger, or not even a whole first line.

    Raises:
        DataError: The first line is whole, but no run's; or a whole record follows one that is damaged or missing; or
            the last is a round's of another version, which would be dropped as if it were damaged.
    """
    if not path.is_file():
        return None
    first, *lines = path.read_bytes().split(b"\n")
    if not lines:
        return None
    run = _run_of(first, path)
    lines.pop()  # empty, or a record that was not finished
    while lines and _is_damaged(lines[-1], run):
        lines.pop()
    rounds = _rounds_of(lines, run, path)
    _check_consistent(run, rounds, path)
    return run, rounds


def count_rounds(path: Path) -> tuple[RunRecord | None, int]:
    """Read a ledger's run and count the whole lines after it, much faster than :func:`read_ledger`.

    The run is None where there is not even a whole first line.

    Raises:
        DataError: The first line is no run's.
    """
    first, *lines = xz.content(path).split(b"\n")
    return (_run_of(first, path), len(lines) - 1) if lines else (None, 0)


def read_ledger(path: Path) -> tuple[RunRecord, list[RoundRecord]]:
    """Read a ledger's run and its finished rounds, from a plain or compressed file.

    A last line without its line break is a record that a killed run did not finish, and is left out.

    Raises:
        DataError: There is no ledger, or another line cannot be read; the error names it.
    """
    if xz.find(path) is None:
        raise DataError(f"no ledger at {path.absolute()}; a run writes ledger.jsonl into its own folder")
    *lines, _unfinished = xz.content(path).split(b"\n")
    run = _run_of(lines[0] if lines else b"", path)
    rounds = _rounds_of(lines[1:], run, path)
    _check_consistent(run, rounds, path)
    return run, rounds


def _rounds_of(lines: Iterable[bytes], run: RunRecord, path: Path) -> list[RoundRecord]:
    """Return the records on ``lines``, which follow the first; :class:`DataError` names one that is none."""
    rounds = []
    for number, line in enumerate(lines, start=2):
        try:
            rounds.append(RoundRecord.model_validate_json(line))
        except ValidationError as error:
            raise _unread(path, number, run) from error
    return rounds


def _is_damaged(line: bytes, run: RunRecord) -> bool:
    """Whether ``line`` is no round's record, and not for being that of another version either."""
    try:
        RoundRecord.model_validate_json(line)
    except ValidationError as error:
        return run.version == __version__ or _is_torn(error)
    return False


def _is_torn(error: ValidationError) -> bool:
    """Whether the line that raised ``error`` is no JSON at all, rather than a record in another form."""
    return any(mistake["type"] == "json_invalid" for mistake in error.errors(include_url=False, include_input=False))


def _unread(path: Path, number: int, run: RunRecord) -> DataError:
    """Return the error for a line that is not a round's record here."""
    reason = "was the file edited?"
    if is_older(__version__, run.version):
        reason = f"version {run.version} wrote the file, and this is {__version__}; read it with that, or a later one"
    return DataError(f"{path}: line {number} is not the record of a round; {reason}")


def _check_consistent(run: RunRecord, rounds: Sequence[RoundRecord], path: Path) -> None:
    """Raise :class:`DataError` where rounds do not follow each other, or have levels that the run lacks."""
    levels = {row.level for row in run.footprints}
    for number, record in enumerate(rounds, start=1):
        place = f"{path}: line {number + 1}"
        if record.round != number:
            raise DataError(f"{place} is of round {record.round}, where round {number} is due; was the file edited?")
        unknown = {client.level for client in record.clients} - levels
        if unknown and levels:
            raise DataError(f"{place} has a client of level {min(unknown)}, which the run lacks; was the file edited?")


def _run_of(line: bytes, path: Path) -> RunRecord:
    try:
        return RunRecord.model_validate_json(line)
    except ValidationError as error:
        raise DataError(f"{path}: line 1 is not the record of a run; was it written by another version?") from error
