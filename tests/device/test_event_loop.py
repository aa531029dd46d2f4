"""A process's event loop: when a deadline is noticed, whatever else comes in."""

from __future__ import annotations

from typing import Any

from fedml_dapper.device.event_loop import EventLoop

MANY = 10_000


class Recorded(EventLoop):
    """Notes what it handles, and ends at the deadline."""

    com_manager: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.happened: list[str] = []

    def handles(self, kind: Any, message: Any) -> bool:
        self.happened.append(kind)
        if kind == "flood":
            self.receive_message("flood", None)
        elif kind == "all is done":
            self.set_deadline(None)
        return True

    def on_deadline(self) -> None:
        self.happened.append("the deadline")
        self.stop()

    def turns(self, most: int = MANY) -> list[str]:
        for _ in range(most):
            if self._stopped:
                break
            self._turn()
        return self.happened


def test_a_peer_that_sends_without_end_does_not_keep_the_deadline_away() -> None:
    loop = Recorded()
    loop.receive_message("flood", None)
    loop.set_deadline(0)
    assert loop.turns() == ["flood", "the deadline"]


def test_what_came_in_time_is_handled_before_the_deadline() -> None:
    loop = Recorded()
    for kind in ("first", "second"):
        loop.receive_message(kind, None)
    loop.set_deadline(0)
    assert loop.turns() == ["first", "second", "the deadline"]


def test_a_deadline_that_was_cancelled_by_what_came_in_time_is_none() -> None:
    loop = Recorded()
    for kind in ("all is done", "flood"):
        loop.receive_message(kind, None)
    loop.set_deadline(0)
    assert set(loop.turns(100)) == {"all is done", "flood"}
