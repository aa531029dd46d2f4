"""Rounds as lines of the log."""

from __future__ import annotations

import logging

from fedml_dapper.evaluation.divergence import divergence_of
from fedml_dapper.federation import RoundRecord, RunObserver
from fedml_dapper.tasks import Metric

LOGGER = logging.getLogger(__name__)


class RoundLines(RunObserver):
    """Logs each round as a line, with the global model's headline in ``metric``, where nobody watches."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def round_finished(self, record: RoundRecord) -> None:
        parts = [
            f"{len(record.clients)} uploads",
            f"{len(record.absent)} absent",
            f"{record.seconds.total:.1f} s",
            *divergence_of(record),
        ]
        if record.rolled_back is not None:
            parts.append(f"model as before: {record.rolled_back}")
        if record.scores is not None:
            parts.append(f"{self._metric.name} {self._metric.text(record.scores.global_accuracy)}")
        LOGGER.info("round %d is closed: %s", record.round, ", ".join(parts))
