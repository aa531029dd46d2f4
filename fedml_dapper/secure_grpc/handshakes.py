"""TLS of a server whose certificate and authorities may change while it runs."""

from __future__ import annotations

import grpc

from fedml_dapper.operations.credentials import CredentialFiles, Credentials


def tls_of(credentials: CredentialFiles) -> grpc.ServerCredentials:
    """Return mutual TLS by the present ``credentials``, which gRPC asks for anew before every handshake."""
    shown = credentials.current

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        if credentials.current is shown:
            return None
        shown = credentials.current
        return _certificates(shown)

    return grpc.dynamic_ssl_server_credentials(_certificates(shown), renewed, require_client_authentication=True)


def _certificates(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.key, credentials.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=credentials.authority)
