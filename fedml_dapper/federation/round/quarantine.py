"""Quarantine of clients whose uploads were refused too often (``dapper_args.defence``)."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel, ConfigDict

from fedml_dapper.config import DefenceArgs
from fedml_dapper.config.limits import MAX_ROUNDS


class Standing(BaseModel):
    """Refused uploads and quarantines by client id; clients that have neither are not named."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strikes: dict[int, int] = {}
    """Number of refused uploads since the client's last quarantine."""
    out_until: dict[int, int] = {}
    """Last round of the client's quarantine; ``MAX_ROUNDS`` for one that an operator evicted."""


class Quarantine:
    """Counts refused uploads and leaves clients out; without ``defence.strikes`` only operators leave clients out."""

    def __init__(self, defence: DefenceArgs) -> None:
        self._defence = defence
        self.standing = Standing()

    def strike(self, client_id: int, round_: int) -> bool:
        """Count a refused upload in ``round_``; return whether it puts the client in quarantine from the next on.

        One that was evicted stays so.
        """
        if self.is_evicted(client_id):
            return False
        strikes = dict(self.standing.strikes)
        out_until = dict(self.standing.out_until)
        strikes[client_id] = strikes.get(client_id, 0) + 1
        caught = self._defence.strikes is not None and strikes[client_id] >= self._defence.strikes
        if caught:
            del strikes[client_id]
            out_until[client_id] = round_ + self._defence.quarantine_rounds
        self.standing = Standing(strikes=strikes, out_until=out_until)
        return caught

    def holds(self, client_id: int, round_: int) -> bool:
        """Return whether the client is left out of ``round_``."""
        return round_ <= self.standing.out_until.get(client_id, 0)

    def evict(self, client_id: int) -> None:
        """Leave the client out of all rounds to come."""
        out_until = {**self.standing.out_until, client_id: MAX_ROUNDS}
        self.standing = self.standing.model_copy(update={"out_until": out_until})

    @property
    def evicted(self) -> frozenset[int]:
        """The clients that an operator evicted."""
        return frozenset(client for client in self.standing.out_until if self.is_evicted(client))

    def evict_only(self, clients: Collection[int]) -> None:
        """Leave out these clients alone for good; quarantines stay as they are."""
        quarantined = {one: until for one, until in self.standing.out_until.items() if one not in self.evicted}
        out_until = {**quarantined, **dict.fromkeys(clients, MAX_ROUNDS)}
        self.standing = self.standing.model_copy(update={"out_until": out_until})

    def is_evicted(self, client_id: int) -> bool:
        """Return whether an operator evicted the client, so that only an operator lets it in again."""
        return self.standing.out_until.get(client_id, 0) >= MAX_ROUNDS

    def lift(self, client_id: int, round_: int) -> bool:
        """Let the client take part again; return whether it was left out of ``round_``."""
        if not self.holds(client_id, round_):
            return False
        out_until = {one: until for one, until in self.standing.out_until.items() if one != client_id}
        self.standing = self.standing.model_copy(update={"out_until": out_until})
        return True

    def out(self, round_: int) -> dict[int, int]:
        """Return the clients that are left out of ``round_``, with the last round of each one's quarantine."""
        return {one: until for one, until in self.standing.out_until.items() if round_ <= until}
