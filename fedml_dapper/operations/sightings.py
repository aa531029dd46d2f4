"""When each certificate of the list called first and last: a file of the server's, so that it never writes the list."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timezone
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, RootModel, ValidationError

from fedml_dapper.durable import written_whole
from fedml_dapper.errors import DataError
from fedml_dapper.locks import locked
from fedml_dapper.regular_file import read_regular

LOGGER = logging.getLogger(__name__)
LOCK_NAME = ".silos.lock"
"""Held by whoever changes the list, or what is written beside it."""
SAVE_SECONDS = 10.0
"""At most so often the file is written."""
MAX_BYTES = 8 << 20
"""Most bytes that are read of the file; as of the list of members, whose lines are longer."""


class Sighting(BaseModel):
    """Of one certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: AwareDatetime
    last: AwareDatetime


class _Sightings(RootModel[dict[str, Sighting]]):
    """By fingerprint."""


def read_sightings(members_file: Path) -> dict[str, Sighting]:
    """What the server that reads ``members_file`` has seen; nothing where it never ran, or the file is damaged."""
    file = sightings_file(members_file)
    try:
        return _Sightings.model_validate_json(read_regular(file, MAX_BYTES)).root
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        LOGGER.warning("%s cannot be read (%s); when members were seen begins anew", file, type(error).__name__)
        return {}


def sightings_file(members_file: Path) -> Path:
    """Beside the list: ``members.seen.json`` for ``members.json``."""
    return members_file.with_suffix(".seen.json")


class Sightings:
    """Notes calls, and writes them down now and then. Calls of :meth:`note` may come from any thread."""

    def __init__(self, members_file: Path) -> None:
        self._members_file = members_file
        self._seen = read_sightings(members_file)
        self._changed = False
        self._saved = time.monotonic()
        self._complained = False

    def note(self, fingerprint: str) -> None:
        """A member calls. Only fingerprints of the list are noted, so the file stays as small as that."""
        now = datetime.now(timezone.utc).replace(microsecond=0)
        known = self._seen.get(fingerprint)
        self._seen[fingerprint] = Sighting(first=now if known is None else known.first, last=now)
        self._changed = True

    def save(self, at_once: bool = False) -> None:
        """Write the file if its time has come, or ``at_once``. A disk that does not take it is said once in the log."""
        if not self._changed or not (at_once or time.monotonic() - self._saved >= SAVE_SECONDS):
            return
        self._changed = False
        self._saved = time.monotonic()
        file = sightings_file(self._members_file)
        try:
            with locked(file.with_name(LOCK_NAME)), written_whole(file) as scratch:
                scratch.write_text(_Sightings(dict(self._seen)).model_dump_json(indent=1), encoding="utf-8")
        except DataError as error:
            self._changed = True
            if not self._complained:
                LOGGER.warning("when members were seen is not written down: %s", error)
            self._complained = True
