"""A silo's memory goes back when rounds are repeated."""

from __future__ import annotations

import logging

import pytest
import torch

from fedml_dapper.federation import Rewind
from fedml_dapper.methods import Memory


def trained(memory: Memory, value: int) -> Memory:
    """What training leaves behind."""
    memory.keep("last_model", {"weight": torch.tensor([value])})
    memory.values["rounds"] = value
    return memory


def rounds_behind(memory: Memory) -> object:
    last = memory.recall("last_model")
    assert memory.values.get("rounds", 0) == (int(last["weight"]) if last else 0)
    return memory.values.get("rounds", 0)


def test_a_repeated_round_starts_from_the_memory_it_started_from() -> None:
    rewind, memory = Rewind(3), Memory()
    for round_ in (1, 2, 3, 4):
        memory = trained(rewind.memory_for(round_, memory), round_)
    memory = rewind.memory_for(3, memory)
    assert rounds_behind(memory) == 2
    assert rounds_behind(rewind.memory_for(4, trained(memory, 3))) == 3


def test_rounds_that_the_silo_sat_out_are_no_gap() -> None:
    rewind, memory = Rewind(3), Memory()
    for round_ in (2, 5):
        memory = trained(rewind.memory_for(round_, memory), round_)
    assert rounds_behind(rewind.memory_for(4, memory)) == 2


def test_the_same_round_twice_in_a_row() -> None:
    rewind, memory = Rewind(1), Memory()
    for _ in range(3):
        memory = rewind.memory_for(1, memory)
        assert rounds_behind(memory) == 0
        memory = trained(memory, 1)


def test_what_is_too_long_ago_is_said(caplog: pytest.LogCaptureFixture) -> None:
    rewind, memory = Rewind(2), Memory()
    for round_ in (1, 2, 3, 4):
        memory = trained(rewind.memory_for(round_, memory), round_)
    with caplog.at_level(logging.WARNING, "fedml_dapper"):
        assert rounds_behind(rewind.memory_for(2, memory)) == 2
    assert "no memory from before round 2" in caplog.text
