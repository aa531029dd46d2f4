"""Operators' orders to a run, carried out between two events of the server's loop."""

from __future__ import annotations

import logging
from typing import Protocol

from fedml_dapper.errors import ConfigError
from fedml_dapper.federation import RunJournal, Server
from fedml_dapper.operations.orders import Order

LOGGER = logging.getLogger(__name__)
EVICTED = "the operator has evicted this silo"


class Steered(Protocol):
    """Interface of a run's manager to operators' orders."""

    def go_on(self) -> None:
        """Open the next round or end the run, where the manager waits for nothing else."""

    def expel(self, client_id: int) -> None:
        """Tell a silo that it is evicted, and go on without it."""


class Steering:
    """Carries out orders, and keeps those that concern the next round, for the manager to follow."""

    def __init__(self, server: Server, manager: Steered, num_clients: int, journal: RunJournal) -> None:
        self._server = server
        self._quarantine = server.attendance.quarantine
        self._journal = journal
        self._manager = manager
        self._num_clients = num_clients
        self.is_paused = False
        self.is_last_round = False
        """Whether the run ends with the open round."""

    def carry_out(self, order: Order) -> str:
        """Carry out an order, and return a line that says what was done.

        Raises:
            ConfigError: The order cannot be carried out; nothing has changed.
        """
        report = self._carry_out(order)
        LOGGER.warning("by order of the operator: %s", report)
        return report

    def _carry_out(self, order: Order) -> str:
        round_ = self._server.state.round
        match order.act:
            case "pause":
                _refuse_if(self.is_paused, "the run is paused, or about to be, already")
                self.is_paused = True
                return f"no round is opened any more until it is resumed; {round_} are closed"
            case "resume":
                _refuse_if(not self.is_paused, "the run is not paused")
                self.is_paused = False
                self._manager.go_on()
                return f"rounds go on; {round_} are closed"
            case "end":
                _refuse_if(self.is_last_round, "the run is about to end already")
                self.is_last_round = True
                self._manager.go_on()
                return f"no other round is opened, and the run ends; {round_} are closed"
            case "evict":
                client_id = self._client(order)
                _refuse_if(self._quarantine.is_evicted(client_id), f"silo-{order.silo} is evicted already")
                self._journal.evictions_change(self._quarantine.evicted | {client_id})
                self._server.evict(client_id)
                self._manager.expel(client_id)
                return f"silo-{order.silo} is evicted until that is lifted"
            case "lift":
                client_id = self._client(order)
                is_out = client_id in self._server.attendance.left_out
                _refuse_if(not is_out, f"silo-{order.silo} is in no quarantine, nor evicted")
                if self._quarantine.is_evicted(client_id):
                    self._journal.evictions_change(self._quarantine.evicted - {client_id})
                self._server.attendance.lift(client_id)
                return f"silo-{order.silo} takes part again from the next round on; an evicted one once it is started"
            case "status":
                return ""

    def _client(self, order: Order) -> int:
        _refuse_if(order.silo is None or order.silo > self._num_clients, f"there is no silo of rank {order.silo}")
        assert order.silo is not None
        return order.silo - 1


def _refuse_if(condition: bool, reason: str) -> None:
    if condition:
        raise ConfigError(reason)
