"""How many cells fit on a card, by figures that stand for a card's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedml_dapper.benches.room import Room, cells_at_once, is_gpu_shared

GB = 10**9


@pytest.mark.parametrize(
    ("free", "taken", "cores", "cells"),
    [
        (80 * GB, 2 * GB, 16, 8),  # more processes gain nothing
        (80 * GB, 2 * GB, 4, 4),
        (24 * GB, 2 * GB, 16, 6),
        (8 * GB, 3 * GB, 16, 1),
        (2 * GB, 3 * GB, 16, 1),  # one is tried in any case, and says itself what it lacks
        (8 * GB, 0, 16, 7),  # a process takes half a gigabyte before it does anything
        (8 * GB, -GB, 16, 7),  # another program has given memory back meanwhile
    ],
)
def test_cells_at_once(free: int, taken: int, cores: int, cells: int) -> None:
    assert cells_at_once(free, taken, cores) == cells


def test_a_card_that_lets_processes_in_at_the_same_time_takes_one_per_core() -> None:
    assert cells_at_once(80 * GB, 2 * GB, 16, shared=True) == 16
    assert cells_at_once(24 * GB, 2 * GB, 16, shared=True) == 6


def test_the_service_that_lets_them_in_is_known_by_its_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not is_gpu_shared()
    os.mkfifo(tmp_path / "control")
    assert is_gpu_shared()


def test_one_cell_runs_until_it_has_shown_what_it_takes() -> None:
    free = [20 * GB]
    room = Room(lambda: free[0], cores=16)
    assert [room.cells(rounds=0), room.cells(rounds=-3)] == [1, 1]
    free[0] = 18 * GB
    assert room.cells(rounds=1) == 5
    free[0] = 10 * GB  # what the five take is not asked again
    assert room.cells(rounds=7) == 5
