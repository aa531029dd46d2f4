"""Event loop of FedML's managers, which calls the handlers that are registered with FedML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedml.core.distributed.fedml_comm_manager import FedMLCommManager

from fedml_dapper.device.event_loop import EventLoop
from fedml_dapper.secure_grpc import AnyMessage, Transport


class ManagerLoop(EventLoop, FedMLCommManager):  # type: ignore[misc]  # fedml is untyped
    """Base class of managers; it goes before FedML's own class among bases."""

    def __init__(self, connect: Callable[[], Transport]) -> None:
        EventLoop.__init__(self)
        self._connect = connect

    def _init_manager(self) -> None:
        """FedML's hook, called by its constructor: connect the transport."""
        self.com_manager = self._connect()
        self.com_manager.add_observer(self)

    def handles(self, kind: Any, message: AnyMessage) -> bool:
        if kind not in self.message_handler_dict:
            return False
        FedMLCommManager.receive_message(self, kind, message)  # FedML's dispatch to the registered handler
        return True
