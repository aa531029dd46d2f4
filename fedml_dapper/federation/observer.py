"""Interface of all that follows a run's course: the ledger, the terminal, tracking sinks."""

from __future__ import annotations

from collections.abc import Sequence

from fedml_dapper.federation.run_folder.records import RoundRecord, RunRecord


class RunObserver:
    """Observer of a run, whose hooks do nothing by default: override those that you need."""

    def run_started(self, record: RunRecord) -> None:
        """Called before the first round."""

    def run_resumed(self, record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
        """Called in place of :meth:`run_started` where a run goes on after ``rounds``."""
        self.run_started(record)

    def round_started(self, round_: int, client_ids: Sequence[int]) -> None:
        """Called before the clients of a round train."""

    def client_stepped(self, client_id: int, done: int, total: int) -> None:
        """Called after each optimizer step of a client, with the steps ``done`` of the ``total``."""

    def round_finished(self, record: RoundRecord) -> None:
        """Called after aggregation and evaluation."""

    def run_finished(self) -> None:
        """Called after the last round, and also when a run was interrupted."""
