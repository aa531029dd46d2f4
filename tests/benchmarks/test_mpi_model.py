"""Rounds under MPI as predicted, against sums made by hand."""

from __future__ import annotations

import pytest

from benchmarks.mpi_model import RoundModel, makespan


@pytest.mark.parametrize(("ranks", "cores", "last"), [(1, 2, 15.0), (2, 2, 8.0), (3, 9, 6.0), (9, 9, 6.0), (4, 2, 8.5)])
def test_whoever_is_free_takes_the_longest_that_is_left(ranks: int, cores: int, last: float) -> None:
    """Four ranks on two cores: 2 is trained after 4 seconds, 3 after 5.5, 4 after 6.5 and 6 after 8.5."""
    assert makespan([2.0, 6.0, 4.0, 3.0], ranks, cores) == last


def test_the_server_works_by_itself() -> None:
    assert RoundModel(clients=(2.0, 6.0, 4.0, 3.0), rest=1.5, messages=0.25).seconds(ranks=2, cores=2) == 8 + 1.75
