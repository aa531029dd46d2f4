"""File with the first and last call of each certificate, beside the list of members, which the server never writes."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timezone
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, RootModel, ValidationError

from fedml_dapper.errors import DataError
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.files.locks import locked
from fedml_dapper.files.regular_file import read_regular

LOGGER = logging.getLogger(__name__)
LOCK_NAME = ".silos.lock"
"""Lock of the list of members and of the files beside it, held by whoever changes them."""
SAVE_SECONDS = 10.0
"""Shortest time between two writes of the file."""
MAX_BYTES = 8 << 20
"""Most bytes that are read of the file: the limit of the list of members, whose lines are longer."""


class CallTimes(BaseModel):
    """First and last call of a certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: AwareDatetime
    last: AwareDatetime


class _LastSeen(RootModel[dict[str, CallTimes]]):
    """First and last calls by fingerprint."""


def read_last_seen(members_file: Path) -> dict[str, CallTimes]:
    """Read first and last calls, by fingerprint, for the list ``members_file``.

    Empty where the server never ran, or the file is damaged, which is logged.
    """
    file = last_seen_file(members_file)
    try:
        return _LastSeen.model_validate_json(read_regular(file, MAX_BYTES)).root
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        LOGGER.warning("%s cannot be read (%s); when members were seen begins anew", file, type(error).__name__)
        return {}


def last_seen_file(members_file: Path) -> Path:
    """Return the path of the file beside the list: ``members.seen.json`` for ``members.json``."""
    return members_file.with_suffix(".seen.json")


class LastSeen:
    """Notes calls of members, and writes the file now and then. :meth:`note` is safe to call from any thread."""

    def __init__(self, members_file: Path) -> None:
        self._members_file = members_file
        self._seen = read_last_seen(members_file)
        self._changed = False
        self._saved = time.monotonic()
        self._complained = False

    def note(self, fingerprint: str) -> None:
        """Note a call of a member. Its fingerprint has to be in the list, so the file does not grow beyond the list."""
        now = datetime.now(timezone.utc).replace(microsecond=0)
        known = self._seen.get(fingerprint)
        self._seen[fingerprint] = CallTimes(first=now if known is None else known.first, last=now)
        self._changed = True

    def save(self, at_once: bool = False) -> None:
        """Write the file if the last write is ``SAVE_SECONDS`` ago, or ``at_once``; a failure is logged once."""
        if not self._changed or not (at_once or time.monotonic() - self._saved >= SAVE_SECONDS):
            return
        self._changed = False
        self._saved = time.monotonic()
        file = last_seen_file(self._members_file)
        try:
            with locked(file.with_name(LOCK_NAME)), written_whole(file) as scratch:
                scratch.write_text(_LastSeen(dict(self._seen)).model_dump_json(indent=1), encoding="utf-8")
        except DataError as error:
            self._changed = True
            if not self._complained:
                LOGGER.warning("when members were seen is not written down: %s", error)
            self._complained = True
