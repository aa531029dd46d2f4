"""Guard around a tracking sink, whose errors must not end the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fedml_dapper.federation import RoundRecord, RunObserver, RunRecord

_log = logging.getLogger(__name__)


class GuardedSink(RunObserver):
    """Opens a sink when the run starts, and drops it at its first error, with one line in the log."""

    def __init__(self, name: str, open_sink: Callable[[RunRecord], RunObserver]) -> None:
        self._name = name
        self._open_sink = open_sink
        self._sink: RunObserver | None = None

    def run_started(self, record: RunRecord) -> None:
        with self._dropped_if_it_fails("at the start of the run"):
            self._sink = self._open_sink(record)
            self._sink.run_started(record)

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        if self._sink is not None:
            with self._dropped_if_it_fails(f"at the start of round {round_}"):
                self._sink.round_started(round_, client_ids)

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        if self._sink is not None:
            with self._dropped_if_it_fails(f"while client {client_id} trained"):
                self._sink.client_stepped(client_id, done, total)

    def round_finished(self, record: RoundRecord) -> None:
        if self._sink is not None:
            with self._dropped_if_it_fails(f"at the end of round {record.round}"):
                self._sink.round_finished(record)

    def run_finished(self) -> None:
        if self._sink is not None:
            with self._dropped_if_it_fails("at the end of the run"):
                self._sink.run_finished()

    @contextmanager
    def _dropped_if_it_fails(self, when: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  third-party trackers raise anything, and none of it is worth a run
            self._sink = None
            reason = " ".join(str(error).split()) or "no reason given"
            _log.warning(
                "tracking with %s failed %s (%s: %s); training goes on without it",
                self._name,
                when,
                type(error).__name__,
                reason,
            )
