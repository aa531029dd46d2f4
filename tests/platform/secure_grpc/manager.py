"""A server's manager as its transport knows it."""

from __future__ import annotations

from concurrent.futures import Future

from fedml_dapper.errors import ConfigError
from fedml_dapper.operations.orders import Order
from fedml_dapper.operations.status import Progress, ServerStatus, StatusBoard


class Manager:
    """Takes orders, and carries them out when a test says so."""

    def __init__(self) -> None:
        self.board = StatusBoard()
        self.board.post(Progress(state="round", round=3, rounds=10, standings={"silo-1": "at work"}))
        self.asked: list[tuple[Order, Future[str]]] = []
        self.is_busy = False

    def status(self) -> ServerStatus:
        return self.board.read()

    def ask(self, order: Order) -> Future[str]:
        future: Future[str] = Future()
        self.asked.append((order, future))
        if not self.is_busy:
            if order.act == "resume":
                future.set_exception(ConfigError("the run is not paused"))
            else:
                future.set_result(f"done: {order.act}")
        return future
