"""The server's side of its connection to one silo: what waits to be fetched, what came, and how much of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fedml_dapper.errors import DapperError
from fedml_dapper.operations.allowance import Allowance
from fedml_dapper.operations.status import CallerFigures
from fedml_dapper.platform.secure_grpc.endpoint import Receipt
from fedml_dapper.platform.secure_grpc.parcel import MAX_ENVELOPE_BYTES, Arrivals, Envelope, Parcel

AWAY_SECONDS = 10.0
"""A silo that has not called for this long, and holds no call open, is taken for gone."""
MAX_FETCHES = 2
"""Of one silo: the one that counts, and one before it whose connection is lost without the server knowing yet."""
MAX_TRIAL_BYTES = 1 << 31
"""By which a silo may time its line, in both directions together, while the server runs."""
SMALL_MESSAGES = 16
"""How many messages without a payload may wait beside the largest with one."""
CALLS_AT_ONCE = 400.0
CALLS_PER_SECOND = 50.0
"""Of one silo. A round takes four calls, so that even rounds of a tenth of a second stay within."""
BUSY_AT_ONCE = 100.0
BUSY_PER_SECOND = 10.0
"""Calls of one silo that may come to nothing as they are too many; more are a flood. One that is told to try again does
so less and less often."""
FLOOD_SECONDS = 1.0
"""A flood is said once in so many."""
LARGEST_AT_ONCE = 8.0
LARGEST_PER_SECOND = 1.0
"""Messages of the largest size, or as many bytes in smaller ones, that one silo may deliver."""


class SiloBusyError(DapperError):
    """The silo has sent as much as it may before some of it has been dealt with; it is to try again."""


class Link:
    """One silo, seen from the server. Safe to use from any thread."""

    def __init__(
        self, rank: int, name: str, max_payload_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rank = rank
        self.name = name
        self._clock = clock
        self.arrivals = Arrivals()
        """Guarded by :meth:`delivering`."""
        self._delivering = threading.Lock()
        self._changed = threading.Condition()
        self._room = max_payload_bytes + SMALL_MESSAGES * MAX_ENVELOPE_BYTES
        self._calls = Allowance(CALLS_AT_ONCE, CALLS_PER_SECOND, clock)
        self._busy = Allowance(BUSY_AT_ONCE, BUSY_PER_SECOND, clock)
        self._flood_said = float("-inf")
        self._bytes = Allowance(LARGEST_AT_ONCE * self._room, LARGEST_PER_SECOND * self._room, clock)
        self._outbox: list[Parcel] = []
        self._unsent: list[Parcel] = []
        self._trying = threading.Lock()
        self._trial_bytes = MAX_TRIAL_BYTES
        self._open_calls = 0
        self._newest_call = 0
        self._seen = float("-inf")
        self._closed = False
        self._bytes_in = self._bytes_out = self._refused_calls = 0
        self._peers: deque[str] = deque(maxlen=16)

    # From the silo

    def count_call(self) -> None:
        """Raises :class:`SiloBusyError` where the silo calls too often."""
        if not self._calls.take():
            raise SiloBusyError(f"{self.name} calls more than {CALLS_PER_SECOND:g} times a second")

    def is_flooding(self) -> bool:
        """Call where a call of the silo came to nothing as it was one too many: whether it is time to say that these
        are a flood."""
        with self._changed:
            if self._busy.take() or self._clock() - self._flood_said < FLOOD_SECONDS:
                return False
            self._flood_said = self._clock()
            return True

    def is_new_connection(self, peer: str) -> bool:
        """Whether the latest calls came on other connections than that from the address ``peer``."""
        with self._changed:
            is_new = peer not in self._peers
            if is_new:
                self._peers.append(peer)
            return is_new

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """One delivery at a time. Raises :class:`SiloBusyError`."""
        if not self._delivering.acquire(blocking=False):
            raise SiloBusyError(f"{self.name} is delivering another message")
        try:
            self._see()
            yield
        finally:
            self._delivering.release()
            self._see()

    @contextmanager
    def trying(self) -> Iterator[None]:
        """One call at a time that times the line. Raises :class:`SiloBusyError`."""
        if not self._trying.acquire(blocking=False):
            raise SiloBusyError(f"{self.name} is timing its line already")
        try:
            yield
        finally:
            self._trying.release()

    def count_trial(self, size: int) -> None:
        """So many bytes will time the line, within :meth:`trying`. Raises :class:`SiloBusyError`."""
        if size > self._trial_bytes:
            raise SiloBusyError(f"{self.name} has timed its line with {MAX_TRIAL_BYTES >> 20} MiB, which is enough")
        self._trial_bytes -= size

    def reserve(self, envelope: Envelope) -> Callable[[], None]:
        """Room for a message until what is returned is called, which is when no manager needs the message any more.

        Raises :class:`SiloBusyError` where earlier messages of this silo leave too little, or came too fast.
        """
        size = envelope.payload_bytes + MAX_ENVELOPE_BYTES
        with self._changed:
            if size > self._room:
                raise SiloBusyError(f"earlier messages of {self.name} wait to be dealt with")
            if not self._bytes.take(size):
                raise SiloBusyError(
                    f"{self.name} delivers more bytes a second than {LARGEST_PER_SECOND:g} message may hold"
                )
            self._room -= size
            self._bytes_in += envelope.payload_bytes
        return partial(self._free, size)

    def count_refusal(self) -> None:
        """A call in the silo's name was refused."""
        with self._changed:
            self._refused_calls += 1

    @property
    def figures(self) -> CallerFigures:
        """How it has gone so far."""
        connected = self.connected
        with self._changed:
            heard = None if self._seen == float("-inf") else self._clock() - self._seen
            return CallerFigures(
                name=self.name, connected=connected, heard_s=heard, bytes_in=self._bytes_in, bytes_out=self._bytes_out,
                refused_calls=self._refused_calls,
            )  # fmt: skip

    def _free(self, size: int) -> None:
        with self._changed:
            self._room += size

    # To the silo

    @property
    def connected(self) -> bool:
        """Whether the silo can be expected to fetch what is put here."""
        with self._changed:
            return self._open_calls > 0 or self._clock() - self._seen < AWAY_SECONDS

    def put(self, parcel: Parcel) -> None:
        """Leave a message for the silo. One with a payload takes the place of an older one that is still there."""
        with self._changed:
            if parcel.payload:
                self._outbox = [waiting for waiting in self._outbox if not waiting.payload]
            self._outbox.append(parcel)
            self._unsent = [waiting for waiting in self._outbox if waiting in self._unsent or waiting is parcel]
            self._changed.notify_all()

    def acknowledge(self, receipt: Receipt) -> None:
        """Forget what the silo says it has."""
        with self._changed:
            self._outbox = [
                waiting
                for waiting in self._outbox
                if waiting.envelope.session != receipt.session or waiting.envelope.counter > receipt.counter
            ]

    @contextmanager
    def fetching(self) -> Iterator[int]:
        """A call by which the silo asks for a message: its number. The newest one counts, an older one ends.

        Raises :class:`SiloBusyError` where older ones have not ended yet.
        """
        self._see()
        with self._changed:
            if self._open_calls >= MAX_FETCHES:
                raise SiloBusyError(
                    f"{self.name} holds {self._open_calls} calls open on which it is being sent messages"
                )
            self._open_calls += 1
            self._newest_call += 1
            call = self._newest_call
            self._changed.notify_all()
        try:
            yield call
        finally:
            with self._changed:
                self._open_calls -= 1
                self._changed.notify_all()

    def next_parcel(self, call: int, is_active: Callable[[], bool]) -> Parcel | None:
        """The first message in the outbox, as soon as there is one; None when the call is over before that."""
        with self._changed:
            self._changed.wait_for(lambda: self._outbox or self._closed or not self.is_newest(call) or not is_active())
            return self._outbox[0] if self._outbox and self.is_newest(call) and is_active() else None

    def is_newest(self, call: int) -> bool:
        """Whether no newer call has taken this one's place."""
        return call == self._newest_call

    def sent(self, parcel: Parcel) -> None:
        """All of the message is on its way. It stays in the outbox until the silo acknowledges it."""
        self._see()
        with self._changed:
            self._unsent = [waiting for waiting in self._unsent if waiting is not parcel]
            self._bytes_out += len(parcel.payload)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let waiting calls look whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def forget(self) -> None:
        """The silo may no longer call: it is away at once, and nothing waits for it."""
        with self._changed:
            self._outbox = []
            self._unsent = []
            self._seen = float("-inf")
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Let a connected silo fetch what it has not been sent yet, for at most so long; then end its calls."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsent or not self.connected, seconds)
            self._closed = True
            self._changed.notify_all()

    def _see(self) -> None:
        with self._changed:
            self._seen = self._clock()
