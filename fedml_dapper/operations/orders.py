"""Orders of an operator to a running server, each one gRPC call with the certificate of an admin."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Literal, Protocol, get_args

import grpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedml_dapper import __version__
from fedml_dapper.errors import ConfigError, DapperError, ProtocolError
from fedml_dapper.operations.credentials import Credentials
from fedml_dapper.operations.proxy import proxy_options
from fedml_dapper.operations.status import ServerStatus

STEER = "/fedml_dapper.Federation/Steer"
TOKEN_KEY = "authorization"
MAX_ORDER_BYTES = 1 << 12
MAX_ANSWER_BYTES = 1 << 26
CALL_SECONDS = 30.0
"""How long the call of an order may take."""

Act = Literal["status", "pause", "resume", "evict", "lift", "end"]
ACTS: tuple[Act, ...] = get_args(Act)
ON_A_SILO: tuple[Act, ...] = ("evict", "lift")


class Order(BaseModel):
    """An operator's order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    act: Act
    silo: int | None = Field(default=None, ge=1, strict=True)
    """Rank of the silo, for acts on one silo."""

    @model_validator(mode="after")
    def _silo_where_it_counts(self) -> Order:
        if (self.silo is None) == (self.act in ON_A_SILO):
            raise ValueError(f"{self.act} goes {'with' if self.act in ON_A_SILO else 'without'} a silo")
        return self


class Answer(BaseModel):
    """Answer to an order that was carried out."""

    model_config = ConfigDict(frozen=True)

    said: str
    """What was done, in one line."""
    status: ServerStatus
    """Status of the server after it."""


class Desk(Protocol):
    """Interface of a manager to operators; an edge's manager answers with its status alone."""

    def status(self) -> ServerStatus:
        """Return the status at once; safe from any thread."""

    def ask(self, order: Order) -> Future[str]:
        """Have the order carried out on the thread of the server's loop. The future may be cancelled until then."""


def read_order(request: bytes) -> Order:
    """Parse an order; raise :class:`ProtocolError` for other bytes."""
    if len(request) > MAX_ORDER_BYTES:
        raise ProtocolError(f"an order takes at most {MAX_ORDER_BYTES} bytes")
    try:
        return Order.model_validate_json(request)
    except ValidationError as error:
        raise ProtocolError("that is no order") from error


def give_order(address: str, credentials: Credentials, order: Order, http_proxy: str | None = None) -> Answer:
    """Send an order to the server at ``address`` (HOST:PORT), through a proxy if one is set, and return its answer.

    Raises:
        DapperError: There is no server, or it refuses the order or cannot carry it out, and nothing has changed; or its
            answer is none that this version knows.
    """
    tls = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    options = (*proxy_options(address, http_proxy), ("grpc.max_receive_message_length", MAX_ANSWER_BYTES))
    metadata = () if credentials.token is None else ((TOKEN_KEY, credentials.token),)
    with grpc.secure_channel(address, tls, options=options) as channel:
        call = channel.stream_stream(STEER)(
            iter([order.model_dump_json().encode()]), timeout=CALL_SECONDS, metadata=metadata
        )
        try:
            answer = b"".join(call)
        except grpc.RpcError as error:
            details = str(error.details())
            if "CERTIFICATE_VERIFY_FAILED" in details:
                raise ConfigError(
                    f"the server at {address} shows a certificate that ca.pem does not vouch for, or one of another"
                    f" name: {details}"
                ) from error
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise DapperError(f"no server answers at {address}: {details}") from error
            raise DapperError(f"the server at {address} refuses: {details}") from error
    try:
        return Answer.model_validate_json(answer)
    except ValidationError as error:
        done = "" if order.act == "status" else f"; whether it carried out `{order.act}`, its log and `status` say"
        raise DapperError(
            f"the server at {address} answers in a form that fedml_dapper {__version__} does not know; ask it with the"
            f" version that it has{done}"
        ) from error
