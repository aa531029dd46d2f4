"""``python -m fedml_dapper --cf FILE``: FedML's way of starting a program; the same as ``fedml-dapper run -c FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fedml_dapper.cli import run_experiment
from fedml_dapper.config import load_settings
from fedml_dapper.errors import DapperError


@click.command()
@click.option("--cf", "--yaml_config_file", "config", type=click.Path(path_type=Path), required=True)
def main(config: Path) -> None:
    """Run the experiment file that FedML's ``--cf`` names."""
    try:
        run_experiment(load_settings([config]))
    except DapperError as error:
        click.echo(f"fedml_dapper: {error}", err=True)
        sys.exit(2)


main()
