"""How many cells fit on a card, by figures that stand for a card's."""

from __future__ import annotations

import pytest

from fedml_dapper.benches.room import Room, cells_at_once

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


def test_one_cell_runs_until_it_has_shown_what_it_takes() -> None:
    free = [20 * GB]
    room = Room(lambda: free[0], cores=16)
    assert [room.cells(rounds=0), room.cells(rounds=-3)] == [1, 1]
    free[0] = 18 * GB
    assert room.cells(rounds=1) == 5
    free[0] = 10 * GB  # what the five take is not asked again
    assert room.cells(rounds=7) == 5
