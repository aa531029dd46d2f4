"""Processes that call a server: arrivals, restarts, and the end of a run."""

from __future__ import annotations

from fedml_dapper.platform.callers import MAX_STARTS, Arrival, Callers


def test_a_process_arrives_is_cut_off_and_comes_back_in_another_life() -> None:
    callers = Callers([1, 2])
    assert callers.missing == [1, 2]
    assert callers.arrived(1, "first life") is Arrival.FIRST
    assert callers.missing == [2]
    assert callers.arrived(1, "first life") is Arrival.STILL_HERE
    callers.lost(1)
    assert callers.missing == [1, 2]
    assert callers.has_been_online(1)
    assert callers.arrived(1, "second life") is Arrival.RESTARTED
    assert callers.missing == [2]


def test_a_process_may_be_started_again_so_often_in_each_round() -> None:
    callers = Callers([1])
    for start in range(MAX_STARTS + 1):
        callers.arrived(1, f"life {start}")
    assert not callers.starts_too_often(1)
    callers.arrived(1, "one life more")
    assert callers.starts_too_often(1)
    callers.begin_round()
    assert not callers.starts_too_often(1)


def test_who_is_refused_is_answered_in_the_life_in_which_it_called() -> None:
    callers = Callers([1])
    assert callers.last_life(1) is None
    callers.heard(1, "a life of an old version")
    assert callers.last_life(1) == "a life of an old version"
    assert not callers.has_been_online(1)


def test_everybody_has_left_when_all_who_are_online_have_confirmed_the_end() -> None:
    callers = Callers([1, 2, 3])
    callers.arrived(1, "a")
    callers.arrived(2, "b")
    callers.mark_finished(1)
    assert not callers.all_finished
    callers.lost(2)
    assert callers.all_finished


def test_a_lost_process_is_asked_less_and_less_often_until_it_answers() -> None:
    callers = Callers([1, 2, 3])
    callers.arrived(1, "a")
    callers.arrived(2, "a")  # 3 never came
    callers.lost(2)
    assert [callers.asked_again() for _ in range(8)] == [[2], [2], [], [2], [], [], [], [2]]
    assert callers.known == {1, 2}
    callers.answered(2)
    callers.answered(3)  # which is not known, and so has no version that was compared
    assert callers.online == {1, 2}
    callers.lost(2)
    assert callers.asked_again() == [2]
