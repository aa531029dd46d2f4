"""A peer that says whatever a test wants, with whatever it has to show."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.operations.credentials import Credentials
from fedml_dapper.secure_grpc.parcel import Envelope, Parcel

from ...waiting import wait_until

UPLOAD, STATUS, MODEL, CHECK, FINISH = 3, 5, 2, 6, 7
"""FedML's message types."""
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),  # or the window may grow until all that is left unread fits into it
)
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
SECONDS = 300.0
"""How long a call may take: no promise, only the end of waiting."""
DELIVER, FETCH = "/fedml_dapper.Federation/Deliver", "/fedml_dapper.Federation/Fetch"
TRY_UP, TRY_DOWN = "/fedml_dapper.Federation/TryUp", "/fedml_dapper.Federation/TryDown"


def parcel(payload: bytes = b"", **changes: Any) -> Parcel:
    """What silo 1 might send, with anything changed."""
    key = "model_params" if payload else None
    fields = {"session": "0" * 32, "counter": 1, "kind": UPLOAD, "sender": 1, "receiver": 0, "payload_key": key}
    return Parcel(Envelope(**{**fields, "payload_bytes": len(payload), **changes}), payload)


class RawSilo:
    """Speaks the protocol by hand."""

    def __init__(
        self, config: SecureGrpcConfig, credentials: Credentials | None, token: str | None = None,
        options: tuple[tuple[str, int], ...] = (),
    ) -> None:  # fmt: skip
        authority = (config.certificates / "ca.pem").read_bytes()
        shown = (credentials.key, credentials.certificate) if credentials is not None else (None, None)
        tls = grpc.ssl_channel_credentials(authority, *shown)
        self._channel = grpc.secure_channel(config.server_address, tls, options=OPTIONS + options)
        self._receipt = b"{}"
        self._metadata = () if token is None else (("authorization", token),)

    def deliver(
        self, frames: Iterator[bytes], timeout: float | None = SECONDS, compression: grpc.Compression | None = None
    ) -> bytes:
        call = self._channel.stream_unary(DELIVER)
        return call(frames, timeout=timeout, metadata=self._metadata, compression=compression)  # type: ignore[no-any-return]

    def begin(self, frames: Iterator[bytes]) -> Any:
        return self._channel.stream_unary(DELIVER).future(frames, timeout=SECONDS, metadata=self._metadata)

    def begin_fetch(self) -> Any:
        """A fetch that reads nothing yet."""
        return self._channel.unary_stream(FETCH)(b"{}", timeout=SECONDS, metadata=self._metadata)

    def begin_wordless(self, method: str) -> Any:
        """A call that says nothing, and does not end either."""
        silence = iter(threading.Event().wait, True)
        return self._channel.stream_stream(method)(silence, timeout=SECONDS, metadata=self._metadata)

    def try_up(self, frames: Iterator[bytes]) -> bytes:
        call = self._channel.stream_unary(TRY_UP)
        return call(frames, timeout=SECONDS, metadata=self._metadata)  # type: ignore[no-any-return]

    def begin_try_down(self, size: int) -> Any:
        return self._channel.unary_stream(TRY_DOWN)(
            size.to_bytes(8, "little"), timeout=SECONDS, metadata=self._metadata
        )

    def try_down(self, size: int) -> list[bytes]:
        return list(self.begin_try_down(size))

    def fetch(self, timeout: float = SECONDS) -> list[bytes]:
        """The frames of the next message; acknowledges the one before."""
        call = self._channel.unary_stream(FETCH)
        frames = list(call(self._receipt, timeout=timeout, metadata=self._metadata))
        envelope = json.loads(frames[0])
        self._receipt = json.dumps({"session": envelope["session"], "counter": envelope["counter"]}).encode()
        return frames


def begun(silo: Callable[[], RawSilo], frames: Callable[[], Iterator[bytes]]) -> Any:
    """A delivery of silo 1 that has begun, and goes on as ``frames`` come."""
    call = silo().begin(frames())
    no_message = parcel(receiver=2)  # refused in any case

    def has_begun() -> bool:
        nonlocal call
        if call.done():  # the call that asks came first, and took its place
            call = silo().begin(frames())
        return refused(lambda: silo().deliver(no_message.frames()))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED

    wait_until(has_begun)
    return call


def refused(attempt: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """The status and the words with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        attempt()
    return caught.value.code(), caught.value.details()
