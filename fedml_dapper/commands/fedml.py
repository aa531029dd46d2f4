"""``python -m fedml_dapper --cf FILE``: start a program in FedML's way.

The same as ``fedml-dapper run -c FILE``, or one process of several with ``--rank N --role server|client``, as FedML's
agents start it, or ``--role edge``. Other options of FedML are read by FedML itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from fedml_dapper.commands.experiment import run_experiment
from fedml_dapper.commands.options import (
    log_format_option,
    restart_option,
    resume_option,
    shipped_where_missing,
)
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError
from fedml_dapper.process.complaint import complaining
from fedml_dapper.process.interruption import ending_in_order
from fedml_dapper.process.log import LogFormat


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option(
    "--cf",
    "--yaml_config_file",
    "configs",
    type=NamedPath(),
    multiple=True,
    required=True,
    callback=shipped_where_missing,
    help="Experiment file; later ones are laid over earlier ones.",
)
@click.option(
    "--rank", type=click.IntRange(min=0), default=0, help="0 is the server, N the client of silo N, or an edge."
)
@click.option("--role", type=click.Choice(["server", "client", "edge"]))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option(
    "--output",
    type=NamedPath(),
    help="Folder for the server's results; a silo notes there what it has signed.",
)
@resume_option
@restart_option
@log_format_option
def main(
    configs: tuple[Path, ...],
    rank: int,
    role: str | None,
    overrides: tuple[str, ...],
    output: Path | None,
    resume: bool,
    restart: bool,
    log_format: LogFormat,
) -> None:
    """Run the experiment file that FedML's ``--cf`` names, or one process of it."""
    with complaining("fedml_dapper"):
        if role is not None and (role == "server") != (rank == 0):
            raise ConfigError(f"--role {role} --rank {rank}: the server is rank 0, clients are rank 1 and up")
        with ending_in_order("fedml_dapper"):  # inside click, which would end it in its own way
            run_experiment(
                configs,
                overrides,
                output=output,
                rank=rank,
                as_edge=role == "edge",
                resume=resume,
                restart=restart,
                log_format=log_format,
            )
