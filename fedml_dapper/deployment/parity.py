"""Whether a file does what its model does."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedml_dapper.deployment.formats import FORMATS, Product, Runtime
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation.run_folder.model_file import ModelOrigin
from fedml_dapper.inputs import Inputs, count, mapped, repeated, rows
from fedml_dapper.models import Backbone
from fedml_dapper.models.running import first_line
from fedml_dapper.randomness.seeding import Stream, torch_generator

TOLERANCE = 1e-4
"""Largest difference of outputs from the model's: absolute for outputs below 1, else relative."""
COMPARED = 16
"""Samples of each test set whose outputs are compared."""


def written_and_read(name: str, product: Product, folder: Path) -> tuple[Path, Runtime]:
    """Write ``product`` into ``folder`` in the format ``name``, and return the file and what runs it.

    Raises:
        ConfigError: The format cannot hold it, or not so that the file can be read again.
    """
    chosen = FORMATS[name]
    path = folder / chosen.file_name
    chosen.write(product, path)
    try:
        return path, chosen.read(path, trust_code=True)  # it was written a moment ago
    except DataError as error:
        raise ConfigError(f"{error}; it was written so: choose another --format") from error


def largest_difference(runtime: Runtime, model: Backbone, compared: tuple[Inputs, Inputs], file: str) -> float:
    """Return the largest difference between outputs of a file and of ``model``, on a batch and on single inputs.

    ``compared`` are these inputs, in the form that the network takes and in that of files.

    Raises:
        ConfigError: It is more than :data:`TOLERANCE`, or ``file`` does not run.
    """
    inputs, given = compared
    with torch.no_grad():
        expected = model(inputs)
    if not bool(expected.isfinite().all()):
        raise ConfigError("the model's own outputs are not finite, although its weights are; its training went astray")
    expected = torch.cat([expected, expected[:1]])
    try:
        found = torch.cat([runtime(given), runtime(rows(given, slice(1)))])
    except Exception as error:  # runtimes have errors of their own
        raise ConfigError(
            f"{file} does not run on {count(given)} inputs and on one: {first_line(error)}; choose another --format"
        ) from error
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        apart = (
            "are of another shape" if found.shape != expected.shape else f"differ by {_difference(found, expected):.2g}"
        )
        raise ConfigError(f"{file} does not do what the model does: its outputs {apart}; choose another --format")
    return _difference(found, expected)


def random_inputs(origin: ModelOrigin) -> tuple[Inputs, Inputs]:
    """Return some inputs of a model, in the form that the network takes and in that of files."""
    example = repeated(origin.example, COMPARED)
    preprocessing = origin.preprocessing
    generator = torch_generator(0, Stream.METHOD)
    if preprocessing is not None and isinstance(example, Tensor):
        pixels = torch.randint(0, 256, example.shape, dtype=torch.uint8, generator=generator)
        return preprocessing.evaluate(pixels), pixels

    def drawn(part: Tensor) -> Tensor:
        # examples have zeros where numbers belong, and ones in masks, which stay
        is_number = part.is_floating_point() and not bool(part.any())
        return torch.randn(part.shape, generator=generator).to(part.dtype) if is_number else part

    inputs = mapped(example, drawn)
    return inputs, inputs


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())
