"""Devices that come and go (``training_type: cross_device``): a round asks some of those that have called lately."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from fedml_dapper.config import CheckInArgs
from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.fleet.over_selection import over_selected

PERIODS = 2
"""Periods of ``come_back_s`` after which a device that has not called is gone."""


class CheckedIn(RoundFeature):
    """Devices that are there, from which rounds are drawn, more of them than have to answer (over-selection).

    Args:
        args: Settings of over-selection and of the time between calls.
        fewest: Fewest uploads of a round; with fewer it changes nothing.
        left_out: Returns the clients in quarantine, or evicted, which are not asked though they are there.
        may_train: Returns whether a client has a level that is trained; others are not asked either.
        clock: Seconds.
    """

    def __init__(
        self,
        args: CheckInArgs,
        fewest: int,
        left_out: Callable[[], Collection[int]],
        may_train: Callable[[int], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._args = args
        self._fewest = fewest
        self._left_out = left_out
        self._may_train = may_train
        self._clock = clock
        self._called: dict[int, float] = {}
        """When each device called last, by client id."""
        self.last_call: float | None = None
        """When any device called last, in seconds of the clock; None where none has."""

    def note(self, client_id: int) -> None:
        """Note that a device calls."""
        self._called[client_id] = self.last_call = self._clock()

    def forget(self, client_id: int) -> None:
        """Take a device for gone until it calls again."""
        self._called.pop(client_id, None)

    def present(self) -> set[int]:
        """Return the clients whose device has called lately, and forget the others."""
        since = self._clock() - PERIODS * self._args.come_back_s
        self._called = {client_id: at for client_id, at in self._called.items() if at >= since}
        return set(self._called)

    def able(self) -> set[int]:
        """Return the clients that are there and may be asked."""
        return set(filter(self._may_train, self.present().difference(self._left_out())))

    def left_out(self) -> set[int]:
        """Return the clients that are there and in quarantine, or evicted."""
        return self.present().intersection(self._left_out())

    def available(self, client_ids: Sequence[int]) -> Sequence[int]:
        able = self.able()
        return [client_id for client_id in client_ids if client_id in able]

    def wanted(self, number: int) -> int:
        return over_selected(number, self._args.over_selection)

    def closing(self, opened: OpenRound, unfinished: Sequence[int]) -> str | None:
        answered = len(opened.answered())
        if answered >= self._fewest:
            return None
        return f"{answered} of the {self._fewest} uploads that min_clients_per_round asks for came in time"
