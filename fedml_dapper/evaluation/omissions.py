"""Omissions of a report: what cannot be drawn is left out and named, and never ends the report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from fedml_dapper.errors import DapperError

LOGGER = logging.getLogger(__name__)
_Made = TypeVar("_Made")
_MOST_LETTERS = 300


class Omissions:
    """The parts of one report that could not be made, and why."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        """Missing part -> reason, in the order in which they were noticed."""

    def with_fallback(self, what: str, make: Callable[[], _Made], otherwise: _Made) -> _Made:
        """Return what ``make`` returns; ``otherwise`` where it fails, with a warning that ``what`` is missing."""
        try:
            return make()
        except DapperError as error:
            self._note(what, str(error))
        except Exception as error:  # data, networks and tasks are the user's, and raise anything
            LOGGER.debug("the report goes without %s", what, exc_info=True)
            self._note(what, f"{type(error).__name__}: {error}")
        return otherwise

    def _note(self, what: str, reason: str) -> None:
        line = " ".join(reason.split())
        self.reasons[what] = line if len(line) <= _MOST_LETTERS else f"{line[:_MOST_LETTERS]}..."
        LOGGER.warning("the report goes without %s: %s", what, self.reasons[what])
