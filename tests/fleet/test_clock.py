"""The virtual clock by hand: who is in time, when rounds close, what varies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError

from fedml_dapper.config import ClockArgs
from fedml_dapper.errors import ConfigError
from fedml_dapper.fleet import ClientFit, Fit, Use, VirtualClock
from fedml_dapper.fleet.over_selection import over_selected
from fedml_dapper.fleet.profiles import Availability, DeviceProfile, Figure, Source, Speed
from fedml_dapper.pruning import Device

STATED: dict[str, Any] = {"mark": "derived", "how": "invented", "source": "here"}
SPEED = Speed(network="any", family="convolutions", gmacs_per_s=1.0, **STATED)


def plan(*seconds: float, watts: float | None = None, availability: dict[str, Any] | None = None) -> list[ClientFit]:
    """Clients that download in 1 s, upload in 2 s, and train for the rest."""
    device = DeviceProfile(
        description="a board",
        sources={"here": Source(title="these tests", address="here")},
        memory_mb=Figure(value=1000, **STATED),
        speeds=(SPEED,),
        watts=None if watts is None else Figure(value=watts, **STATED),
        availability=None if availability is None else Availability(**availability, **STATED),
    )
    return [
        ClientFit(
            client=Device(client_id, "scans", 10),
            profile=f"board{client_id}",
            fit=Fit(1, Use(1, 9, 1.0, total - 3, 2.0, 90), ()),
            speed=SPEED,
            stretch="none",
            device=device,
        )
        for client_id, total in enumerate(seconds)
    ]


def test_a_round_waits_for_its_slowest_client() -> None:
    times = VirtualClock(ClockArgs(), plan(10, 40, 20, watts=5), seed=1).times(1, 0.0, [0, 1, 2], wanted=3)
    assert times.round_s == 40
    assert times.in_time == {0, 1, 2}
    assert [one.arrives_s for one in times.clients] == [10, 40, 20]
    assert [one.joules for one in times.clients] == [5 * 7, 5 * 37, 5 * 17]
    assert (times.clients[0].download_s, times.clients[0].training_s, times.clients[0].upload_s) == (1, 7, 2)


def test_a_deadline_drops_who_is_later_and_closes_the_round() -> None:
    clock = VirtualClock(ClockArgs(deadline_s=30), plan(10, 40, 20), seed=1)
    times = clock.times(1, 0.0, [0, 1, 2], wanted=3)
    assert (times.round_s, times.in_time, times.late) == (30, {0, 2}, {1})
    assert [times.outcome(client) for client in range(3)] == ["in time", "late", "in time"]
    assert clock.times(1, 0.0, [0, 2], wanted=2).round_s == 20  # nobody is left to wait for


def test_over_selection_takes_the_first_and_closes_with_them() -> None:
    clock = VirtualClock(ClockArgs(over_selection=1.5), plan(10, 40, 20), seed=1)
    assert [clock.chosen(wanted) for wanted in (2, 3, 10)] == [3, 5, 15]
    times = clock.times(1, 0.0, [0, 1, 2], wanted=2)
    assert (times.round_s, times.in_time, times.late) == (20, {0, 2}, frozenset())
    assert times.outcome(1) == "surplus"


@dataclass(frozen=True)
class AtWork:
    client: int
    arrives_s: float


def test_who_is_not_done_goes_on_where_late_uploads_are_kept() -> None:
    clock = VirtualClock(ClockArgs(over_selection=1.5, late="kept"), plan(10, 40, 20), seed=1)
    times = clock.times(1, 0.0, [0, 1, 2], wanted=2)
    assert (times.round_s, times.in_time, times.arrived, times.under_way) == (20, {0, 2}, set(), {1})
    assert times.outcome(1) == "under way"
    times = clock.times(2, 20.0, [0, 2], wanted=2, at_work=[AtWork(1, 40.0)])  # 1 and 2 arrive at once
    assert (times.round_s, times.in_time, times.arrived, times.under_way) == (20, {0}, {1}, {2})
    times = clock.times(3, 40.0, [], wanted=2, at_work=[AtWork(2, 40.0)])
    assert (times.round_s, times.arrived) == (0, {2})


def test_a_deadline_closes_rounds_in_which_others_go_on() -> None:
    clock = VirtualClock(ClockArgs(deadline_s=15, late="kept"), plan(10, 40, 20), seed=1)
    times = clock.times(1, 0.0, [0, 1, 2], wanted=3)
    assert (times.round_s, times.in_time, times.under_way) == (15, {0}, {1, 2})
    times = clock.times(2, 15.0, [0], wanted=3, at_work=[AtWork(1, 40.0), AtWork(2, 20.0)])
    assert (times.round_s, times.in_time, times.arrived) == (15, {0}, {2})


def test_a_device_that_goes_off_before_it_is_done_never_arrives() -> None:
    clock = VirtualClock(ClockArgs(deadline_s=12, late="kept"), plan(10, 15, 40, availability=DAY), seed=1)
    times = clock.times(1, 5, [0, 1, 2], wanted=3)  # on until second 20, so for 15 s
    assert [times.outcome(client) for client in range(3)] == ["in time", "under way", "gone"]


def test_chosen_clients_are_counted_without_rounding_errors() -> None:
    assert VirtualClock(ClockArgs(over_selection=1.1), plan(10), seed=1).chosen(10) == 11  # 1.1 x 10 is above 11


def test_times_vary_with_client_and_round_alone() -> None:
    clock = VirtualClock(ClockArgs(jitter=0.5), plan(*[10] * 400), seed=1)
    everyone = clock.times(1, 0.0, range(400), wanted=400)
    assert clock.times(1, 0.0, [7], wanted=1).clients[0] == everyone.clients[7]
    assert clock.times(2, 0.0, [7], wanted=1).clients[0] != everyone.clients[7]
    assert (
        VirtualClock(ClockArgs(jitter=0.5), plan(*[10] * 400), seed=2).times(1, 0.0, [7], 1).clients[0]
        != (everyone.clients[7])
    )
    for field, expected in (("training_s", 7), ("upload_s", 2)):
        logs = sorted(math.log(getattr(one, field) / expected) for one in everyone.clients)
        mean = sum(logs) / 400
        deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / 400)
        assert mean == pytest.approx(0, abs=0.1)
        assert deviation == pytest.approx(0.5, rel=0.15)
    assert all(one.upload_s == pytest.approx(2 * one.download_s) for one in everyone.clients)  # one network


def test_a_deadline_that_nobody_meets_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"nobody is done within 5 s; fastest is client 0 \(board0\) with 10.0 s"):
        VirtualClock(ClockArgs(deadline_s=5), plan(10, 40), seed=1)


DAY = {"period_s": 100, "on_s": [[0, 20], [50, 60], [90, 100]]}


@pytest.mark.parametrize(
    ("at_s", "stays_s"), [(0, 20), (19, 1), (20, 0), (49, 0), (55, 5), (95, 25), (195, 25), (260, 0)]
)
def test_a_trace_repeats_itself_and_goes_on_over_its_end(at_s: float, stays_s: float) -> None:
    assert Availability(**DAY, **STATED).stays_s(at_s) == stays_s
    assert Availability(period_s=10, on_s=((0, 10),), **STATED).stays_s(7) == math.inf


def test_devices_that_are_off_are_not_there_and_those_that_go_off_send_nothing() -> None:
    clock = VirtualClock(ClockArgs(), plan(10, 15, 40, availability=DAY), seed=1)
    assert clock.online(1, 30, [0, 1, 2]) == []
    assert clock.online(1, 0, [0, 1, 2]) == [0, 1, 2]
    times = clock.times(1, 5, [0, 1, 2], wanted=3)  # on until second 20, so for 15 s
    assert [times.outcome(client) for client in range(3)] == ["in time", "in time", "gone"]
    assert times.round_s == 40  # without a deadline the server waits until the upload should have come
    limited = VirtualClock(ClockArgs(deadline_s=30), plan(10, 15, 40, availability=DAY), seed=1)
    assert limited.times(1, 5, [0, 1, 2], wanted=3).round_s == 30
    early = VirtualClock(ClockArgs(deadline_s=12), plan(10, 15, 40, availability=DAY), seed=1)
    assert early.times(1, 5, [0, 1, 2], wanted=3).late == {1, 2}  # they were on when the round closed without them
    enough = VirtualClock(ClockArgs(over_selection=1.5), plan(10, 15, 40, availability=DAY), seed=1)
    times = enough.times(1, 5, [0, 1, 2], wanted=2)
    assert (times.round_s, times.outcome(2)) == (15, "surplus")  # it went off when nobody waited for it any more
    assert clock.times(1, 0, [], wanted=3).round_s == 0


def test_a_share_is_drawn_for_each_client_and_round() -> None:
    clock = VirtualClock(ClockArgs(), plan(*[10] * 1000, availability={"share": 0.3}), seed=1)
    online = clock.online(1, 0, range(1000))
    assert 250 < len(online) < 350
    assert clock.online(1, 77, range(1000)) == online
    assert clock.online(2, 0, range(1000)) != online
    assert clock.times(1, 0, online[:2], wanted=2).in_time == set(online[:2])


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"share": 0.5, "period_s": 10, "on_s": [[0, 5]]},
        {"period_s": 10},
        {"on_s": [[0, 5]]},
        {"share": 1.5},
        {"period_s": 10, "on_s": [[0, 15]]},
        {"period_s": 10, "on_s": [[5, 2]]},
        {"period_s": 10, "on_s": [[0, 5], [5, 8]]},
        {"period_s": 10, "on_s": []},
    ],
)
def test_an_availability_that_says_nothing_or_too_much_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Availability(**wrong, **STATED)


def test_rounding_asks_nobody_too_many() -> None:
    assert [over_selected(wanted, 1.1) for wanted in (50, 100, 51)] == [55, 110, 57]
    assert over_selected(7, 1.0) == 7
