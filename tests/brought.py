"""A stranger's folder: ``my_data.py``, ``net.py`` and ``experiment.yaml``, and the command that they type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from fedml_dapper.cli import main
from fedml_dapper.config import Settings, load_settings
from fedml_dapper.datasets import Suite, load_suite

IMPORTS = """
import os, numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset
"""
NET = """
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, num_classes))
"""
EXPERIMENT = """
data_args: {dataset: "my_data.py:load"}
model_args: {model: "net.py:Net"}
train_args: {client_num_in_total: 2, client_num_per_round: 2, comm_round: 1, epochs: 1, batch_size: 8}
device_args: {threads: 1, using_gpu: false, workers: 1}
dapper_args: {method: fedavg, levels: {ratios: [0.0]}}
"""
PICTURES = "x, y = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4"
"""Twenty-four random pictures of four classes."""
PAIR = 'return {"a": (TensorDataset(x[:16], y[:16]), TensorDataset(x[16:], y[16:]))}'


def load_of(*lines: str) -> str:
    """``load`` of these lines, given :data:`PICTURES` before them and :data:`PAIR` after."""
    return "\n    ".join(("def load():", PICTURES, *lines, PAIR))


@dataclass(frozen=True)
class Brought:
    """The folder and what to do with it."""

    folder: Path

    @property
    def experiment(self) -> Path:
        return self.folder / "experiment.yaml"

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def settings(self) -> Settings:
        return load_settings([self.experiment])

    @property
    def suite(self) -> Suite:
        return load_suite(self.settings.data_args)

    def run(self, *overrides: str) -> Result:
        """``fedml-dapper run`` in this process."""
        asked = [part for override in overrides for part in ("--set", override)]
        arguments = ["run", "-c", str(self.experiment), "--output", str(self.run_dir), *asked]
        return CliRunner().invoke(main, arguments, prog_name="fedml-dapper")

    def complaint(self, *overrides: str) -> str:
        """The one line by which ``run`` refuses, with nothing written."""
        result = self.run(*overrides)
        assert result.exit_code == 2, result.output
        assert not self.run_dir.exists()
        [line] = result.stderr.strip().splitlines()
        return line


def brought(folder: Path, data: str, net: str = NET) -> Brought:
    """``folder`` with ``data`` as its my_data.py and ``net`` as its net.py."""
    (folder / "my_data.py").write_text(f"{IMPORTS}\n{data}\n")
    (folder / "net.py").write_text(f"{IMPORTS}\n{net}\n")
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    return Brought(folder)
