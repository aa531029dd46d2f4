"""Slim levels whose heads of attention differ by what stands between the layers: each file knows which were kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedml_dapper import load_model
from fedml_dapper.errors import DataError
from fedml_dapper.export import Exporter, choose
from fedml_dapper.federation.run_folder.finished import FinishedRun
from fedml_dapper.federation.run_folder.model_file import read_model, save_model
from fedml_dapper.pruning.filled import filled_channels

from .conftest import ROOT, finish

CODE = """
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        with torch.no_grad():
            self.qkv.weight.view(3, 4, 4, 16)[:, 0] *= 0.1  # so the first head is never among those that are kept
        places = torch.arange(16.0)
        far = (places[:, None] - places).abs()
        self.register_buffer("far", torch.tensor([4.0, 1.0, 0.1, -2.0]).view(4, 1, 1) * far)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(x.shape[0], -1, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (q @ k.transpose(-2, -1) - self.far).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(x.shape[0], -1, 16))

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.patches, self.attention = nn.Conv2d(3, 16, 4, 4), Attention()
        self.up, self.down, self.fc = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, num_classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.attention(x)
        return self.fc((x + self.down(F.gelu(self.up(x)))).mean(1))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("heads")
    (folder / "nets.py").write_text(CODE)
    network = (f"model={folder}/nets.py:Net", "width=null", "method=dapperfl_slim", "ratios=[0,0.1,0.2,0.3,0.4]")
    return finish(folder / "run", *network, config=ROOT / "config" / "digits_offline.yaml")


def test_a_level_of_them_is_exported_with_its_heads(run: FinishedRun, tmp_path: Path) -> None:
    subject = choose(run, 5)
    heads = filled_channels(run.method.problem.layout, subject.model)["attention.qkv"].tolist()
    assert len(heads) < 4
    assert heads != list(range(len(heads)))
    card = Exporter(run, ("safetensors",)).export(subject, tmp_path / "out")
    [figures] = card.files
    assert figures.difference is not None
    assert figures.difference < 1e-5
    net = load_model(tmp_path / "out" / "model.safetensors")
    assert net.state_dict()["attention.qkv.weight"].shape == (12 * len(heads), 16)
    inputs = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net(inputs), subject.model(inputs))


def test_the_whole_model_names_none(run: FinishedRun) -> None:
    assert read_model(run.folder / "global_model.safetensors").kept == {}


@pytest.mark.parametrize("wrong", ["out of range", "one too many", "of no group"])
def test_heads_that_do_not_fit_the_network_are_refused(run: FinishedRun, tmp_path: Path, wrong: str) -> None:
    model = choose(run, 5).model
    heads = filled_channels(run.method.problem.layout, model)["attention.qkv"]
    told = {
        "out of range": {"attention.qkv": heads + 4},
        "one too many": {"attention.qkv": torch.arange(len(heads) + 1)},
        "of no group": {"attention.proj": heads},
    }
    path = tmp_path / "model.safetensors"
    save_model(model.state_dict(), path, 1, run.origin, told[wrong])
    with pytest.raises(DataError, match="holds tensors that do not fit the network it names"):
        load_model(path)
