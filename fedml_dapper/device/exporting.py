"""Export of the model that a device keeps, in place and without the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedml_dapper import __version__
from fedml_dapper.datasets import unlabelled_pictures
from fedml_dapper.deployment.formats import FORMATS, Product
from fedml_dapper.deployment.new_folder import new_folder
from fedml_dapper.deployment.parity import largest_difference, random_inputs, written_and_read
from fedml_dapper.deployment.products import check_finite, input_ports, output_port, product_of, size_when_merged
from fedml_dapper.deployment.sidecar import SIDECAR_NAME, Sidecar
from fedml_dapper.device.offline import kept_model
from fedml_dapper.errors import ConfigError
from fedml_dapper.federation.run_folder.model_file import Rebuilt, rebuild
from fedml_dapper.methods import renew_statistics
from fedml_dapper.methods.contract.batchnorm import running_statistics
from fedml_dapper.models.adapters import merged
from fedml_dapper.process.provenance import commit

WHOSE = "the newest model that this device was sent"
BATCH_SIZE = 16
"""Pictures of which statistics are measured at a time."""


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written and read again."""

    path: Path
    bytes: int
    difference: float
    """Largest difference of its outputs from the model's."""


def export_kept(
    folder: Path, formats: Sequence[str], out: Path, pictures: Path | None = None, *, trust_code: bool = False
) -> Sequence[ExportedFile]:
    """Write the newest model that the device of ``folder`` was sent into ``out``, with what an app has to know of it.

    Args:
        folder: Where the device keeps the model.
        formats: Names of :data:`FORMATS`.
        out: A new folder, which is there whole or not at all.
        pictures: Folder of pictures on which BatchNorm's statistics are measured; those that were sent if None.
        trust_code: Whether to run whatever code the model names, also if no run on this device ran it.

    Raises:
        ConfigError: The model names code that is not trusted, a format cannot hold the model, this machine lacks what a
            format needs, ``out`` is not empty, or there is nothing to measure on ``pictures``.
        DataError: There is no model yet, or it is damaged, or there are no pictures.
    """
    for name in formats:
        FORMATS[name].check_installed()
    rebuilt = rebuild(kept_model(folder), trust_code=trust_code)
    changes = () if pictures is None else (_measure_statistics(rebuilt, pictures),)
    check_finite(rebuilt.model, WHOSE)
    task = rebuilt.method.problem.task.name
    product = product_of(merged(rebuilt.model), rebuilt.origin, rebuilt.file.round, task, rebuilt.file.kept)
    with new_folder(out) as scratch:
        written = [_write(name, product, scratch) for name in formats]
        about = _about(rebuilt, product, changes, {name: FORMATS[name].file_name for name in formats})
        (scratch / SIDECAR_NAME).write_text(about.model_dump_json(indent=1) + "\n", encoding="utf-8")
    for name in formats:
        FORMATS[name].note_own(out / FORMATS[name].file_name)
    return [ExportedFile(out / each.path.name, each.bytes, each.difference) for each in written]


def _write(name: str, product: Product, folder: Path) -> ExportedFile:
    """Write one file into ``folder``, and read it again."""
    path, runtime = written_and_read(name, product, folder)
    difference = largest_difference(runtime, product.model, random_inputs(product.origin), path.name)
    return ExportedFile(path, path.stat().st_size, difference)


def _measure_statistics(rebuilt: Rebuilt, folder: Path) -> str:
    """Measure BatchNorm's statistics on the pictures in ``folder``, and return what was done in words."""
    preprocessing = rebuilt.origin.preprocessing
    if preprocessing is None or not running_statistics(rebuilt.model):
        raise ConfigError("--calibrate: this model has no BatchNorm, or takes no pictures; leave it out")
    pictures = unlabelled_pictures(folder, preprocessing, BATCH_SIZE, rebuilt.origin.seed)
    renew_statistics(rebuilt.model, pictures, torch.device("cpu"))
    rebuilt.model.eval()
    return f"BatchNorm statistics measured on {pictures.num_samples} pictures ({pictures.domain}), without labels"


def _about(rebuilt: Rebuilt, product: Product, changes: tuple[str, ...], files: dict[str, str]) -> Sidecar:
    origin = rebuilt.origin
    method = rebuilt.method
    size = method.model_size(rebuilt.plan)
    level = _level_of(rebuilt, size[0])
    parameters, macs = size_when_merged(method.problem.layout, rebuilt.plan.widths, size)
    ports = input_ports(product)
    return Sidecar(
        network=origin.settings["model_args"]["model"],
        files=files,
        input=ports[0] if len(ports) == 1 else ports,
        output=output_port(product, method.problem.task.name),
        task=method.problem.task.name,
        classes=origin.classes,
        suite=origin.suite,
        method=origin.method,
        rounds=rebuilt.file.round,
        whose=WHOSE,
        changes=changes,
        level=level,
        ratio=0.0 if level is None else method.problem.ratios[level - 1],
        client=None,
        parameters=parameters,
        macs=macs,
        version=__version__,
        commit=commit(),
    )


def _level_of(rebuilt: Rebuilt, parameters: int) -> int | None:
    """Return the capability level whose model has so many parameters; None for a whole model, or where several have."""
    ratios = rebuilt.method.problem.ratios
    fitting = [
        level
        for level, ratio in enumerate(ratios, start=1)
        if ratio > 0 and rebuilt.method.slims and rebuilt.method.footprint(ratio).parameters == parameters
    ]
    return fitting[0] if len(fitting) == 1 else None
