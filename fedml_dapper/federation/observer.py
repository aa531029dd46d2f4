"""The one interface for whoever wants to know how a run goes: the ledger, the terminal, tracking sinks."""

from __future__ import annotations

from collections.abc import Sequence

from fedml_dapper.federation.records import RoundRecord, RunRecord


class RunObserver:
    """Override what you care about; every hook does nothing by default."""

    def run_started(self, record: RunRecord) -> None:
        """Before the first round."""

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        """In place of :meth:`run_started` where a run goes on after ``rounds``."""
        self.run_started(record)

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        """Before the clients of a round train."""

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        """After each optimizer step of a client."""

    def round_finished(self, record: RoundRecord) -> None:
        """After aggregation and evaluation."""

    def run_finished(self) -> None:
        """After the last round, and also when a run was interrupted."""
