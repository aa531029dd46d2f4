"""A silo signs one list of survivors a round, whatever crashes in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.promises import Promises

ROUND, OTHER_ROUND = bytes(32), bytes(31) + b"1"


def test_one_statement_a_round_is_signed_also_by_a_process_that_was_started_again(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "silo-1-signed.jsonl"
    Promises(file).keep(ROUND, b"a list")
    Promises(file).keep(ROUND, b"a list")
    Promises(file).keep(OTHER_ROUND, b"another list")
    with pytest.raises(ProtocolError, match="another list of survivors was signed in this round of this experiment"):
        Promises(file).keep(ROUND, b"another list")


def test_a_torn_line_is_of_a_signature_that_never_left(tmp_path: Path) -> None:
    file = tmp_path / "signed.jsonl"
    Promises(file).keep(OTHER_ROUND, b"a list")
    whole = file.read_bytes()
    file.write_bytes(whole + f'["{ROUND.hex()}", "abc'.encode())
    Promises(file).keep(ROUND, b"a list")
    with pytest.raises(ProtocolError, match="another list"):
        Promises(file).keep(ROUND, b"another list")


def test_what_cannot_be_written_down_is_not_signed(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(ProtocolError, match="cannot be written down"):
        Promises(tmp_path / "runs" / "signed.jsonl").keep(ROUND, b"a list")
