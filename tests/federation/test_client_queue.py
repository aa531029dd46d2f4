"""Who begins next."""

from __future__ import annotations

from fedml_dapper.federation import ClientQueue


def taken(turns: ClientQueue, done: set[int], times: int) -> list[int | None]:
    return [turns.take(done) for _ in range(times)]


def test_the_most_expensive_begins_first() -> None:
    turns = ClientQueue([3, 5, 7], {3: 1.0, 5: 9.0, 7: 4.0}.__getitem__, trainers=2)
    assert taken(turns, set(), 4) == [5, 7, 3, None]
    assert not turns.left


def test_none_begins_far_ahead_of_the_one_whose_turn_it_is_to_count() -> None:
    turns = ClientQueue(range(20), float, trainers=1)  # four may be ahead, the last of which is the dearest
    assert taken(turns, set(), 5) == [3, 2, 1, 0, None]
    assert turns.take({3, 2, 1}) is None  # they wait for client 0
    assert turns.left == set(range(4, 20))
    assert taken(turns, {3, 2, 1, 0}, 2) == [7, 6]


def test_equally_dear_ones_begin_in_order() -> None:
    assert taken(ClientQueue([4, 2, 9], lambda _: 1.0, trainers=3), set(), 3) == [4, 2, 9]


def test_who_is_given_back_begins_once_more() -> None:
    turns = ClientQueue([0, 1], float, trainers=2)
    assert taken(turns, set(), 2) == [1, 0]
    turns.give_back(1)
    assert taken(turns, {0}, 2) == [1, None]
