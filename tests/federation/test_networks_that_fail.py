"""A network of others that fails in a round ends the run by one line, with its place; what no trial ran is a note."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedml_dapper.config import Settings
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.federation import build_experiment, simulate

SettingsFactory = Callable[..., Settings]
SMALL = (
    "width=null", "image_size=16", "client_num_in_total=4", "client_num_per_round=4", "client_share=0.05", "epochs=1",
    "batch_size=16", "comm_round=1", "dapper_args.levels.ratios=[0,0.3]", "dapper_args.levels.assignment=[1,2,2,2]",
)  # fmt: skip
CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.a, self.b, self.d = nn.Conv2d(3, 16, 3, 2), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
        self.c = nn.Linear(16, num_classes)
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        x = torch.relu(self.a(x))
        if BRANCH:
            x = torch.relu(self.d(x))
        return self.c(torch.relu(self.b(x)).mean((2, 3)))
"""
RARE = "len(x) > 12"
COMMON = "len(x) > 4"
RAISING = "len(x) > 12 and torch.zeros(3) + torch.zeros(len(x)) is None"


@pytest.fixture
def own(tiny_settings: SettingsFactory, tmp_path: Path) -> Callable[..., Settings]:
    def settings(branch: str, *overrides: str) -> Settings:
        (tmp_path / "nets.py").write_text(CODE.replace("BRANCH", branch))
        return tiny_settings(f"model={tmp_path}/nets.py:Net", *SMALL, *overrides)

    return settings


@pytest.mark.parametrize("workers", [1, 2])
def test_a_branch_that_no_trial_took_is_named_and_its_failure_is_one_line(
    own: Callable[..., Settings], workers: int
) -> None:
    experiment = build_experiment(own(RARE, "method=dapperfl_slim", f"workers={workers}", "threads=1"))
    assert any(note.startswith("`d` did not run when the network was tried") for note in experiment.notes)
    with pytest.raises(DapperError, match=r"client \d, round 1: the network Net cannot be trained: .*") as caught:
        simulate(experiment)
    line = str(caught.value)
    assert "nets.py, line 16); `d` did not run when the network was tried" in line
    assert "\n" not in line


def test_a_branch_that_larger_batches_take_is_tried(own: Callable[..., Settings]) -> None:
    settings = own(COMMON, "method=dapperfl_slim", "dapper_args.levels.ratios=[0,0.1]")
    with pytest.raises(ConfigError, match=r"`a` not cut: .* it fails while training .* in `d`"):
        build_experiment(settings)


def test_whatever_a_network_raises_in_a_round_is_one_line(own: Callable[..., Settings]) -> None:
    with pytest.raises(DapperError, match=r"client 0, round 1: .*RuntimeError: The size .*\(nets.py, line 15\)$"):
        simulate(build_experiment(own(RAISING, "method=fedavg")))


COMPILED = """
import torch
from torch import nn
from torch.nn import functional as F

swish = torch.compile(lambda x: x * torch.sigmoid(x))

class Plain(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.a, self.c = nn.Conv2d(3, 8, 3, 2), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.c(self.between(self.a(x)).mean((2, 3)))

    def between(self, x):
        return x.relu()

class Calls(Plain):
    def between(self, x):
        return swish(x)

class Holds(Plain):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.between = torch.compile(F.relu)

class Decorated(Plain):
    @torch.compile
    def between(self, x):
        return x.relu()

def whole(num_classes):
    return torch.compile(Plain(num_classes))

def in_place(num_classes):
    net = Plain(num_classes)
    net.compile()
    return net

def layer(num_classes):
    net = Plain(num_classes)
    net.a = torch.compile(net.a)
    return net
"""


@pytest.mark.parametrize("name", ["Plain", "whole", "in_place", "layer", "Calls", "Holds", "Decorated"])
def test_compiled_networks_stay_in_one_process(tiny_settings: SettingsFactory, tmp_path: Path, name: str) -> None:
    (tmp_path / "nets.py").write_text(COMPILED)
    network = (f"model={tmp_path}/nets.py:{name}", "method=fedavg", "workers=2", "threads=1")
    experiment = build_experiment(tiny_settings(*SMALL, *network))
    notes = [note for note in experiment.notes if "torch.compile" in note]
    assert (experiment.workers.count, len(notes)) == ((2, 0) if name == "Plain" else (1, 1))
