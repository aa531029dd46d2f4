"""``fedml-dapper calibrate``: measure this machine, and write a device's profile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import click

from fedml_dapper.commands.options import shipped_where_missing
from fedml_dapper.config import Settings, load_settings, to_yaml
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.errors import ConfigError
from fedml_dapper.files.atomic import written_whole
from fedml_dapper.operations.credentials import read_credentials


@click.command()
@click.option(
    "-c",
    "--config",
    "configs",
    type=NamedPath(),
    multiple=True,
    default=["quickstart.yaml"],
    show_default=True,
    callback=shipped_where_missing,
    help="The experiment whose levels are timed.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@click.option(
    "--rank",
    type=click.IntRange(min=1),
    help="Time the line to the server too, as the silo of this rank. The server has to be up, over DAPPER_GRPC.",
)
@click.option("-o", "--output", type=NamedPath(), required=True, help="A new file, ending in .yaml.")
def calibrate(configs: Sequence[Path], overrides: Sequence[str], rank: int | None, output: Path) -> None:
    """Measure how fast this machine trains each level, and its memory, and write that down as a device's profile.

    The CPU is measured, on as many threads as device_args.threads says. The line to the server is with --rank alone;
    otherwise name a network in the experiment's fleet, or add downlink_mbps and uplink_mbps to the file.
    """
    import torch

    from fedml_dapper.federation import build_untrained, load_data
    from fedml_dapper.fleet.calibration import calibrate as measure
    from fedml_dapper.fleet.calibration import with_line

    if output.suffix != ".yaml" or os.path.lexists(output) or not output.parent.is_dir():
        raise ConfigError(f"--output {output}: give a new file that ends in .yaml, in a folder that is there")
    settings = load_settings(configs, overrides)
    if settings.device_args.threads is not None:
        torch.set_num_threads(settings.device_args.threads)
    with redirect_stdout(sys.stderr):
        line = None if rank is None else _line(settings, rank)
        data = load_data(settings, torch.device("cpu"), rank or 0)
    build = partial(build_untrained, settings, data.num_classes, data.example)
    profile = measure(build, settings.model_args)
    if line is not None:
        profile = with_line(profile, *line)
    values = profile.model_dump(mode="json", exclude_none=True)
    with written_whole(output) as scratch:
        scratch.write_text(f"# Measured by fedml-dapper calibrate.\n{to_yaml(values)}", "utf-8")
    [speed] = profile.speeds
    for point in speed.ms_per_sample or ():
        click.echo(f"{point.mmacs:10.1f} MMACs a sample: {point.ms:8.3f} ms, {point.mmacs / point.ms:.1f} GMAC/s")
    assert profile.memory_factor is not None
    click.echo(f"peak of training: {profile.memory_factor.value:.2f} times the counted one")
    if line is not None:
        click.echo(f"line to {line[2]}: {line[0]:.1f} Mbit/s down, {line[1]:.1f} up")
    click.echo(f"Profile: {output}")


def _line(settings: Settings, rank: int) -> tuple[float, float, str]:
    """Measure the line to the server as the silo of this rank: Mbit/s down and up, and the server's address.

    Raises:
        ConfigError: The experiment does not use the backend DAPPER_GRPC.
    """
    grpc = settings.comm_args.dapper_grpc
    if settings.comm_args.backend != "DAPPER_GRPC" or grpc is None:
        raise ConfigError(
            f"--rank {rank}: only the line over comm_args.backend DAPPER_GRPC can be timed, this is"
            f" {settings.comm_args.backend}; leave --rank out, and add downlink_mbps and uplink_mbps to the file"
        )
    credentials = read_credentials(grpc, rank)
    from fedml_dapper.secure_grpc import measure_line  # loads slowly, so only after the checks

    config = grpc.config_for_silo(rank)
    speed = measure_line(config, credentials)
    return speed.downlink_mbps, speed.uplink_mbps, config.server_address
