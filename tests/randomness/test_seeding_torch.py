"""Seeding torch costs no more than it has to in a process without a GPU in use."""

from __future__ import annotations

import pytest
import torch

from fedml_dapper.randomness.seeding import Stream, seed_torch, seeded_layers


def test_numbers_are_those_of_manual_seed() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.rand(3)
        seed_torch(5)
        assert torch.equal(torch.rand(3), expected)


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="a GPU is in use, and seeded at once")
def test_no_seed_is_noted_down_for_later() -> None:
    before = torch.cuda._lazy_seed_tracker.manual_seed_all_cb
    for client in range(5):
        with seeded_layers(1, Stream.TRAINING, client):
            torch.rand(1)
    assert torch.cuda._lazy_seed_tracker.manual_seed_all_cb is before
