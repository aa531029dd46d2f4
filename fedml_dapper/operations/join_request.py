"""The two calls by which a device joins: it fetches the authority, and then asks that authority for a certificate.

The first call goes over a connection that proves nothing: whatever certificate the other side shows is taken. What it
answers is public, and is worth nothing until it is compared with a fingerprint. The second call, which carries the
code's secret, is made over a new connection that trusts that authority alone and checks the name of the host. Both go
through the HTTP proxy that the device is told.
"""

from __future__ import annotations

import ssl

import grpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedml_dapper.config.addresses import split_address
from fedml_dapper.errors import DapperError, ProtocolError, printable
from fedml_dapper.operations.proxy import connected, proxy_options

SERVICE = "fedml_dapper.Joining"
AUTHORITY = "Authority"
"""Name of the call that is answered by ca.pem; its request is empty."""
JOIN = "Join"
"""Name of the call whose request is a :class:`JoinRequest`, and whose answer is a certificate (PEM)."""
MAX_REQUEST_BYTES = 1 << 13
MAX_ANSWER_BYTES = 1 << 20
CALL_SECONDS = 60.0
"""How long a call, and the wait for a connection, may take."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small answer must not unfold into a large one
)


class JoinRequest(BaseModel):
    """A device's request for a certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(ge=1, strict=True)
    """Rank of the silo that its code is for."""
    secret: str = Field(max_length=100, repr=False)
    """The code's secret."""
    request: str = Field(max_length=4096)
    """Request for a certificate (PEM), signed by the device's key."""


class JoinRefusedError(DapperError):
    """The service refuses a device, and would do so again."""


class JoinLaterError(DapperError):
    """The service refuses a device for now."""


def read_join_request(content: bytes) -> JoinRequest:
    """Parse a request; raise :class:`ProtocolError` for other bytes."""
    if len(content) > MAX_REQUEST_BYTES:
        raise ProtocolError(f"a request to join takes at most {MAX_REQUEST_BYTES} bytes")
    try:
        return JoinRequest.model_validate_json(content)
    except ValidationError as error:
        raise ProtocolError("that is no request to join") from error


def fetch_authority(address: str, http_proxy: str | None = None) -> bytes:
    """Return the ca.pem that whoever answers at ``address`` (HOST:PORT) sends, which proves nothing.

    Raises:
        DapperError: Nobody answers there, or in another way.
    """
    try:
        shown = _shown_certificate(address, http_proxy)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DapperError(f"nobody answers at {address} as `fedml-dapper silos enroll` would: {reason}") from error
    return _call(address, http_proxy, shown.encode(), AUTHORITY, b"", "nothing was sent")


def _shown_certificate(address: str, http_proxy: str | None) -> str:
    """Return the certificate (PEM) that whoever listens at ``address`` shows, unchecked."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    host = split_address(address)[0]
    with connected(address, http_proxy, CALL_SECONDS) as line, unchecked.wrap_socket(line, server_hostname=host) as tls:
        shown = tls.getpeercert(binary_form=True)
    if shown is None:
        raise OSError("it shows no certificate")
    return ssl.DER_cert_to_PEM_cert(shown)


def ask_for_certificate(address: str, authority: bytes, request: JoinRequest, http_proxy: str | None = None) -> bytes:
    """Return the certificate (PEM) that the federation of ``authority`` answers ``request`` with.

    Raises:
        JoinRefusedError: It refuses.
        JoinLaterError: It refuses for now; the same request may be answered later.
        DapperError: Nobody of that federation, and of the name of the host, answers at ``address``.
    """
    content = request.model_dump_json().encode()
    return _call(address, http_proxy, authority, JOIN, content, "the code was not sent")


def _call(address: str, http_proxy: str | None, trusted: bytes, name: str, content: bytes, unsent: str) -> bytes:
    tls = grpc.ssl_channel_credentials(trusted)
    with grpc.secure_channel(address, tls, options=(*_OPTIONS, *proxy_options(address, http_proxy))) as channel:
        try:
            answer: bytes = channel.unary_unary(f"/{SERVICE}/{name}")(content, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise _explained(error, address, unsent) from error
    return answer


def _explained(error: grpc.RpcError, address: str, unsent: str) -> DapperError:
    details = str(error.details())
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification Check failed" in details:
        return DapperError(
            f"{address} shows a certificate that its authority does not vouch for, or of another name, or one that is"
            f" not valid by this machine's clock; {unsent} ({printable(details)})"
        )
    match error.code():
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.INVALID_ARGUMENT:
            return JoinRefusedError(f"{address} refuses: {printable(details)}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return JoinLaterError(f"{address} refuses for now: {printable(details)}")
    return DapperError(f"nobody answers at {address} as `fedml-dapper silos enroll` would: {printable(details)}")
