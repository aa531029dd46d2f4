"""TorchScript: one recorded forward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedml_dapper.deployment.formats.contract import TAKES_ONE_SIZE, Format, Product, Runtime, runtime_of
from fedml_dapper.errors import ConfigError, DataError
from fedml_dapper.federation.run_folder.own_code import check_program, note_program
from fedml_dapper.inputs import tensors_of
from fedml_dapper.models.running import first_line

_WRITTEN_ANYWAY = ("version", "byteorder", ".data/serialization_id", ".data/version")
"""Records of an archive that torch's writer adds by itself."""


class TorchScript(Format):
    """A frozen graph for LibTorch, with BatchNorm folded. PyTorch only maintains this format."""

    name = "torchscript"
    file_name = "model.torchscript"

    def write(self, product: Product, path: Path) -> None:
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # torch warns that there is a successor
                given = tensors_of(product.example)
                traced = torch.jit.trace(product.callable, given)  # type: ignore[no-untyped-call]  # torch ships it untyped
                one_size = not _takes_one(traced, given)
                torch.jit.freeze(traced).save(str(path))
            _strip(path)
        except Exception as error:  # whatever the user's network makes it raise
            raise ConfigError(
                f"--format torchscript: {product.label} cannot be traced: {first_line(error)}; try another format"
            ) from error
        if one_size:
            raise ConfigError(f"--format torchscript: {product.label} {TAKES_ONE_SIZE}")

    def note_own(self, path: Path) -> None:
        note_program(path)

    def read(self, path: Path, *, trust_code: bool = False) -> Runtime:
        check_program(path, trust_code)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]  # torch ships it untyped
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{path} is no TorchScript file: {first_line(error)}") from error
        return runtime_of(module)


def _takes_one(traced: Callable[..., Tensor], given: Sequence[Tensor]) -> bool:
    """Whether what was recorded with a batch also runs on one input."""
    try:
        return len(traced(*(part[:1] for part in given))) == 1
    except RuntimeError:  # as where a view was recorded with the batch's size
        return False


def _strip(path: Path) -> None:
    """Remove from the archive in ``path`` where each line of code was recorded, which are paths of this machine."""
    reader = torch._C.PyTorchFileReader(str(path))
    records = {name: reader.get_record(name) for name in reader.get_all_records()}
    writer = torch._C.PyTorchFileWriter(str(path.with_suffix(".stripped")))
    writer.set_min_version(int(records["version"]))  # an older version would change what operators mean
    for name, record in records.items():
        if not name.endswith(".debug_pkl") and name not in _WRITTEN_ANYWAY:
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()
    path.with_suffix(".stripped").replace(path)
