"""The shipped experiment files: the folder ``config/`` of a clone, which a wheel carries inside the package."""

from __future__ import annotations

from pathlib import Path

from fedml_dapper.config.paths import path_of

_IN_THE_PACKAGE = Path(__file__).parents[1] / "shipped"  # where setup.py maps config/ to
_IN_A_CLONE = Path(__file__).parents[2] / "config"

SHIPPED = _IN_THE_PACKAGE if _IN_THE_PACKAGE.is_dir() else _IN_A_CLONE
"""The folder of shipped experiment files, wherever the package was installed from."""


def experiment_file(file: Path | str) -> Path:
    """Return ``file`` or, if it does not exist, the shipped one of that name, e.g. ``quickstart.yaml``.

    A path that is neither is returned unchanged.
    """
    path = path_of(file)
    if path.exists() or path.is_absolute():
        return path
    name = Path(*path.parts[1:]) if path.parts[:1] == ("config",) else path
    shipped = SHIPPED / name
    return shipped if shipped.is_file() else path
