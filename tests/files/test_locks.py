from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from fedml_dapper.errors import DataError
from fedml_dapper.files.locks import HeldError, locked, take

HOLDER = """
import os, sys, time
from pathlib import Path
from fedml_dapper.files.locks import take
lock = take(Path(sys.argv[1]))
if not os.fork():
    print(os.getpid(), flush=True)  # as the child, when it has let go of the lock
time.sleep(3600)  # until it is killed
"""


def test_a_pipe_is_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(DataError, match=r"lock: that is a pipe, where the file of a lock belongs; remove it"):
        take(tmp_path / "lock")


def test_the_holder_is_named_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, file], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        try:
            with pytest.raises(HeldError, match=rf"^another process writes into {tmp_path}: process {other.pid} on "):
                take(file)
            other.kill()
            other.wait()
            with locked(file):  # although what it forked lives on
                assert file.read_text().startswith(f"process {os.getpid()} on ")
        finally:
            os.kill(child, signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def _count(folder: Path) -> None:
    for _ in range(25):
        with locked(folder / "lock", seconds=300):
            counter = folder / "counter"
            counter.write_text(str(int(counter.read_text()) + 1))


def test_who_waits_gets_it_in_turn(tmp_path: Path) -> None:
    """The file goes when it is given back, while others wait for it."""
    (tmp_path / "counter").write_text("0")
    others = [get_context("fork").Process(target=_count, args=(tmp_path,)) for _ in range(3)]
    for other in others:
        other.start()
    _count(tmp_path)
    for other in others:
        other.join()
    assert (tmp_path / "counter").read_text() == "100"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]


def test_a_folder_that_takes_no_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"^cannot write into {tmp_path}/file: "):
        take(tmp_path / "file" / "lock")


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS])
def test_where_there_are_no_locks_everybody_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def no_locks(_descriptor: int, _how: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path / "lock"), locked(tmp_path / "lock"):
        pass


@pytest.mark.parametrize("written", [b"", b"\x1b[2J\nprocess 1", b"\xff" * 9000])
def test_what_a_stranger_wrote_stays_on_its_line(tmp_path: Path, written: bytes) -> None:
    with locked(tmp_path / "lock"):
        (tmp_path / "lock").write_bytes(written)
        with pytest.raises(HeldError) as held:
            take(tmp_path / "lock")
    assert str(held.value).isprintable()
    assert len(held.value.holder) in range(1, 1000)
