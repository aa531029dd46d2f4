"""FedML's transports as we use them."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml.core.distributed.communication.message import Message

from fedml_dapper.platform import transports
from fedml_dapper.platform.transports import GrpcTransport

from .processes import address_table

WITHIN_S = 300


class SlowToReturn(queue.Queue[bytes]):
    """Hands a message over, and has the call that brought it answered when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.has_one = threading.Event()
        self.may_return = threading.Event()

    def put(self, item: bytes, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self.has_one.set()
        self.may_return.wait(WITHIN_S)


def test_who_leaves_answers_the_call_that_told_it_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_ANSWER_SECONDS", float(WITHIN_S))
    table = str(address_table(tmp_path, 1))
    server, silo = (GrpcTransport(table, client_rank=rank, client_num=1) for rank in (0, 1))
    told = silo.grpc_servicer.message_q = SlowToReturn()
    stop = silo.grpc_server.stop

    def stop_and_let_return(grace: float | None) -> threading.Event:
        stopped: threading.Event = stop(grace)  # which does not wait
        told.may_return.set()
        return stopped

    silo.grpc_server.stop = stop_and_let_return
    failed: list[Exception] = []

    def send() -> None:
        try:
            server.send_message(Message("finish", 0, 1))
        except Exception as error:  # noqa: BLE001  # looked at below
            failed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    assert told.has_one.wait(WITHIN_S)
    silo.stop_receive_message()
    sender.join(WITHIN_S)
    server.stop_receive_message()
    assert failed == []  # cut off, its sender would take the silo for lost
