"""Networks that a format cannot hold: one line that says why and what to do, without folders that are gone by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedml_dapper.config import load_settings
from fedml_dapper.errors import ConfigError
from fedml_dapper.export import Exporter, choose
from fedml_dapper.federation import build_experiment, simulate
from fedml_dapper.federation.run_folder.finished import FinishedRun, open_finished

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


TEXTS = """
import torch


def item(words):
    tokens = torch.tensor(list(words.encode()))
    return tokens[:-1], tokens[1:]


def load():
    notes, mails = ("milk, bread and flour", "to do"), ("dear all", "see you on Monday")
    return {"notes": ([item(one) for one in notes] * 8,) * 2, "mails": ([item(one) for one in mails] * 8,) * 2}
"""


def test_texts_of_unequal_length_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(TEXTS)
    (tmp_path / "texts.yaml").write_text(
        f"data_args: {{dataset: '{tmp_path}/texts.py:load', classes: 128}}\n"
        "model_args: {model: transformer_small, width: 16}\n"
        "train_args: {task: next_token, client_num_in_total: 2, client_num_per_round: 2, comm_round: 1, epochs: 1}\n"
        "dapper_args: {method: fedavg, levels: {ratios: [0.0]}}\n"
    )
    simulate(build_experiment(load_settings([tmp_path / "texts.yaml"])), run_dir=tmp_path / "run")
    run = open_finished(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"inputs of this run differ in shape, .* an exported file takes one"
    ) as caught:
        Exporter(run, ("torchscript",)).export(choose(run), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
