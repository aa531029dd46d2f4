"""What a cgroup, of either version, and limits of the process leave of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedml_dapper.process import memory_limit
from fedml_dapper.process.memory_limit import memory_left, narrowest_limit

STAT = "anon 700\nactive_file 100\ninactive_file 150\n"


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_limit, "_OWN_CGROUP", tmp_path / "own")
    return tmp_path / "cgroups"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def test_the_narrowest_cgroup_counts_and_pages_of_files_can_be_dropped(cgroups: Path) -> None:
    (cgroups.parent / "own").write_text("0::/outer/inner\n")
    write(cgroups / "outer" / "inner", max="max\n", current="800\n", stat=STAT)
    write(cgroups / "outer", max="1000\n", current="900\n", stat=STAT)
    left = memory_left(cgroups)
    assert left is not None
    assert (left.bytes, left.bound) == (1000 - 900 + 250, "the limit of this process's cgroup")
    assert narrowest_limit(cgroups) == 1000


def test_the_first_version_of_cgroups_counts_too(cgroups: Path) -> None:
    (cgroups.parent / "own").write_text("4:memory:/inner\n3:cpuset:/elsewhere\n0::/\n")
    write(cgroups / "memory" / "inner", limit_in_bytes="1000\n", usage_in_bytes="990\n", stat=STAT)
    left = memory_left(cgroups)
    assert left is not None
    assert left.bytes == 260


def test_a_limit_of_the_process_counts() -> None:
    code = "from fedml_dapper.process.memory_limit import memory_left; print(memory_left().bound)"
    command = ["bash", "-c", f"ulimit -d 200000; {sys.executable} -c '{code}'"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert told.stdout == "the limit RLIMIT_DATA of this process\n"
