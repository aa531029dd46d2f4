"""``torch.export``: a ``.pt2`` file."""

from __future__ import annotations

from pathlib import Path

import torch

from fedml_dapper.deployment.formats.contract import Format, Product, Runtime, runtime_of
from fedml_dapper.errors import DataError
from fedml_dapper.federation.run_folder.own_code import check_program, note_program
from fedml_dapper.models.running import first_line


class TorchExport(Format):
    """A graph of PyTorch's operators, for ExecuTorch and PyTorch's other backends; BatchNorm is not folded."""

    name = "torch-export"
    file_name = "model.pt2"

    def write(self, product: Product, path: Path) -> None:
        torch.export.save(product.program, path)

    def note_own(self, path: Path) -> None:
        note_program(path)

    def read(self, path: Path, *, trust_code: bool = False) -> Runtime:
        check_program(path, trust_code)
        try:
            module = torch.export.load(path).module()
        except Exception as error:  # whatever damage makes it raise
            raise DataError(f"{path} is no program of torch.export: {first_line(error)}") from error
        return runtime_of(module)
