"""A result names the commit of the code that made it, as git has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedml_dapper.process.provenance import commit

CLONE = Path(__file__).parents[2]


@pytest.mark.skipif(not (CLONE / ".git").exists(), reason="these files are no clone of git")
def test_it_is_git_s() -> None:
    asked = subprocess.run(
        ["git", "-C", CLONE, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=60
    )
    found = commit()
    assert found is not None
    assert found.removesuffix("-dirty") == asked.stdout.strip()
