from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedml_dapper.errors import DataError
from fedml_dapper.files.atomic import FOR_ITS_OWNER, SCRATCH_PREFIX, written_whole

KILLED = """
import os, signal, sys
from pathlib import Path
from fedml_dapper.files.atomic import written_whole

with written_whole(Path(sys.argv[1])) as scratch:
    scratch.write_text("half of the ne")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_replaced_at_the_end_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with written_whole(path) as scratch:
        scratch.write_text("one")
        assert not path.exists()
    with written_whole(path) as scratch:
        scratch.write_text("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_secret_is_its_owner_s_alone_from_the_first_moment_on(tmp_path: Path) -> None:
    with written_whole(tmp_path / "file", FOR_ITS_OWNER) as scratch:
        assert stat.S_IMODE(scratch.parent.stat().st_mode) == 0o700
        scratch.write_text("secret")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_it_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, fsync = [], os.fsync

    def remember(descriptor: int) -> None:
        flushed.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), (tmp_path / "file").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    with written_whole(tmp_path / "file") as scratch:
        scratch.write_text("text")
    assert flushed == [(scratch, False), (tmp_path, True)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_flushes_no_folders_takes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fsync = os.fsync

    def of_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files)
    expected = nullcontext() if number == errno.EINVAL else pytest.raises(DataError, match="cannot write")
    with expected, written_whole(tmp_path / "file") as scratch:
        scratch.write_text("text")
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_what_fails_leaves_the_older_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises((KeyboardInterrupt, DataError)) as caught:
        _write_half(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(caught.value, DataError):
        assert (
            str(caught.value) == f"cannot write {path}: disk full; mend that, then start it again, a run with --resume"
        )


def _write_half(path: Path, error: BaseException) -> None:
    with written_whole(path) as scratch:
        scratch.write_text("half")
        raise error


def test_what_a_killed_process_leaves_goes_with_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    with written_whole(tmp_path / "other") as scratch:
        scratch.touch()
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "other"]


HELD = """
import sys
from pathlib import Path
from fedml_dapper.files.atomic import written_whole

with written_whole(Path(sys.argv[1])) as scratch:
    scratch.write_text("theirs")
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_nobody_deletes_what_another_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    command = [sys.executable, "-c", HELD, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "at work\n"
        with written_whole(path) as ours:
            ours.write_text("ours")
            with written_whole(tmp_path / "third") as scratch:  # of this process, as by another thread
                scratch.write_text("third")
        assert path.read_text() == "ours"
        other.stdin.close()
        assert other.wait(timeout=60) == 0
    assert path.read_text() == "theirs"
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "third"]


def test_where_there_are_no_locks_nothing_is_taken_for_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f"{SCRATCH_PREFIX}0"
    left.mkdir()

    def no_locks(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with written_whole(tmp_path / "file") as scratch:
        scratch.write_text("text")
    assert sorted(tmp_path.iterdir()) == [left, tmp_path / "file"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_says_who_may_read_it(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with written_whole(tmp_path / "weights") as scratch:
            save_file({"w": torch.zeros(2)}, scratch)
        with written_whole(tmp_path / "text") as scratch:
            scratch.write_text("text")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {mode}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to("/dev/null"), "a device"),
        (lambda path: path.symlink_to("nowhere"), "a link that leads nowhere"),
    ],
    ids=["pipe", "folder", "device", "link"],
)
def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    place = tmp_path / "place"
    make(place)
    before = _identity(place)
    with pytest.raises(DataError, match=f"cannot write .*place: that is {kind}; name a plain file"):
        written_whole(place).__enter__()
    assert _identity(place) == before
    assert list(tmp_path.iterdir()) == [place]


def _identity(place: Path) -> tuple[int, int, int]:
    """What a replacement would change of ``place``; not when it was read last, as a link is whenever it is followed."""
    found = place.lstat()
    return found.st_ino, found.st_mode, found.st_mtime_ns


def test_who_may_not_write_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*: Permission denied; let this account write there, or name"):
        _write_half(tmp_path / "file", PermissionError(errno.EACCES, "Permission denied"))


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").touch()
    with (
        pytest.raises(DataError, match=r"cannot write .*folder/file: Not a directory"),
        written_whole(tmp_path / "folder" / "file"),
    ):
        pass
