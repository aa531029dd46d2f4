"""The server's side of its connection to one silo: outgoing messages, arrivals, and limits of both."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fedml_dapper.errors import DapperError
from fedml_dapper.federation.wire.vocabulary import SILO
from fedml_dapper.operations.rate_limiter import RateLimiter
from fedml_dapper.operations.status import CallerFigures
from fedml_dapper.secure_grpc.endpoint import Receipt
from fedml_dapper.secure_grpc.parcel import MAX_ENVELOPE_BYTES, Arrivals, Envelope, Parcel

AWAY_SECONDS = 10.0
"""Time without a call, or an open one, after which a silo is taken for gone."""
MAX_FETCHES = 2
"""Open calls to fetch of one silo: the current one, and an older one whose lost connection the server has not noticed
yet."""
MAX_TRIAL_BYTES = 1 << 31
"""Bytes by which a silo may time its line while the server runs, in both directions together."""
SMALL_MESSAGES = 16
"""How many messages without a payload may wait beside the largest with one."""
CALLS_AT_ONCE = 400.0
CALLS_PER_SECOND = 50.0
"""Calls that one silo may make, at once and per second. A round takes four, so rounds of a tenth of a second fit."""
BUSY_AT_ONCE = 100.0
BUSY_PER_SECOND = 10.0
"""Calls of one silo that may be refused as too many, at once and per second; more are a flood. A silo of ours tries
again less and less often, and stays below."""
FLOOD_SECONDS = 1.0
"""Shortest time between two reports of a flood."""
LARGEST_AT_ONCE = 8.0
LARGEST_PER_SECOND = 1.0
"""Messages of the largest size that one silo may deliver, at once and per second, or as many bytes in smaller ones."""


class SiloBusyError(DapperError):
    """Refusal of a call of a silo that has more under way than it may; it is to try again later."""


class Link:
    """Connection to one silo, seen from the server. Safe to use from any thread."""

    def __init__(
        self, rank: int, name: str, max_payload_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rank = rank
        self.name = name
        self._clock = clock
        self.arrivals = Arrivals()
        """Messages that have come from the silo; guarded by :meth:`delivering`."""
        self._delivering = threading.Lock()
        self._changed = threading.Condition()
        self._room = max_payload_bytes + SMALL_MESSAGES * MAX_ENVELOPE_BYTES
        self._calls = RateLimiter(CALLS_AT_ONCE, CALLS_PER_SECOND, clock)
        self._busy = RateLimiter(BUSY_AT_ONCE, BUSY_PER_SECOND, clock)
        self._flood_reported = float("-inf")
        self._bytes = RateLimiter(LARGEST_AT_ONCE * self._room, LARGEST_PER_SECOND * self._room, clock)
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
        """Count a call of the silo.

        Raises:
            SiloBusyError: The silo calls too often.
        """
        if not self._calls.take():
            raise SiloBusyError(f"{self.name} calls more than {CALLS_PER_SECOND:g} times a second")

    def is_flooding(self) -> bool:
        """Count a call that was refused as one too many; return whether a flood is to be reported."""
        with self._changed:
            if self._busy.take() or self._clock() - self._flood_reported < FLOOD_SECONDS:
                return False
            self._flood_reported = self._clock()
            return True

    def is_new_connection(self, peer: str) -> bool:
        """Return whether none of the latest calls came from the address ``peer``, and remember it."""
        with self._changed:
            is_new = peer not in self._peers
            if is_new:
                self._peers.append(peer)
            return is_new

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """Enter a delivery, of which a silo may make one at a time.

        Raises:
            SiloBusyError: Another delivery is under way.
        """
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
        """Enter a call that times the line, of which a silo may make one at a time.

        Raises:
            SiloBusyError: Another one is under way.
        """
        if not self._trying.acquire(blocking=False):
            raise SiloBusyError(f"{self.name} is timing its line already")
        try:
            yield
        finally:
            self._trying.release()

    def count_trial(self, size: int) -> None:
        """Count bytes that are about to time the line, within :meth:`trying`.

        Raises:
            SiloBusyError: The silo has timed its line with as many bytes as it may.
        """
        if size > self._trial_bytes:
            raise SiloBusyError(f"{self.name} has timed its line with {MAX_TRIAL_BYTES >> 20} MiB, which is enough")
        self._trial_bytes -= size

    def reserve(self, envelope: Envelope) -> Callable[[], None]:
        """Reserve memory for a message, and return a function that frees it when the message has been handled.

        Raises:
            SiloBusyError: Earlier messages of this silo leave too little memory, or came too fast.
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
        """Count a refused call in the silo's name."""
        with self._changed:
            self._refused_calls += 1

    @property
    def figures(self) -> CallerFigures:
        """Figures of this connection so far."""
        connected = self.connected
        with self._changed:
            heard = None if self._seen == float("-inf") else self._clock() - self._seen
            return CallerFigures(
                name=self.name,
                connected=connected,
                heard_s=heard,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                refused_calls=self._refused_calls,
            )

    def _free(self, size: int) -> None:
        with self._changed:
            self._room += size

    # To the silo

    @property
    def connected(self) -> bool:
        """Whether the silo holds a call open or has called lately, and so will fetch its messages."""
        with self._changed:
            return self._open_calls > 0 or self._clock() - self._seen < AWAY_SECONDS

    def put(self, parcel: Parcel) -> None:
        """Put a message into the outbox; it replaces an older one about the same (:func:`_subject`).

        So a silo that never fetches what it is told does not fill the server's memory, however often it asks.
        """
        subject = _subject(parcel)
        with self._changed:
            self._outbox = [waiting for waiting in self._outbox if _subject(waiting) != subject]
            self._outbox.append(parcel)
            self._unsent = [waiting for waiting in self._outbox if waiting in self._unsent or waiting is parcel]
            self._changed.notify_all()

    def acknowledge(self, receipt: Receipt) -> None:
        """Remove the messages that the silo says it has got from the outbox."""
        with self._changed:
            self._outbox = [
                waiting
                for waiting in self._outbox
                if waiting.envelope.session != receipt.session or waiting.envelope.counter > receipt.counter
            ]

    @contextmanager
    def fetching(self) -> Iterator[int]:
        """Enter a call to fetch a message, and provide its number; it ends older calls to fetch of the silo.

        Raises:
            SiloBusyError: Older calls have not ended yet.
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
        """Wait for a message in the outbox, and return the first one; None when the call is over before that."""
        with self._changed:
            self._changed.wait_for(lambda: self._outbox or self._closed or not self.is_newest(call) or not is_active())
            return self._outbox[0] if self._outbox and self.is_newest(call) and is_active() else None

    def is_newest(self, call: int) -> bool:
        """Return whether no newer call has replaced this one."""
        return call == self._newest_call

    def sent(self, parcel: Parcel) -> None:
        """Note that a message was sent; it stays in the outbox until the silo acknowledges it."""
        self._see()
        with self._changed:
            self._unsent = [waiting for waiting in self._unsent if waiting is not parcel]
            self._bytes_out += len(parcel.payload)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let waiting calls check whether they are over."""
        with self._changed:
            self._changed.notify_all()

    def forget(self) -> None:
        """Drop all messages for a silo that may no longer call, and count it as away at once."""
        with self._changed:
            self._outbox = []
            self._unsent = []
            self._seen = float("-inf")
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Wait up to ``seconds`` until a connected silo has fetched all messages, then end its calls."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsent or not self.connected, seconds)
            self._closed = True
            self._changed.notify_all()

    def _see(self) -> None:
        with self._changed:
            self._seen = self._clock()


def _subject(parcel: Parcel) -> object:
    """Return what a message is about: all payloads one thing, others their kind, and which silo behind an edge."""
    envelope = parcel.envelope
    return None if parcel.payload else (envelope.kind, envelope.params.get(SILO))
