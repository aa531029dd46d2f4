"""``fedml-dapper run``: train the federation of an experiment file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fedml_dapper.commands.options import (
    json_option,
    log_format_option,
    restart_option,
    resume_option,
    shipped_where_missing,
)
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.process.loading import loaded_for_good
from fedml_dapper.process.log import LogFormat


@click.command()
@click.option(
    "-c",
    "--config",
    "configs",
    type=NamedPath(),
    multiple=True,
    required=True,
    callback=shipped_where_missing,
    help="Experiment file, or the name of a shipped one; give several to lay later ones over earlier ones.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one setting, e.g. --set comm_round=5 or --set train_args.comm_round=5.",
)
@json_option
@click.option("--output", type=NamedPath(), help="Folder for this run; by default a new one below output_dir.")
@resume_option
@restart_option
@click.option(
    "--profile",
    is_flag=True,
    help="Say where the rounds' seconds went, and write profile.json. With several processes: the server's own.",
)
@click.option("--verbose", is_flag=True, help="Print all effective settings first.")
@log_format_option
def run(
    configs: Sequence[Path],
    overrides: Sequence[str],
    as_json: bool,
    output: Path | None,
    resume: bool,
    restart: bool,
    profile: bool,
    verbose: bool,
    log_format: LogFormat,
) -> None:
    """Train the federation of an experiment file."""
    with loaded_for_good():
        from fedml_dapper.commands.experiment import run_experiment

    run_experiment(
        configs,
        overrides,
        as_json,
        output,
        resume=resume,
        restart=restart,
        profile=profile,
        verbose=verbose,
        log_format=log_format,
        by_fedml=False,
    )
