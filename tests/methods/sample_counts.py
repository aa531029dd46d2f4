"""Clients said to hold other numbers of samples than they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedml_dapper.federation import Server


def say_that_clients_hold(server: Server, counts: Sequence[int]) -> None:
    """Let the server believe so, or it would refuse their uploads."""
    counted = zip(server.state.profiles, counts, strict=True)
    server.state.profiles = tuple(replace(profile, num_samples=count) for profile, count in counted)
