from __future__ import annotations

import lzma
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.errors import DataError
from fedml_dapper.federation import LedgerWriter, RoundRecord, build_experiment, read_ledger, simulate
from fedml_dapper.federation.run_folder.ledger import count_rounds, read_unfinished
from fedml_dapper.federation.run_folder.records import RoundSeconds


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


def test_a_kept_ledger_is_read_where_it_lies_compressed(tiny_settings: Callable[..., Settings], tmp_path: Path) -> None:
    run = build_experiment(tiny_settings()).record()
    ledger = LedgerWriter(tmp_path / "ledger.jsonl")
    ledger.run_started(run)
    record = RoundRecord(round=1, scores=None, clients=(), seconds=RoundSeconds(total=1.0, evaluation=0.0))
    ledger.round_finished(record)
    ledger.run_finished()
    packed = tmp_path / "ledger.jsonl.xz"
    packed.write_bytes(lzma.compress(ledger.path.read_bytes()))
    ledger.path.unlink()
    assert read_ledger(ledger.path) == (run, [record])
    assert count_rounds(ledger.path) == (run, 1)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"ledger.jsonl.xz: cannot be unpacked"):
        read_ledger(ledger.path)
    packed.unlink()
    assert count_rounds(ledger.path) == (None, 0)


def test_a_run_does_not_go_on_where_a_round_is_missing(tiny_settings: Callable[..., Settings], tmp_path: Path) -> None:
    run = build_experiment(tiny_settings()).record()
    ledger = LedgerWriter(tmp_path / "ledger.jsonl")
    ledger.run_started(run)
    for number in (1, 2, 4):
        seconds = RoundSeconds(total=1.0, evaluation=0.0)
        ledger.round_finished(RoundRecord(round=number, scores=None, clients=(), seconds=seconds))
    ledger.run_finished()
    with pytest.raises(DataError, match="line 4 is of round 4, where round 3 is due"):
        read_unfinished(ledger.path)


@pytest.mark.parametrize(("version", "said"), [("99.0.0", "version 99.0.0 wrote the file"), (None, "edited")])
def test_a_round_of_another_version_is_not_taken_for_a_damaged_one(
    tiny_settings: Callable[..., Settings], tmp_path: Path, version: str | None, said: str
) -> None:
    run = build_experiment(tiny_settings()).record()
    path = tmp_path / "ledger.jsonl"
    record = RoundRecord(round=1, scores=None, clients=(), seconds=RoundSeconds(total=1.0, evaluation=0.0))
    line = record.model_dump_json()
    run = run if version is None else run.model_copy(update={"version": version})
    path.write_text(f'{run.model_dump_json()}\n{line}\n{line[:-1]},"carbon":3}}\n')
    with pytest.raises(DataError, match=f"line 3 is not the record of a round; .*{said}"):
        read_ledger(path)
    if version is None:
        assert read_unfinished(path) == (run, [record])
    else:
        with pytest.raises(DataError, match=f"line 3 is not the record of a round; .*{said}"):
            read_unfinished(path)
    path.write_text(f"{run.model_dump_json()}\n{line}\n{line[:9]}\n")
    assert read_unfinished(path) == (run, [record])


@pytest.mark.nightly
def test_rounds_that_are_not_each_other_s_or_the_run_s_are_said(
    tiny_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    simulate(build_experiment(tiny_settings("epochs=1", "comm_round=2")), [LedgerWriter(path)])
    run, *rounds = path.read_text().splitlines(keepends=True)

    def said(*lines: str) -> str:
        path.write_text("".join((run, *lines)))
        with pytest.raises(DataError) as caught:
            read_ledger(path)
        return str(caught.value)

    assert "line 2 is of round 2, where round 1 is due" in said(rounds[1], rounds[0])
    assert "line 3 is of round 1, where round 2 is due" in said(rounds[0], rounds[0])
    strange = RoundRecord.model_validate_json(rounds[0])
    client = strange.clients[0].model_copy(update={"level": 9})
    strange = strange.model_copy(update={"clients": (client, *strange.clients[1:])})
    assert "line 2 has a client of level 9, which the run lacks" in said(f"{strange.model_dump_json()}\n")
