"""The package's log on stderr: lines for people, or one JSON object per line for machines that collect them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Literal

import click

from fedml_dapper.errors import on_one_line

LogFormat = Literal["text", "json"]
"""Lines for people, or JSON objects."""


def show_log(who: str, log_format: LogFormat) -> None:
    """Show log lines of this process from now on; FedML's own only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine(who) if log_format == "json" else _TextLine(who))
    logger = logging.getLogger("fedml_dapper")
    for earlier in [one for one in logger.handlers if isinstance(one.formatter, _TextLine | _JsonLine)]:
        logger.removeHandler(earlier)  # of a run before in this process, or each line would come twice
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


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
