"""Which client has which device, and what a plan says of those that fit nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedml_dapper.config import FleetArgs, ModelArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet.planning import deal_devices, network_label
from fedml_dapper.pruning import Device

CLIENTS = [Device(client, "air" if client < 4 else "zoo", 10) for client in range(6)]


def dealt(devices: Any, seed: int = 1) -> tuple[str, ...]:
    return deal_devices(FleetArgs(devices=devices, round_s=1), CLIENTS, seed)


def test_devices_are_dealt_one_by_one_in_turn_or_by_domain() -> None:
    assert dealt(tuple("abcdef")) == tuple("abcdef")
    few = dealt(("a", "b"))
    assert sorted(few) == ["a"] * 3 + ["b"] * 3
    assert few == dealt(("a", "b"))
    assert len({dealt(("a", "b"), seed) for seed in range(5)}) > 1
    assert dealt({"air": "a", "zoo": "b"}) == tuple("aaaabb")


def test_devices_that_do_not_go_with_the_clients() -> None:
    with pytest.raises(ConfigError, match="lists 7 devices for 6 clients"):
        dealt(("a",) * 7)
    with pytest.raises(ConfigError, match="no device for domain `zoo`"):
        dealt({"air": "a"})
    with pytest.raises(ConfigError, match="no domain `zo`; did you mean `zoo`"):
        dealt({"air": "a", "zo": "a"})
    with pytest.raises(ValueError, match="at least one device"):
        FleetArgs(devices=(), round_s=1)


@pytest.mark.parametrize(
    ("shape", "label"),
    [((1, 3, 16, 12), "Net at 16x12"), ((1, 10, 5), "Net at 5"), ((1, 5), "Net at 5"), ((1,), "Net at 1")],
)
def test_profiles_name_the_size_of_inputs(shape: tuple[int, ...], label: str) -> None:
    method: Any = SimpleNamespace(problem=SimpleNamespace(example=torch.zeros(shape)))
    assert network_label(ModelArgs(model="nets.py:Net"), method) == label
