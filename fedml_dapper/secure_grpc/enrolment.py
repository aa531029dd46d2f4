"""Service that answers devices which join by a code: gRPC over TLS, by the server's certificate alone.

Strangers can reach it, so nothing of a call is kept: two kinds of calls, of one small message each, which gRPC itself
ends above ``RECEIVED_BYTES``, and connections that last a minute. :mod:`fedml_dapper.operations.registrar` says what
strangers may try there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from cryptography import x509

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.config.addresses import join_address
from fedml_dapper.config.section import check
from fedml_dapper.errors import ConfigError, DapperError
from fedml_dapper.operations.credentials import read_credentials
from fedml_dapper.operations.join_request import AUTHORITY, JOIN, SERVICE, JoinLaterError, JoinRefusedError
from fedml_dapper.operations.registrar import Registrar

RECEIVED_BYTES = 1 << 16
"""Largest message that gRPC takes; the registrar refuses smaller ones that are too large, and writes that down."""
CALLS = 256
"""Calls that wait or are answered at a time, each on a thread; further ones are refused. Whoever begins calls and sends
nothing takes four places by a connection, until that is a minute old, so that only a flood takes all."""
GRACE_SECONDS = 5.0
"""How long calls that are being answered may take after the service is told to stop."""
_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVED_BYTES),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message must not unfold into a large one
    ("grpc.so_reuseport", 0),  # a second service on the port is a mistake
    ("grpc.max_concurrent_streams", 4),  # per connection
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 10_000),  # also for those that begin a call and never end it
)


class EnrolmentService:
    """Listens until :meth:`stop`.

    Args:
        certificates: Folder with ca.pem, server.pem and server.key.
        address: ADDRESS:PORT to listen on.
        registrar: Decides.

    Raises:
        ConfigError: Devices would refuse the server's certificate, or the address cannot be listened on.
    """

    def __init__(self, certificates: Path, address: str, registrar: Registrar) -> None:
        self._registrar = registrar
        host = hosts_of_server(certificates)[0]
        dialled = join_address(host, address.rpartition(":")[2])
        values = {"server_address": dialled, "listen_address": address, "certificates": certificates}
        config = check(SecureGrpcConfig, values, where=f"--listen {address}")
        self.address = config.server_address
        """HOST:PORT that devices may dial; the server's certificate may name further hosts."""
        credentials = read_credentials(config, rank=0)
        self._server = grpc.server(
            ThreadPoolExecutor(CALLS, thread_name_prefix="enrolment"), options=_OPTIONS, maximum_concurrent_rpcs=CALLS
        )
        handlers = {
            AUTHORITY: grpc.unary_unary_rpc_method_handler(self._show_authority),
            JOIN: grpc.unary_unary_rpc_method_handler(self._join),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        tls = grpc.ssl_server_credentials([(credentials.key, credentials.certificate)])
        try:
            self._server.add_secure_port(address, tls)
        except RuntimeError as error:
            raise ConfigError(
                f"--listen {address}: cannot listen there; is another process there, or is the address not this"
                " machine's?"
            ) from error
        self._server.start()

    def wait(self) -> None:
        """Return once the service is stopped."""
        self._server.wait_for_termination()

    def stop(self) -> None:
        """Answer the calls that are there, and end."""
        self._server.stop(GRACE_SECONDS).wait()

    def _show_authority(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        return self._registrar.authority

    def _join(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return self._registrar.answer(request, context.peer())
        except JoinRefusedError as refusal:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refusal))
            raise
        except JoinLaterError as refusal:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(refusal))
            raise
        except DapperError:
            reason = "the service could not write the certificate down; the same command may be given again later"
            context.abort(grpc.StatusCode.UNAVAILABLE, reason)  # its log says more, which is not for strangers
            raise


def hosts_of_server(certificates: Path) -> list[str]:
    """Return the names and IP addresses in the certificate server.pem.

    Raises:
        ConfigError: There is no such certificate, or it names no host.
    """
    file = certificates / "server.pem"
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(f"{file}: not a certificate that names the hosts of a server") from error
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    if not hosts:
        raise ConfigError(f"{file}: names no host (subjectAltName)")
    return hosts
