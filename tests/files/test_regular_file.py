"""What is no plain file is refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.files.regular_file import check_plain, read_regular


def test_so_many_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "file", 4) == b"0123"
    assert read_regular(tmp_path / "link", 100) == b"0123456789"


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "folder", "device"]
)
def test_anything_else_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match=r"it is no plain file|Is a directory"):
        read_regular(tmp_path / "file", 4)


def test_a_place_for_a_plain_file_is_empty_or_one(tmp_path: Path) -> None:
    check_plain(tmp_path / "file")
    (tmp_path / "file").touch()
    check_plain(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe, and has to be a plain file"):
        check_plain(tmp_path / "pipe")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "file", 4)
