"""A server's manager as its transport knows it."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from fedml_dapper.errors import ConfigError
from fedml_dapper.operations.orders import Order
from fedml_dapper.operations.status import Progress, ServerStatus, StatusBoard


class Waiting(Future[str]):
    """Of an order that nobody carries out: who waits for it has waited long enough when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.time_is_up = threading.Event()

    def result(self, timeout: float | None = None) -> str:
        self.time_is_up.wait()
        return super().result(0)


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
        future: Future[str] = Waiting() if self.is_busy else Future()
        self.asked.append((order, future))
        if not self.is_busy:
            if order.act == "resume":
                future.set_exception(ConfigError("the run is not paused"))
            else:
                future.set_result(f"done: {order.act}")
        return future
