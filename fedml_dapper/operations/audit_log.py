"""Audit log of calls, refusals and operators' orders: a hash-chained file in which later changes can be detected.

Each line is a JSON object that holds the hash of the line before. Whoever changes, removes or inserts a line has to
rewrite all later ones, and so changes the last hash, the head. With a head that was noted elsewhere this is detected:
``fedml-dapper audit FILE --holds HEAD``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from fedml_dapper.errors import ConfigError, DapperError, DataError, printable
from fedml_dapper.files.locks import try_lock
from fedml_dapper.files.regular_file import in_place_of_file
from fedml_dapper.operations.rate_limiter import RateLimiter

LOGGER = logging.getLogger(__name__)
FIRST = "0" * 64
"""Hash before the first line."""
MAX_LINE = 1 << 14
"""Longest line that is read, in bytes."""
AT_ONCE = 100.0
PER_SECOND = 0.1
"""Entries that one caller can cause, at once and per second; without a limit it could fill the disk. Further ones are
counted and left out."""
ORDERS = ("order", "order_refused")
"""Events that are written down however many they are: only who holds an admin's key can cause them."""
SERVER = "server"
_BEGINNING = b'{"number":'


class Entry(BaseModel):
    """One line of the audit log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1)
    at: AwareDatetime
    event: str
    who: str
    """Cause of the event: the name in a certificate, or ``server``."""
    detail: dict[str, str | int] = {}
    left_out: int = 0
    """How many entries of this caller were left out since its last one, as it caused too many."""
    before: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the entry before."""
    hash: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of all other fields."""

    def sealed(self) -> Entry:
        """Return the entry with its hash."""
        text = json.dumps(self.model_dump(mode="json", exclude={"hash"}), sort_keys=True, separators=(",", ":"))
        return self.model_copy(update={"hash": hashlib.sha256(text.encode()).hexdigest()})

    def line(self) -> bytes:
        """Return the only valid bytes of the entry in a log, so that no other line has the same hash."""
        return self.model_dump_json(exclude_defaults=True).encode() + b"\n"


class AuditLog:
    """Appends to the log in ``file``, or does nothing where that is None. Safe to use from any thread.

    An entry that a crash tore is cut off, and the next entry says so.

    Raises:
        ConfigError: The file cannot be written, another process writes it, or its lines do not fit each other.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._allowances: dict[str, RateLimiter] = {}
        self._left_out: Counter[str] = Counter()
        self._stream: FileIO | None = None
        if file is not None:
            self._stream, self._last, torn = _opened(file)
            self._length = self._stream.seek(0, os.SEEK_END)
            if torn:
                self.record("torn", SERVER, bytes=torn)

    def record(self, event: str, who: str = SERVER, **detail: str | int) -> None:
        """Append an entry, which is on the disk when this returns.

        Where the disk does not take it, that is logged, and the entry is counted as left out.
        """
        with self._lock:
            if self._stream is None:
                return
            is_limited = who != SERVER and event not in ORDERS
            if is_limited and not self._allowances.setdefault(who, RateLimiter(AT_ONCE, PER_SECOND)).take():
                self._left_out[who] += 1
                return
            shown = {key: printable(value) if isinstance(value, str) else value for key, value in detail.items()}
            number, head = (0, FIRST) if self._last is None else (self._last.number, self._last.hash)
            entry = Entry(
                number=number + 1,
                at=datetime.now(timezone.utc),
                event=event,
                who=printable(who),
                detail=shown,
                left_out=self._left_out.pop(who, 0),
                before=head,
            ).sealed()
            line = entry.line()
            try:
                _write_whole(self._stream, line)
            except OSError as error:
                self._left_out[who] += 1 + entry.left_out
                LOGGER.critical("an entry of the audit log is not written: %s: %s", self._file, error.strerror)
                self._cut_unwritten()
            else:
                self._last = entry
                self._length = self._length + len(line)

    def close(self) -> None:
        """Close the file, and log its head."""
        with self._lock:
            if self._stream is not None:
                if self._last is not None:
                    LOGGER.info("audit log: %d entries, head %s", self._last.number, self._last.hash)
                self._stream.close()
                self._stream = None

    def _cut_unwritten(self) -> None:
        """Cut off the part of an entry that was written before the disk was full."""
        assert self._stream is not None
        try:
            os.ftruncate(self._stream.fileno(), self._length)
        except OSError as error:
            LOGGER.critical("the audit log ends here: %s: %s", self._file, error.strerror)
            self._stream = None


def _write_whole(stream: FileIO, line: bytes) -> None:
    if stream.write(line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(stream.fileno())


def entries_of(file: Path) -> Iterator[Entry]:
    """Read all entries, one by one.

    Raises:
        DataError: The file cannot be read, or a line does not fit the one before.
    """
    if found := in_place_of_file(file):  # a pipe would keep its reader waiting
        raise DataError(f"{file}: cannot be read (it is {found})")
    try:
        with file.open("rb") as stream:
            yield from _entries_in(stream, file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _entries_in(stream: BinaryIO, file: Path) -> Iterator[Entry]:
    number = 0
    head = FIRST
    while line := stream.readline(MAX_LINE):
        number += 1
        place = f"{file}: line {number}"
        if not line.endswith(b"\n"):
            raise _TornError(f"{place} is torn")
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError as error:
            raise DataError(f"{place} is no entry of an audit log") from error
        if entry.before != head or entry.number != number:
            raise DataError(f"{place} does not follow the one before: something was changed, removed or put in")
        if entry.sealed().hash != entry.hash:
            raise DataError(f"{place} was changed: its hash does not fit")
        if entry.line() != line:  # e.g. a key that stands twice, which other programs may read differently
            raise DataError(f"{place} was changed: it says the same in other bytes than were written")
        head = entry.hash
        yield entry


class _TornError(DataError):
    """The last line has no end."""


def _opened(file: Path) -> tuple[FileIO, Entry | None, int]:
    """Open and lock the file to append; return it, its last entry, and the number of bytes of a torn one cut off."""
    if found := in_place_of_file(file):  # a pipe would keep its writer waiting
        raise ConfigError(f"{file} is {found}; take another name for audit_file")
    try:
        stream = file.open("ab", buffering=0)
    except OSError as error:
        raise ConfigError(f"{file}: cannot write the audit log ({error.strerror})") from error
    try:
        if not try_lock(stream.fileno(), file):
            raise ConfigError(f"{file}: another process writes this audit log; give each server its own")
        last, torn = _mended(stream, file)
    except DapperError:
        stream.close()
        raise
    return stream, last, torn


def _mended(stream: FileIO, file: Path) -> tuple[Entry | None, int]:
    last = None
    length = 0
    with file.open("rb") as reader:
        try:
            for entry in _entries_in(reader, file):
                last = entry
                length = reader.tell()
        except _TornError:
            reader.seek(length)
            rest = reader.read(MAX_LINE)
            if len(rest) == MAX_LINE or not rest.startswith(_BEGINNING[: len(rest)]):
                raise ConfigError(f"{file} is no audit log; take another name for audit_file") from None
            stream.truncate(length)
            return last, len(rest)
        except DataError as error:
            raise ConfigError(f"{error}; keep the file, and take another name for audit_file") from error
    return last, 0
