"""A network whose parameters lie in a file is the same network, and takes no memory while nobody looks at it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedml_dapper.config import ModelArgs
from fedml_dapper.errors import DataError
from fedml_dapper.models import build_backbone
from fedml_dapper.models.on_disk import let_go, put_on_disk
from fedml_dapper.pruning import PruningPlan, slim_model, trace_layout

LARGE_BYTES = 40_000_000
READ = f"""
import sys
from pathlib import Path
from torch import nn
from fedml_dapper.models.on_disk import let_go, put_on_disk
from fedml_dapper.process.rss import resident_bytes
network = nn.Linear({LARGE_BYTES // 4 // 1000}, 1000, bias=False)
whole = resident_bytes()
put_on_disk(network, Path(sys.argv[1]))
moved = whole - resident_bytes()
network.weight.sum()
read = resident_bytes()
let_go(network)
print(moved, read - resident_bytes())
"""


def test_it_is_the_same_network(tmp_path: Path) -> None:
    example = torch.zeros(1, 3, 32, 32)
    network = build_backbone(ModelArgs(model="resnet10", width=8, norm="standardised"), 5, 1, example)
    network.predictor.weight.requires_grad_(False)
    before = copy.deepcopy(network)
    parameters = list(network.parameters())
    put_on_disk(network, tmp_path)
    let_go(network)
    assert list(tmp_path.iterdir()) == []  # the file has no name
    assert all(one is other for one, other in zip(parameters, network.parameters(), strict=True))
    assert [each.requires_grad for each in network.parameters()] == [each.requires_grad for each in before.parameters()]
    layout = trace_layout(before, example, "internal")
    plan = PruningPlan({name: torch.arange(0, group.channels, 2) for name, group in layout.groups.items()})
    for one, other in ((network, before), (slim_model(network, layout, plan), slim_model(before, layout, plan))):
        found = one.state_dict()
        assert all(tensor.equal(found[name]) for name, tensor in other.state_dict().items())
        assert one(example).equal(other(example))


def test_what_is_written_to_it_stays(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    put_on_disk(network, tmp_path)
    with torch.no_grad():
        network.weight.fill_(7.0)
    let_go(network)
    assert network.weight.eq(7).all()
    let_go(nn.Linear(3, 2))  # one that lies in memory


@pytest.mark.long
def test_memory_is_taken_while_it_is_read_alone(tmp_path: Path) -> None:
    """In a process of its own, whose heap holds nothing else."""
    told = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True, check=True)
    moved, let_go_again = map(int, told.stdout.split())
    assert moved > LARGE_BYTES / 2
    assert let_go_again > LARGE_BYTES / 2


def test_a_folder_that_takes_nothing_is_one_line(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    with pytest.raises(DataError, match="cannot write"):
        put_on_disk(network, tmp_path / "absent")
    assert network.weight.isfinite().all()
    put_on_disk(nn.Identity(), Path(os.devnull))  # nothing to move
