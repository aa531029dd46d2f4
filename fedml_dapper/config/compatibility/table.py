"""All rows of what goes with what, and which of them an experiment breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from fedml_dapper.config.compatibility.data import DATA, FLEETS, LEVELS, OWN_SILOS
from fedml_dapper.config.compatibility.methods import METHODS, NEEDS
from fedml_dapper.config.compatibility.networks import ROWS as NETWORKS
from fedml_dapper.config.compatibility.privacy import NOISE, SUMS
from fedml_dapper.config.compatibility.row import Capabilities, Row
from fedml_dapper.config.compatibility.runners import ROWS as RUNNERS
from fedml_dapper.config.compatibility.training import ROWS as TRAINING
from fedml_dapper.config.rules import ReadAWrongValueError
from fedml_dapper.config.section import counted
from fedml_dapper.errors import ConfigError

if TYPE_CHECKING:
    from fedml_dapper.config.settings import Settings

TABLE: dict[str, tuple[Row, ...]] = {
    "Runners": RUNNERS,
    "Training": TRAINING,
    "Data": DATA,
    "Levels": LEVELS,
    "Fleets": FLEETS,
    "Silos with data of their own": OWN_SILOS,
    "Privacy": NOISE,
    "Secure sums": SUMS,
    "Networks": NETWORKS,
    "What methods can do": METHODS,
    "What methods need": NEEDS,
}
"""Rows by topic."""

ROWS = tuple(row for rows in TABLE.values() for row in rows)


def broken_rows(settings: Settings, capabilities: Capabilities | None = None) -> Iterator[str]:
    """Yield a line for each row that ``settings`` break: of those about settings alone; given ``capabilities``, of
    those that ask for one which is known.

    Rows that read a wrong value are passed over (:mod:`fedml_dapper.config.rules`).
    """
    known = capabilities or Capabilities()
    for row in ROWS:
        if row.is_about_settings == (capabilities is None):
            with suppress(ReadAWrongValueError):
                line = row.refusal(settings, known)
                if line is not None:
                    yield line


def check_capabilities(settings: Settings, capabilities: Capabilities) -> None:
    """Raise :class:`ConfigError`, with a line for each row that they break, where ``settings`` ask for what method,
    network, task or data cannot do."""
    lines = list(broken_rows(settings, capabilities))
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        raise ConfigError(counted(lines, "settings that do not go together"))
