"""Paths with ``~`` and environment variables, as people write them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedml_dapper.errors import ConfigError

_LONGEST = 255
"""Most bytes of a file's name, on all file systems in use."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def expanded(path: Path | str) -> Path:
    """Return ``path`` with the home folder for ``~`` and the environment's values for ``$NAME`` and ``${NAME}``.

    A path that exists as it stands is returned unchanged.

    Raises:
        ValueError: A variable is not set, or the path is one that cannot be.
    """
    text = str(path)
    check_letters(text)
    if any(len(os.fsencode(part)) > _LONGEST for part in Path(text).parts):
        raise ValueError(f"{text:.60}...: a name that is too long for a file")
    if (not text.startswith("~") and "$" not in text) or os.path.lexists(text):
        return Path(path)
    written = os.path.expandvars(os.path.expanduser(text))  # a `~` inside stays, as in `a:~/b`
    missing = next((found for found in _VARIABLE.finditer(written) if (found[1] or found[2]) not in os.environ), None)
    if missing is not None:
        name = missing[1] or missing[2]
        raise ValueError(f"{text}: the environment has no variable {name}; set it, or write the path")
    return Path(written)


def path_of(text: Path | str) -> Path:
    """Return a path as :func:`expanded` does.

    Raises:
        ConfigError: A variable is not set, or the path is one that cannot be.
    """
    try:
        return expanded(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_letters(text: str) -> None:
    """Raise ``ValueError`` where the name ``text`` is not UTF-8, which neither a ledger nor a terminal can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!a}: a name that is not UTF-8, which no ledger can hold; rename it") from error
