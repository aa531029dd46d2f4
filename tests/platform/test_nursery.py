"""Forks end as processes end, and no later than whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..waiting import wait_until
from .nursery import Fork, nursery

pytestmark = pytest.mark.long  # as are the tests that start processes
Starter = Callable[[str], Fork]


@pytest.fixture
def start(tmp_path: Path) -> Starter:
    """Start ``python program.py one two`` of the given text, in a folder of its own; its output goes to a file."""

    def fork(text: str) -> Fork:
        (tmp_path / "program.py").write_text(text)
        with (tmp_path / "output").open("wb") as output:
            return nursery().start(
                ["program.py", "one", "two"], tmp_path, os.environ | {"HOME": "/nowhere"}, output.fileno()
            )

    return fork


@pytest.mark.nightly
def test_it_is_a_process_with_all_that_is_its_own(start: Starter, tmp_path: Path) -> None:
    process = start("import os, sys\nprint(sys.argv, os.getcwd(), os.environ['HOME'], os.getpid())\nsys.exit(3)")
    assert process.wait(60) == process.poll() == 3
    assert (tmp_path / "output").read_text() == f"['program.py', 'one', 'two'] {tmp_path} /nowhere {process.pid}\n"


@pytest.mark.nightly
def test_an_exception_is_exit_code_1_and_a_traceback(start: Starter, tmp_path: Path) -> None:
    assert start("raise ValueError('on fire')").wait(60) == 1
    assert "ValueError: on fire" in (tmp_path / "output").read_text()


@pytest.mark.nightly
def test_it_ends_in_order_and_libraries_say_nothing_behind_it(start: Starter, tmp_path: Path) -> None:
    process = start(
        "import atexit, sys, threading\n"
        "class Library:\n    def __del__(self): print('leaked')\n"
        "sys.modules['library'] = Library()\n"
        "atexit.register(print, 'at the end')\n"
        "threading.Thread(target=print, args=['of a thread']).start()\n"
        "sys.exit('a reason')"
    )
    assert process.wait(60) == 1
    assert sorted((tmp_path / "output").read_text().splitlines()) == ["a reason", "at the end", "of a thread"]


def test_a_killed_one_was_killed(start: Starter) -> None:
    process = start("import time\ntime.sleep(300)  # until it is killed")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.nightly
def test_one_that_ended_a_moment_ago_can_still_be_told_to(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("pass")
    wait_until(lambda: not runs(process.pid))
    with monkeypatch.context() as patch:
        patch.setattr(process, "poll", lambda: None)  # as if asked right before
        process.terminate()
    assert process.wait(60) == 0


def runs(process: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_stand_in_s_fork_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)  # until it is killed"
    )
    stand_in = subprocess.Popen(
        [*nursery().python, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert stand_in.stdout is not None
    fork = int(stand_in.stdout.readline())
    assert fork != stand_in.pid
    stand_in.kill()
    stand_in.communicate(timeout=60)
    wait_until(lambda: not runs(fork))


def test_a_stand_in_ends_as_its_fork_does(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os, sys\nos.kill(os.getpid(), int(sys.argv[1]))")
    command = [*nursery().python, "program.py", str(int(signal.SIGKILL))]
    assert subprocess.run(command, cwd=tmp_path, timeout=60, check=False).returncode == -signal.SIGKILL
