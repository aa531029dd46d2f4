"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import click

from fedml_dapper.config import experiment_file, path_of
from fedml_dapper.errors import ConfigError

LogFormat = Literal["text", "json"]
resume_option = click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run in the --output folder after its last checkpoint, also with a higher comm_round; start one"
    " where there is none.",
)
restart_option = click.option(
    "--restart",
    is_flag=True,
    help="Delete what an earlier run left in the --output folder, and begin with round 1. A silo forgets what it has"
    " signed.",
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    envvar="DAPPER_LOG_FORMAT",
    show_default=True,
    help="Log lines for people, or JSON objects; the environment's DAPPER_LOG_FORMAT says it too.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")


class NamedPath(click.Path):
    """A file or folder as a :class:`Path`, with ``~`` and environment variables as in files of settings.

    Shells leave them as they are in ``--output=~/phone`` and between quotes. A name that is empty, not UTF-8, or of a
    variable that is not set raises :class:`ConfigError`: without a value, a shell's own variable leaves an empty name,
    which would otherwise be the working directory.
    """

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            name = "a path" if param is None else param.opts[-1]
            raise ConfigError(f"{name}: the name of a file or folder is empty; for the working directory, give .")
        return super().convert(path_of(value), param, ctx)


def shipped_where_missing(_context: click.Context, _parameter: click.Parameter, files: Sequence[Path]) -> list[Path]:
    """Callback of options for experiment files: a shipped file replaces a path that does not exist, with a message."""
    found = [experiment_file(file) for file in files]
    for file, place in zip(files, found, strict=True):
        if place != file:
            click.echo(f"{file}: no such file here, taking the shipped one:\n{place}", err=True)
    return found
