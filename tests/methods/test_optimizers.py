from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedml_dapper.methods.contract.optimizers import uncompiled

OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
    (torch.optim.AdamW, {"lr": 0.1}),
]
STEPS = """
import sys, torch
from fedml_dapper.methods.contract.optimizers import uncompiled
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = {made}([parameter], lr=0.1)
optimizer.zero_grad()
parameter.sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def trained(kind: Any, settings: dict[str, float]) -> list[Tensor]:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    optimizer = kind([{"params": network[0].parameters()}], **settings)
    optimizer.add_param_group({"params": network[2].parameters(), "lr": 0.01})
    for _ in range(4):
        optimizer.zero_grad()
        network(torch.randn(6, 5)).square().sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    state = [value for one in optimizer.state.values() for value in one.values() if value is not None]
    return [*network.parameters(), *state]


@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
def test_steps_are_torchs(kind: type[torch.optim.Optimizer], settings: dict[str, float]) -> None:
    ours, torchs = trained(uncompiled(kind), settings), trained(kind, settings)
    assert len(ours) == len(torchs) > 4
    assert all(torch.equal(one, other) for one, other in zip(ours, torchs, strict=True))


@pytest.mark.parametrize(("kind", "_"), OPTIMIZERS)
def test_they_are_optimizers_of_their_kind(kind: Any, _: object) -> None:
    made = uncompiled(kind)([nn.Parameter(torch.ones(1))])
    assert isinstance(made, kind)
    assert uncompiled(kind) is type(made)
    calls: list[object] = []
    made.register_step_post_hook(lambda *given: calls.append(given))
    made.step()
    assert len(calls) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(("made", "loads"), [("uncompiled(torch.optim.SGD)", False), ("torch.optim.SGD", True)])
def test_the_compiler_is_not_loaded(made: str, loads: bool) -> None:
    """Where torch's own no longer load it either, ours can go."""
    answer = subprocess.run([sys.executable, "-c", STEPS.format(made=made)], capture_output=True, text=True, check=True)
    assert answer.stdout == f"{loads}\n"
