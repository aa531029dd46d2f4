"""FedML's transports as we use them."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("fedml", reason="fedml is not installed")

from fedml.core.distributed.communication.message import Message

from fedml_dapper.platform.transports import GrpcTransport

from .processes import address_table


class SlowToReturn(queue.Queue[bytes]):
    """Hands a message over some time before the call that brought it is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.has_one = threading.Event()

    def put(self, item: bytes, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self.has_one.set()
        time.sleep(0.5)


def test_who_leaves_answers_the_call_that_told_it_to(tmp_path: Path) -> None:
    table = str(address_table(tmp_path, 1))
    server, silo = (GrpcTransport(table, client_rank=rank, client_num=1) for rank in (0, 1))
    silo.grpc_servicer.message_q = SlowToReturn()
    failed: list[Exception] = []

    def send() -> None:
        try:
            server.send_message(Message("finish", 0, 1))
        except Exception as error:  # noqa: BLE001  # looked at below
            failed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    assert silo.grpc_servicer.message_q.has_one.wait(30)
    silo.stop_receive_message()
    sender.join(30)
    server.stop_receive_message()
    assert failed == []  # cut off, its sender would take the silo for lost
