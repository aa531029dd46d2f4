"""The round ledger: a JSONL file, one :class:`RunRecord` line and then one :class:`RoundRecord` line a round."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from fedml_dapper.errors import DataError
from fedml_dapper.federation.observer import RunObserver
from fedml_dapper.federation.records import Record, RoundRecord, RunRecord


class LedgerWriter(RunObserver):
    """Appends each record as it comes and flushes it, so that an interrupted run keeps its finished rounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def run_started(self, record: RunRecord) -> None:
        self._file = self.path.open("x", encoding="utf-8")
        self._write(record)

    def round_finished(self, record: RoundRecord) -> None:
        self._write(record)

    def run_finished(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, record: Record) -> None:
        assert self._file is not None, "run_started comes first"
        self._file.write(record.model_dump_json() + "\n")
        self._file.flush()


def read_ledger(path: Path) -> tuple[RunRecord, list[RoundRecord]]:
    """A ledger's run and its finished rounds.

    A last line without its line break is a record that a killed run did not finish, and is left out. Raises
    :class:`DataError` naming any other line that cannot be read.
    """
    if not path.is_file():
        raise DataError(f"no ledger at {path.absolute()}; a run writes ledger.jsonl into its own folder")
    *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
    try:
        run = RunRecord.model_validate_json(lines[0] if lines else "")
    except ValidationError as error:
        raise DataError(f"{path}: line 1 is not the record of a run; was it written by another version?") from error
    rounds = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            rounds.append(RoundRecord.model_validate_json(line))
        except ValidationError as error:
            raise DataError(f"{path}: line {number} is not the record of a round; was the file edited?") from error
    return run, rounds
