from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.errors import DataError
from fedml_dapper.federation import LedgerWriter, build_experiment, read_ledger, simulate


def test_a_line_that_does_not_fit_is_said_and_the_others_stay(
    tiny_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    """A limit of the file's size stands for a disk: the system takes the part of a line that fits, then no more."""
    experiment = build_experiment(tiny_settings("epochs=1", "comm_round=1"))
    [record] = simulate(experiment)[1]
    ledger = LedgerWriter(tmp_path / "ledger.jsonl")
    ledger.run_started(experiment.record())
    ledger.round_finished(record)
    whole = ledger.path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 100, limits[1]))
    try:
        with pytest.raises(DataError, match=rf"cannot write {ledger.path}: File too large; mend that, .* --resume"):
            ledger.round_finished(record.model_copy(update={"round": 2}))
        ledger.run_finished()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ledger.path.stat().st_size == whole + 100
    assert read_ledger(ledger.path)[1] == [record]


def test_a_folder_that_takes_no_ledger_is_named(tiny_settings: Callable[..., Settings], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*gone/ledger.jsonl: No such file or directory"):
        LedgerWriter(tmp_path / "gone" / "ledger.jsonl").run_started(build_experiment(tiny_settings()).record())
