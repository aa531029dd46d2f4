"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from fedml_dapper.config import check_once, experiment_file
from fedml_dapper.config.limits import MAX_SEED
from fedml_dapper.errors import ConfigError
from fedml_dapper.process.log import LogFormat

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
trust_code_option = click.option(
    "--trust-code", is_flag=True, help="Run whatever code the files name, which can then do all that you can."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")


def shipped_where_missing(_context: click.Context, _parameter: click.Parameter, files: Sequence[Path]) -> list[Path]:
    """Callback of options for experiment files: a shipped file replaces a path that does not exist, with a message."""
    found = [experiment_file(file) for file in files]
    for file, place in zip(files, found, strict=True):
        if place != file:
            click.echo(f"{file}: no such file here, taking the shipped one:\n{place}", err=True)
    return found


def read_seeds(text: str) -> list[int]:
    """Read comma-separated seeds.

    Raises:
        ConfigError: One is no whole number, too large, or there twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds {text}: expected whole numbers, e.g. --seeds 1,2")
    digits = [part.lstrip("0") or "0" for part in parts]
    if any(len(part) > len(str(MAX_SEED)) or int(part) > MAX_SEED for part in digits):
        raise ConfigError(f"--seeds {text}: the largest seed is {MAX_SEED}")
    check_once(digits, f"--seeds {text}")
    return [int(part) for part in digits]
