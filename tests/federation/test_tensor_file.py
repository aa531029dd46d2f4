"""Files of tensors: one with more names than the format takes is refused, and the older file stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedml_dapper.errors import DataError
from fedml_dapper.federation.run_folder.tensor_file import metadata_of, write_tensors


def test_more_names_than_the_format_takes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tensors.safetensors"
    weight = {"weight": torch.zeros(1)}
    write_tensors(weight, {"said": "before"}, path)
    with pytest.raises(DataError, match=r"cannot write .*: a safetensors file cannot name 1 tensors"):
        write_tensors(weight, {"said": "x" * 100_000_000}, path)
    assert metadata_of(path, "file") == {"said": "before"}
