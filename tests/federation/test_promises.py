"""A silo signs one list of survivors a round, whatever crashes in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation.privacy.promises import Promises

ROUND, OTHER_ROUND = bytes(32), bytes(31) + b"1"


def test_one_statement_a_round_is_signed_also_by_a_process_that_was_started_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    Promises(runs, 1).keep(ROUND, b"a list")
    Promises(runs, 1).keep(ROUND, b"a list")
    Promises(runs, 1).keep(OTHER_ROUND, b"another list")
    Promises(runs, 2).keep(ROUND, b"another list")
    with pytest.raises(ProtocolError, match="another list of survivors was signed in this round of this experiment"):
        Promises(runs, 1).keep(ROUND, b"another list")


def test_what_earlier_versions_promised_is_kept_and_they_keep_what_this_one_promises(tmp_path: Path) -> None:
    earlier = bytes(31) + b"2"
    Promises(tmp_path, 1).keep(earlier, b"a list")
    with pytest.raises(ProtocolError, match="another list"):
        Promises(tmp_path, 1).keep(ROUND, b"another list", earlier_key=earlier)
    Promises(tmp_path, 1).keep(ROUND, b"a list", earlier_key=earlier)
    Promises(tmp_path, 2).keep(ROUND, b"a list", earlier_key=earlier)
    with pytest.raises(ProtocolError, match="another list"):
        Promises(tmp_path, 2).keep(earlier, b"another list")


def test_its_operator_may_say_that_it_is_a_new_run(tmp_path: Path) -> None:
    promises = Promises(tmp_path, 1)
    promises.forget()
    promises.keep(ROUND, b"a list")
    promises.forget()
    promises.keep(ROUND, b"another list")


def test_a_torn_line_is_of_a_signature_that_never_left(tmp_path: Path) -> None:
    file = tmp_path / "silo-1-signed.jsonl"
    Promises(tmp_path, 1).keep(OTHER_ROUND, b"a list")
    whole = file.read_bytes()
    file.write_bytes(whole + f'["{ROUND.hex()}", "abc'.encode())
    Promises(tmp_path, 1).keep(ROUND, b"a list")
    with pytest.raises(ProtocolError, match="another list"):
        Promises(tmp_path, 1).keep(ROUND, b"another list")


def test_a_pipe_keeps_nothing_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "silo-1-signed.jsonl")
    with pytest.raises(ProtocolError, match=r"cannot be written down in .*: it is a pipe"):
        Promises(tmp_path, 1).keep(ROUND, b"a list")


def test_what_cannot_be_written_down_is_not_signed(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(ProtocolError, match="cannot be written down"):
        Promises(tmp_path / "runs", 1).keep(ROUND, b"a list")
    with pytest.raises(ConfigError, match="cannot be deleted"):
        Promises(tmp_path / "runs", 1).forget()
