"""The package's log on stderr: lines for people, or one JSON object per line for machines that collect them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Literal

import click

from fedml_dapper.errors import on_one_line
from fedml_dapper.evaluation.divergence import divergence_of
from fedml_dapper.federation import RoundRecord, RunObserver
from fedml_dapper.tasks import Metric

LOGGER = logging.getLogger(__name__)


def show_log(who: str, log_format: Literal["text", "json"]) -> None:
    """Show log lines of this process from now on; FedML's own only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine(who) if log_format == "json" else _TextLine(who))
    logger = logging.getLogger("fedml_dapper")
    for earlier in [one for one in logger.handlers if isinstance(one.formatter, _TextLine | _JsonLine)]:
        logger.removeHandler(earlier)  # of a run before in this process, or each line would come twice
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


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
        if record.scores is not None:
            parts.append(f"{self._metric.name} {self._metric.text(record.scores.global_accuracy)}")
        LOGGER.info("round %d is closed: %s", record.round, ", ".join(parts))


class _TextLine(logging.Formatter):
    """Date, level, process and text; red on a terminal where the machine is in danger."""

    def __init__(self, who: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {who}: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # as logging calls it
        record.message = on_one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        is_red = record.levelno >= logging.CRITICAL and sys.stderr.isatty()
        return click.style(line, fg="red", bold=True) if is_red else line


class _JsonLine(logging.Formatter):
    """``at`` (UTC), ``level``, ``who``, ``text``, ``module``, and ``error`` with a traceback if there is one."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "who": self._who,
            "module": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)
