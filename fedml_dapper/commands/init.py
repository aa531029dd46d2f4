"""``fedml-dapper init``: write an experiment file to start from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from fedml_dapper.config import Settings, check, parse_yaml
from fedml_dapper.config.beginning import Beginning, experiment_text
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError
from fedml_dapper.files.atomic import written_whole

DEFAULT = Beginning()
QUESTIONS = {
    "data": "Your data: a folder of pictures, FILE.py:FUNCTION, or a suite",
    "model": "Your network: FILE.py:NAME, torchvision:NAME, or a built-in one",
    "clients": "How many clients?",
    "weakest": "What the weakest device can hold, in percent of the full model",
    "rounds": "How many rounds?",
}
NUMBERS = {"clients": click.IntRange(min=1), "weakest": click.IntRange(1, 100), "rounds": click.IntRange(min=1)}
"""Answers that are numbers, and their types."""


@click.command()
@click.argument("file", type=NamedPath(dir_okay=False), default="experiment.yaml")
@click.option("--data", help=f"{QUESTIONS['data']}.")
@click.option("--model", help=f"{QUESTIONS['model']}.")
@click.option("--clients", type=NUMBERS["clients"], help="How many.")
@click.option("--weakest", type=NUMBERS["weakest"], help=f"{QUESTIONS['weakest']}.")
@click.option("--rounds", type=NUMBERS["rounds"], help="How many.")
@click.option("--yes", is_flag=True, help="Ask nothing: what is not given has its default.")
def init(file: Path, yes: bool, **given: Any) -> None:
    """Write FILE, a commented experiment for data and a network of your own. Asks five questions, or takes flags."""
    if os.path.lexists(file):
        raise ConfigError(f"{file} is there already; name another file")
    if not file.parent.is_dir():
        raise ConfigError(f"no folder {file.parent}; make it, or name another file")
    answers = {key: _answer(key, value, yes) for key, value in given.items()}
    text = experiment_text(Beginning(**answers), file.parent)
    check(Settings, parse_yaml(text, str(file)), where=str(file))  # reports mistakes before the file is written
    with written_whole(file) as scratch:
        scratch.write_text(text, encoding="utf-8")
    click.echo(f"{file} is written. Next:")
    click.echo(f"  fedml-dapper data check -c {file}    # what would be used")
    click.echo(f"  fedml-dapper run -c {file}")


def _answer(key: str, given: Any, yes: bool) -> Any:
    if given is not None:
        return given
    default = getattr(DEFAULT, key)
    if yes:
        return default
    try:
        return click.prompt(QUESTIONS[key], default=default, type=NUMBERS.get(key))
    except (click.Abort, RuntimeError):  # the latter where the shell closed stdin
        if sys.stdin is not None and sys.stdin.isatty():  # somebody pressed a key to leave
            raise
        raise ConfigError(
            f"nobody answers `{QUESTIONS[key]}`, as stdin has ended; give --{key}, or --yes for what is not given"
        ) from None
