"""``fedml-dapper init``: write an experiment file to start from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from fedml_dapper.config import (
    ENTRY_POINTS,
    LIBRARIES,
    Reference,
    Settings,
    check,
    did_you_mean,
    installed,
    parse_yaml,
    path_of,
)
from fedml_dapper.config.beginning import Beginning, experiment_text
from fedml_dapper.config.fedml_args import BUILT_IN
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError, shortened
from fedml_dapper.files.atomic import written_whole

DEFAULT = Beginning()
QUESTIONS = {
    "data": "Your data: a folder of pictures, FILE.py:FUNCTION, or a suite",
    "model": "Your network: FILE.py:NAME, torchvision:NAME, or a built-in one",
    "clients": "How many clients?",
    "weakest": "What the weakest device can hold, in percent of the full model",
    "rounds": "How many rounds?",
}
KEYS = {"data": "data_args.dataset", "model": "model_args.model"}
"""Settings that answers name an object for."""
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
    beginning = Beginning(**answers | {key: _written_out(answers[key]) for key in KEYS})
    _check_there(beginning)
    text = experiment_text(beginning, file.parent)
    check(Settings, parse_yaml(text, str(file)), where=str(file))  # reports mistakes before the file is written
    with written_whole(file) as scratch:
        scratch.write_text(text, encoding="utf-8")
    click.echo(f"{file} is written. Next:")
    click.echo(f"  fedml-dapper data check -c {file}    # what would be used")
    click.echo(f"  fedml-dapper run -c {file}")


def _written_out(named: str) -> str:
    """Write out ``~`` and environment variables in what an answer names, as in files of settings."""
    reference = Reference.parse(named)
    if reference is None:
        return str(path_of(named))
    return named if reference.file is None else f"{path_of(reference.file)}:{reference.name}"


def _check_there(beginning: Beginning) -> None:
    """Raise :class:`ConfigError` unless data and network are there; code of the user is not loaded yet."""
    if not Path(beginning.data).is_dir():
        _check_named("data", beginning.data, "folder, FILE.py:FUNCTION or suite", _suites)
    if beginning.model.partition(":")[0] not in LIBRARIES:
        _check_named("model", beginning.model, "FILE.py:NAME, torchvision:NAME or built-in network", lambda: BUILT_IN)


def _check_named(key: str, named: str, expected: str, names: Callable[[], Collection[str]]) -> None:
    reference = Reference.parse(named)
    if reference is not None:
        if reference.file is not None and not reference.file.is_file():
            raise ConfigError(
                f"--{key} {shortened(named)}: no file {reference.file.absolute()}; make it, or name another"
            )
        return
    if named == getattr(DEFAULT, key):
        return
    known = [*names(), *installed(ENTRY_POINTS[KEYS[key]])]
    if named not in known:
        raise ConfigError(f"--{key} {shortened(named)}: no {expected} of that name{did_you_mean(named, known)}")


def _suites() -> Collection[str]:
    from fedml_dapper.datasets import FOLDER, SUITES  # loads torch, which most answers can do without

    return SUITES.keys() - {FOLDER}  # of which a folder's own name makes the setting


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
