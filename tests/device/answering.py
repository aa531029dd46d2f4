"""A server of calls that answers as a test likes, and devices that say what it wants."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.orders import Desk
from fedml_dapper.secure_grpc import AnyMessage, Caller, CallServer, Message, OrderCalls

from ..platform.processes import ROOT

NUM_DEVICES = 2
MAX_MB = 4


def made(folder: Path) -> Path:
    subprocess.run(["bash", ROOT / "run" / "make_certs.sh", folder, "3"], check=True, capture_output=True)
    return folder


class Answering:
    """A server on an event loop of its own, which says what it was told in capitals."""

    def __init__(
        self, config: SecureGrpcConfig, folder: Path | None = None, desk: Desk | None = None,
        not_awaited: Callable[[int], str | None] = lambda rank: None,
    ) -> None:  # fmt: skip
        self.heard: list[tuple[int, AnyMessage]] = []
        self.cut_off: list[int] = []
        """Ranks of devices that may no longer call."""
        self.says = b""
        """The payload of every answer; what was heard, backwards, where it is empty."""
        self._config, self._folder, self._not_awaited, self._desk = config, folder, not_awaited, desk
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        config = self._config
        audit = AuditLog(config.audit_file)
        orders = None if self._desk is None else OrderCalls(self._desk, audit)
        self.server = server = CallServer(
            config,
            CredentialFiles(config, 0),
            NUM_DEVICES,
            self._answer,
            audit,
            orders,
            self._folder,
            self._not_awaited,
            self.cut_off.append,
        )
        await server.start()
        looking = asyncio.create_task(server.look_at_files())
        self._ready.set()
        await self._over.wait()
        looking.cancel()
        await server.stop()

    def _answer(self, rank: int, message: AnyMessage) -> AnyMessage:
        if message.get_type() == "nonsense":
            raise ProtocolError("nobody says that")
        self.heard.append((rank, message))
        answer = Message(say.TAKEN, 0, rank)
        answer.add_params("said", str(message.get("said")).upper())
        answer.add_params(say.MODEL, self.says or bytes(message.get(say.MODEL) or b"")[::-1])
        return answer

    def stop(self) -> None:
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)


def caller(config: SecureGrpcConfig, rank: int, folder: Path | None = None) -> Caller:
    return Caller(config, CredentialFiles(config, rank), rank, folder)


def saying(text: str, rank: int, payload: bytes = b"") -> AnyMessage:
    message = Message(say.CLIENT_STATUS, rank, 0)
    message.add_params("said", text)
    if payload:
        message.add_params(say.MODEL, payload)
    return message
