"""Which process trains which client."""

from __future__ import annotations

from fedml_dapper.platform.dispatch import Ranks, Silos


def test_a_silo_is_its_own_client() -> None:
    silos = Silos()
    silos.begin([0, 2])
    assert (silos.take(1), silos.take(1), silos.take(2)) == (0, None, None)
    assert silos.not_taken == {2}
    assert silos.can_be_taken(2, {3})
    assert not silos.can_be_taken(2, {1, 2})
    silos.give_back(0)
    assert silos.take(1) == 0


def test_the_free_rank_takes_the_next_client() -> None:
    done: set[int] = set()
    ranks = Ranks(2, lambda client: -client, lambda: done)
    ranks.begin(range(4))
    assert [ranks.take(1), ranks.take(2), ranks.take(1), ranks.take(1)] == [0, 1, 2, 3]  # rank 1 is fast
    assert [ranks.process_of(client) for client in range(5)] == [1, 2, 1, 1, 0]


def test_a_rank_that_got_none_may_get_one_when_others_are_done() -> None:
    done: set[int] = set()
    ranks = Ranks(1, float, lambda: done)
    ranks.begin(range(6))
    assert [ranks.take(1) for _ in range(4)] == [3, 2, 1, 0]
    assert ranks.take(1) is None
    assert ranks.take(1) is None
    done |= {0, 1, 2, 3}
    assert ranks.in_waiting() == [1]
    assert ranks.in_waiting() == []
    assert ranks.take(1) == 5
