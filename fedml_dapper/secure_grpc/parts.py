"""Large payloads that arrive in parts, and go on where they broke, also after a restart of the process that receives.

The sender names size and SHA-256 of the whole payload before anything of it travels. What arrives is written into a
file whose name holds both, and whose sender it is, so its length alone says where to go on. One file per sender, and
all files together within a bound: a newer payload replaces an older one, and where room is short, those go first that
have waited longest. So whoever begins payloads and never ends them costs others no more than a fresh start.

An edge, and a silo that has no folder, keep the one message of their server in memory until it is whole.

The files are not flushed one by one. After a loss of power one may hold something else than what was sent; the digest
shows it, and the payload begins anew.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from fedml_dapper.errors import DapperError, ProtocolError
from fedml_dapper.files.atomic import FOR_ITS_OWNER, explained
from fedml_dapper.files.regular_file import read_regular
from fedml_dapper.secure_grpc.parcel import FRAME_BYTES, Envelope, read_payload

PARTS_NAME = "parts"
"""Name of the folder, beside what else a process keeps."""
_NAME = re.compile(r"(0|[1-9]\d{0,9})-([1-9]\d{0,15})-([0-9a-f]{64})")


class PartsError(DapperError):
    """Parts that cannot be taken now; their sender is to ask once more how much is there, and to go on from that."""


@dataclass(frozen=True)
class Whole:
    """A payload by what is known of it before it has come."""

    digest: str
    """SHA-256 of all bytes, in hexadecimal digits."""
    size: int
    """In bytes."""


@dataclass(eq=False)
class _Arriving:
    """What has come of one sender's payload."""

    sender: int
    whole: Whole
    path: Path | None
    """Its file; None where it is kept in memory."""
    memory: io.BytesIO = field(default_factory=io.BytesIO)
    writer: ArrivingPayload | None = None
    """Whoever adds to it now."""
    is_given_up: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held for a moment, while it is written to, taken from its writer or given up."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held while all of it is read, which takes seconds for gigabytes."""

    @property
    def length(self) -> int:
        if self.path is None:
            return self.memory.tell()
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def place(self) -> Path:
        """The file, for errors."""
        return Path("memory") if self.path is None else self.path

    def open(self) -> FileIO | io.BytesIO:
        if self.path is None:
            return self.memory
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(FOR_ITS_OWNER)
        return self.path.open("ab", buffering=0)

    def read(self) -> bytes:
        return self.memory.getvalue() if self.path is None else read_regular(self.path, self.whole.size)

    def drop(self) -> None:
        """Delete what has come."""
        self.memory = io.BytesIO()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def take_over(self) -> None:
        """Let whoever adds to the file add no more."""
        with self.lock:
            self.writer = None

    def give_up(self) -> None:
        with self.lock:
            self.writer = None
            self.is_given_up = True
            self.drop()


class ArrivingPayload:
    """A payload that arrives frame by frame, and is kept as it comes. See :meth:`PartFolder.arriving`."""

    def __init__(self, arriving: _Arriving, stream: FileIO | io.BytesIO, length: int) -> None:
        self._arriving = arriving
        self._stream = stream
        self._length = length

    def add(self, frame: bytes) -> None:
        """Keep one more frame.

        Raises:
            ProtocolError: It is not what was declared.
            PartsError: The payload has been taken over by a newer call, or given up.
            DataError: The disk does not take it.
        """
        size = self._arriving.whole.size
        if not 0 < len(frame) <= min(FRAME_BYTES, size - self._length):
            raise ProtocolError(f"a frame of {len(frame)} bytes after {self._length} of the {size} declared")
        with self._arriving.lock, explained(self._arriving.place):
            self._check_mine()
            if self._stream.write(frame) != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._length += len(frame)

    def whole(self) -> bytes:
        """Return the payload, when all of it has come.

        Raises:
            ProtocolError: Something is missing.
            PartsError: It is not what its sender announced, and all of it is forgotten.
            DataError: It cannot be read.
        """
        whole = self._arriving.whole
        if self._length != whole.size:
            raise ProtocolError(f"the message ended after {self._length} of the {whole.size} bytes it declared")
        found, digest = self._read()
        is_right = digest == whole.digest
        with self._arriving.lock, explained(self._arriving.place):
            self._check_mine()
            if not is_right or self._arriving.path is None:  # a file stays, for the next process
                self._arriving.drop()
            if is_right:
                return found
        raise PartsError(f"{whole.size} bytes have come that are not those of the digest announced; they are forgotten")

    def _read(self) -> tuple[bytes, str]:
        """Return all that has come, and its digest. Whoever begins anew meanwhile does not wait for that."""
        if not self._arriving.reading.acquire(blocking=False):
            raise PartsError("an earlier call's payload is being read still")
        try:
            with self._arriving.lock:
                self._check_mine()
            with explained(self._arriving.place):
                found = self._arriving.read()
            return found, hashlib.sha256(found).hexdigest()
        finally:
            self._arriving.reading.release()

    def _check_mine(self) -> None:
        if self._arriving.writer is not self:
            raise PartsError("a newer call has taken the place of this one, or what it brought was given up")


class PartFolder:
    """Payloads that arrive in parts, in files of a folder. Safe to use from any thread.

    Args:
        folder: Made with the first file; if None, payloads are kept in memory until they are whole.
        room_bytes: Most bytes of all payloads together, each counted as what it will be when it is whole.
    """

    def __init__(self, folder: Path | None, room_bytes: int) -> None:
        self._folder = folder
        self._room_bytes = room_bytes
        self._lock = threading.Lock()
        self._payloads = {} if folder is None else _found_in(folder)

    def latest(self, sender: int) -> tuple[Whole, int] | None:
        """Return the payload that came last from ``sender``, and how many bytes of it are there; None without one."""
        with self._lock:
            found = self._payloads.get(sender)
            return None if found is None else (found.whole, found.length)

    def begin(self, sender: int, whole: Whole) -> int | None:
        """Make ready for a payload of ``sender``, and return how many bytes of it are there; None if there is no room.

        A call that is still bringing parts of that sender's may bring no more.
        """
        arriving = self._begin(sender, whole)
        return None if arriving is None else arriving.length

    def _begin(self, sender: int, whole: Whole) -> _Arriving | None:
        with self._lock:
            arriving = self._payloads.pop(sender, None)
            if arriving is not None and arriving.whole == whole:
                arriving.take_over()
            else:
                if arriving is not None:
                    arriving.give_up()
                if not self._make_room(whole.size):
                    return None
                name = f"{sender}-{whole.size}-{whole.digest}"
                arriving = _Arriving(sender, whole, None if self._folder is None else self._folder / name)
            self._payloads[sender] = arriving  # behind all others, as it is the newest
            return arriving

    @contextmanager
    def arriving(self, sender: int, envelope: Envelope) -> Iterator[ArrivingPayload]:
        """Provide the payload of ``envelope`` for the parts that follow it; they stay where the block fails.

        Raises:
            PartsError: It does not go on where the parts that are there end.
            DataError: The folder cannot be written to.
        """
        arriving = self._begin(sender, Whole(envelope.digest, envelope.payload_bytes))
        if arriving is None:
            raise PartsError("there is no room for unfinished messages")
        with explained(arriving.place), arriving.lock:
            if arriving.is_given_up or arriving.length != envelope.begins_at:
                raise PartsError(f"parts from byte {envelope.begins_at} on, where {arriving.length} are there")
            stream = arriving.open()
            payload = ArrivingPayload(arriving, stream, envelope.begins_at)
            arriving.writer = payload
        try:
            yield payload
        finally:
            with arriving.lock:
                if isinstance(stream, FileIO):
                    stream.close()
                if arriving.writer is payload:
                    arriving.writer = None

    def forget(self, busy: Collection[int] = ()) -> None:
        """Delete all payloads but those of ``busy`` senders, and those that parts are being added to."""
        with self._lock:
            for sender, arriving in list(self._payloads.items()):
                if sender not in busy and arriving.writer is None:
                    arriving.give_up()
                    del self._payloads[sender]
            if not self._payloads and self._folder is not None and self._folder.is_dir():
                _remove_if_empty(self._folder)

    def _make_room(self, size: int) -> bool:
        """Return whether ``size`` bytes more fit, for which payloads go that nobody adds to, the oldest first."""
        room = self._room_bytes - sum(other.whole.size for other in self._payloads.values())
        idle = [other for other in self._payloads.values() if other.writer is None]
        if size > room + sum(other.whole.size for other in idle):
            return False
        while size > room:
            oldest = idle.pop(0)
            oldest.give_up()
            del self._payloads[oldest.sender]
            room += oldest.whole.size
        return True


def _found_in(folder: Path) -> dict[int, _Arriving]:
    """Return what an earlier process left in ``folder``, the oldest first; what is none of its files stays there."""
    payloads: dict[int, _Arriving] = {}
    named = [(path, name) for path in folder.glob("*") if (name := _NAME.fullmatch(path.name)) and path.is_file()]
    for path, name in sorted(named, key=lambda one: one[0].stat().st_mtime):
        sender = int(name[1])
        if sender in payloads:
            payloads.pop(sender).give_up()
        payloads[sender] = _Arriving(sender, Whole(name[3], int(name[2])), path)
    return payloads


def read_arriving(frames: Iterator[bytes], envelope: Envelope, parts: PartFolder, sender: int) -> bytes:
    """Read the other frames of a message of ``sender``, and return its whole payload; parts are kept as they come.

    Raises:
        ProtocolError: The frames are not what the envelope declared.
        PartsError: They do not go on where what is there ends, or the whole is not what was announced.
        DataError: The disk does not take them.
    """
    if not envelope.digest:
        return read_payload(frames, envelope)
    with parts.arriving(sender, envelope) as payload:
        for frame in frames:
            payload.add(frame)
        return payload.whole()


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
