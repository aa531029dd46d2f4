"""Files of others in a folder that is meant for a run: what the run would replace or delete is refused beforehand."""

from __future__ import annotations

import re
from pathlib import Path

from fedml_dapper.config import Settings, parse_yaml, to_yaml
from fedml_dapper.datasets import FOLDER
from fedml_dapper.datasets.beside_pictures import is_no_data
from fedml_dapper.datasets.picture_files import is_picture
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.run_folder.file_names import (
    ACCOUNT_NAME,
    CHECKPOINTS_NAME,
    EVICTED_NAME,
    LEDGER_NAME,
    MODEL_NAME,
    OPENED_NAME,
    REPORT_NAME,
    SETTINGS_NAME,
)

_CHECKPOINT = re.compile(r"round_\d+\.safetensors(\.refused)?")


def check_nothing_foreign(path: Path) -> None:
    """Check that a run in ``path`` would replace and delete no file but a run's.

    A ledger or a checkpoint says that a run was here, so that files of a run's names are its own. What stands beside
    them, such as a log, is in nobody's way.

    Raises:
        ConfigError: Without a run, the folder holds a file of a name that a run writes to.
    """
    if (path / LEDGER_NAME).exists() or checkpoints_in(path):
        return
    names = (MODEL_NAME, OPENED_NAME, EVICTED_NAME, ACCOUNT_NAME, REPORT_NAME)
    found = [name for name in names if (path / name).exists()]
    if (path / SETTINGS_NAME).exists() and not _is_written_by_a_run(path / SETTINGS_NAME):
        found.append(SETTINGS_NAME)
    if any(not inside.name.startswith(".") for inside in (path / CHECKPOINTS_NAME).glob("*")):
        found.append(f"{CHECKPOINTS_NAME}/")
    if found:
        raise ConfigError(
            f"{path} holds {', '.join(found)} and no {LEDGER_NAME}, so that no run wrote what this one would replace;"
            " choose another folder"
        )


def check_apart_from_data(path: Path, settings: Settings) -> None:
    """Check that ``path`` is no folder of the user's own pictures, among which a run's files would pass for data.

    Raises:
        ConfigError: It is the folder of the data, or one in it that holds folders or pictures.
    """
    data = settings.data_args.data_cache_dir
    if settings.data_args.dataset != FOLDER or data is None:
        return
    root = data.resolve()
    place = path.resolve()
    has_run = (path / LEDGER_NAME).exists() or bool(checkpoints_in(path))
    is_among = root in place.parents and not has_run and _holds_data(path)
    if place == root or is_among:
        raise ConfigError(f"{path} is a folder of the data; choose another for the run, e.g. runs/mine")


def checkpoints_in(path: Path) -> list[Path]:
    """Return the checkpoints that a run left in its folder ``path``, those that it refused too."""
    found = (path / CHECKPOINTS_NAME).glob("round_*")
    return [file for file in found if _CHECKPOINT.fullmatch(file.name) and not file.is_dir()]


def _holds_data(path: Path) -> bool:
    """Whether there are folders in ``path``, as in a domain, or pictures, as in a class; those of results are none."""
    return any(is_picture(inside) or (inside.is_dir() and not is_no_data(inside)) for inside in path.iterdir())


def _is_written_by_a_run(file: Path) -> bool:
    """Whether ``file`` has every section and the form that programs write, as of a run that ended before its ledger."""
    try:
        text = file.read_text(encoding="utf-8")
        content = parse_yaml(text, where=str(file))
    except (OSError, UnicodeDecodeError, ConfigError):  # the caller refuses the folder, and names the file
        return False
    is_whole = isinstance(content, dict) and Settings.model_fields.keys() <= content.keys()
    return is_whole and to_yaml(content) == text
