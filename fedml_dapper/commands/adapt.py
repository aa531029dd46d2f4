"""``fedml-dapper adapt``: the model for a device that joins a finished federation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fedml_dapper.commands.export import export_options, show
from fedml_dapper.config.named_path import NamedPath

_PATH = NamedPath()


@click.command()
@click.argument("run", type=_PATH)
@click.argument("folder", type=_PATH)
@export_options
def adapt(
    run: Path, folder: Path, level: int | None, formats: Sequence[str], int8: bool, trust_code: bool, output: Path
) -> None:
    """Adapt a model of the finished RUN to the pictures in FOLDER, which need no labels, and export it."""
    from fedml_dapper.export import Exporter, pictures_for
    from fedml_dapper.export import adapt as adapt_model
    from fedml_dapper.federation.run_folder.finished import open_finished

    finished = open_finished(run, trust_code=trust_code)
    exporter = Exporter(finished, tuple(dict.fromkeys(formats)), int8)
    before, after = adapt_model(finished, folder, level)
    show(exporter.export(after, output, before=before, pictures=pictures_for(finished, folder)), output)
