"""Networks that a format cannot hold: one line that says why and what to do, without folders that are gone by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedml_dapper.errors import ConfigError
from fedml_dapper.export import Exporter, choose
from fedml_dapper.federation.run_folder.finished import FinishedRun

from .conftest import ROOT, finish

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, kind):
        super().__init__()
        self.conv, self.fc, self.kind = nn.Conv2d(3, 4, 3, 2), nn.Linear(4, num_classes), kind
        if kind == "double":
            self.double()

    def forward(self, x):
        if self.kind == "double":
            return self.fc(self.conv(x.double()).mean((2, 3)))
        z = self.conv(x).mean((2, 3))
        if self.kind == "len":
            z = z.view(len(x), 4)
        if self.kind == "int":
            z = z + torch.zeros(int(x.shape[0]), 4)
        if self.kind == "exponential":
            z = z @ torch.linalg.matrix_exp(self.fc.weight[:4])
        return self.fc(z)
"""


def trained(folder: Path, kind: str) -> FinishedRun:
    (folder / "nets.py").write_text(CODE)
    network = (f"model={folder}/nets.py:Net", f"model_args.arguments={{kind: {kind}}}", "method=fedavg", "width=null")
    return finish(folder / "run", *network, config=ROOT / "config" / "digits_offline.yaml")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("len", "onnx", r"takes the number of inputs for one that never .*write x.shape\[0\] for len\(x\)"),
        ("len", "torchscript", r"takes the number of inputs for one that never .*write x.shape\[0\] for len\(x\)"),
        pytest.param("int", "torchscript", "takes the number of inputs for", marks=pytest.mark.long),
        pytest.param("double", "onnx", "^model.onnx is no .*choose another --format", marks=pytest.mark.long),
        pytest.param(
            "exponential", "onnx", "No ONNX function found for .*linalg_matrix_exp.*format", marks=pytest.mark.long
        ),
    ],
)
def test_why_is_one_line(tmp_path: Path, kind: str, name: str, message: str) -> None:
    run = trained(tmp_path, kind)
    with pytest.raises(ConfigError, match=message) as caught:
        Exporter(run, (name,)).export(choose(run, None), tmp_path / "out")
    assert not any(part in str(caught.value) for part in ("\n", "\x1b", ".unfinished"))
    assert not (tmp_path / "out").exists()
