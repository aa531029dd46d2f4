"""The command line ``dapper-device``: what a device needs to take part, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from fedml_dapper import __version__
from fedml_dapper.config import Settings, load_settings
from fedml_dapper.config.named_path import NamedPath
from fedml_dapper.config.proxy_option import proxy_option
from fedml_dapper.deployment.format_names import FORMAT_NAMES
from fedml_dapper.device.entry import GOING_ON
from fedml_dapper.process.log import LogFormat, show_log
from fedml_dapper.process.polite_group import PoliteGroup

_files = click.argument("files", type=NamedPath(), nargs=-1, required=True)
_rank = click.option(
    "--rank",
    type=click.IntRange(min=1),
    help="The silo that this device is; by default the one whose key lies in the folder of certificates.",
)
_trust_code_option = click.option(
    "--trust-code", is_flag=True, help="Run whatever code the model names, which can then do all that you can."
)
_overrides = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")


class _Commands(PoliteGroup):
    program = "dapper-device"
    going_on = GOING_ON


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dapper-device")
def main() -> None:
    """Take part in a federation on a weak device."""


@main.command()
@_files
@_rank
@_overrides
@click.option(
    "--output", type=NamedPath(), help="Folder for what the device keeps; by default silo-RANK in output_dir."
)
@click.option("--log-format", type=click.Choice(get_args(LogFormat)), default="text", envvar="DAPPER_LOG_FORMAT")
def run(
    files: Sequence[Path], rank: int | None, overrides: Sequence[str], output: Path | None, log_format: LogFormat
) -> None:
    """Take part until the server ends the run.

    FILES are the experiment's, which all share, and then the device's own, which is laid over it.
    """
    settings, rank = _settings_of(files, overrides, rank)
    from fedml_dapper.device.program import run_device  # noqa: PLC0415  # slow, so only after the settings' checks

    show_log(f"rank {rank}", log_format)
    run_device(settings, rank, output)


@main.command()
@_files
@_rank
@_overrides
def check(files: Sequence[Path], rank: int | None, overrides: Sequence[str]) -> None:
    """Say whether this device can take part, and what that takes: data, level, memory, certificate.

    Nothing is sent. FILES are those of `dapper-device run`.
    """
    settings, rank = _settings_of(files, overrides, rank)
    from fedml_dapper.device.checking import check_device  # noqa: PLC0415  # slow, so only after the settings' checks

    for line in check_device(settings, rank):
        click.echo(line)


@main.command()
@click.argument("address", metavar="HOST:PORT")
@click.argument("code")
@click.option(
    "--certificates",
    type=NamedPath(file_okay=False),
    default="certs",
    show_default=True,
    help="Folder to make, of this device's key and certificate, and of the authority.",
)
@proxy_option
def join(address: str, code: str, certificates: Path, http_proxy: str | None) -> None:
    """Become a silo of a federation by a one-time CODE of its administrator, who runs `fedml-dapper silos enroll` at
    HOST:PORT.

    The device makes its own key, which never leaves it.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported by our own one-line messages
    from fedml_dapper.device.joining import join as join_federation  # noqa: PLC0415
    from fedml_dapper.operations.join_code import JoinCode  # noqa: PLC0415

    certificate = join_federation(address, JoinCode.read(code), certificates, http_proxy)
    click.echo(
        f"This device is {certificate.name}, until {certificate.expires:%Y-%m-%d}; its key is in {certificates}."
    )
    click.echo("To take part: dapper-device run shared.yaml device.yaml")


@main.command()
@click.argument("folder", type=NamedPath())
@click.argument("pictures", type=NamedPath(), nargs=-1, required=True)
@_trust_code_option
def predict(folder: Path, pictures: Sequence[Path], trust_code: bool) -> None:
    """Say which class each of PICTURES is of, by the newest model in FOLDER, where the device keeps what it was sent.

    It needs no server.
    """
    from fedml_dapper.device.offline import predict_offline  # noqa: PLC0415

    for answer in predict_offline(folder, pictures, trust_code=trust_code):
        click.echo(f"{answer.picture}: {answer.label}, {100 * answer.probability:.1f} %")


@main.command()
@click.argument("folder", type=NamedPath())
@click.option(
    "--format",
    "formats",
    type=click.Choice(FORMAT_NAMES),
    multiple=True,
    default=["onnx"],
    show_default=True,
    help="File format; may be given several times. All but onnx need nothing more.",
)
@click.option("--calibrate", type=NamedPath(), help="Measure BatchNorm's statistics on the pictures in this folder.")
@_trust_code_option
@click.option("-o", "--output", type=NamedPath(), required=True, help="A new folder.")
def export(folder: Path, formats: Sequence[str], calibrate: Path | None, trust_code: bool, output: Path) -> None:
    """Write the newest model in FOLDER, where the device keeps what it was sent, to a file for another runtime.

    The file is read again and compared with the model. It needs no server.
    """
    from fedml_dapper.device.exporting import export_kept  # noqa: PLC0415  # slow

    for file in export_kept(folder, list(dict.fromkeys(formats)), output, calibrate, trust_code=trust_code):
        click.echo(f"{file.path}: {file.bytes} bytes, within {file.difference:.1g} of the model's outputs at most")


def _settings_of(files: Sequence[Path], overrides: Sequence[str], rank: int | None) -> tuple[Settings, int]:
    from fedml_dapper.device.rank import grpc_of, rank_of  # noqa: PLC0415

    settings = load_settings(files, overrides)
    config = grpc_of(settings)
    return settings, rank_of(config) if rank is None else rank
