"""Streams that the shell closed, seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from fedml_dapper.process.closed_streams import fill_closed_streams

fill_closed_streams()
files = [open(name, "w") for name in sys.argv[1:]]
for descriptor in (1, 2):
    os.write(descriptor, b"what a library prints")
for file in files:
    file.write("a line of the ledger")
    file.close()
"""


def test_files_do_not_take_their_place(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("settings", "ledger", "report")]
    closed = ["bash", "-c", '"$0" -c "$@" <&- >&- 2>&-', sys.executable, PROGRAM, *map(str, files)]
    assert subprocess.run(closed, check=False).returncode == 0
    assert [file.read_text() for file in files] == ["a line of the ledger"] * 3
