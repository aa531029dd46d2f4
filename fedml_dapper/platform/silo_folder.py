"""The folder in which a silo with FedML keeps what has come of a model, so that it goes on after a restart.

What the silo has trained is not kept: a restarted silo has no memory either, and its program may be another one by
then. It trains the round again, and its upload begins anew.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fedml_dapper.errors import DataError
from fedml_dapper.files.locks import lock_folder, unlock_folder
from fedml_dapper.secure_grpc import PARTS_NAME

LOGGER = logging.getLogger(__name__)


def open_parts(place: Path, rank: int) -> Path | None:
    """Return the folder of parts of the silo of this rank, for this process alone until :func:`close_parts`.

    It is ``silo-RANK/parts`` in ``place``. None where nothing can be written there, or another process of the rank has
    it; parts are then kept in memory, and the log says so.
    """
    folder = place / f"silo-{rank}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_folder(folder)
    except (OSError, DataError) as error:
        LOGGER.info("after a restart of this silo a model that broke off begins anew, as there is no folder: %s", error)
        return None
    return folder / PARTS_NAME


def close_parts(parts: Path) -> None:
    """Leave the folder to others, and delete it where nothing is in it."""
    folder = parts.parent
    unlock_folder(folder)
    if not any(folder.iterdir()):
        folder.rmdir()
