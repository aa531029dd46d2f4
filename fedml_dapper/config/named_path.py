"""Paths on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedml_dapper.config.paths import path_of
from fedml_dapper.errors import ConfigError
from fedml_dapper.files.regular_file import in_place_of_file


class NamedPath(click.Path):
    """A file or folder as a :class:`Path`, with ``~`` and environment variables as in files of settings.

    Shells leave them as they are in ``--output=~/phone`` and between quotes. A name that is empty, not UTF-8, or of a
    variable that is not set raises :class:`ConfigError`: without a value, a shell's own variable leaves an empty name,
    which would otherwise be the working directory. So does a device, a pipe or a folder where a file is meant.
    """

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            name = "a path" if param is None else param.opts[-1]
            raise ConfigError(f"{name}: the name of a file or folder is empty; for the working directory, give .")
        path = path_of(value)
        if not self.dir_okay and (found := in_place_of_file(path)):
            raise ConfigError(f"{path.absolute()}: that is {found}; name a plain file")
        return super().convert(path, param, ctx)
