"""The way to a server through an HTTP proxy, which passes on what it cannot read (CONNECT)."""

from __future__ import annotations

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.config.addresses import is_loopback
from fedml_dapper.config.comm_args import ENVIRONMENT


def may_be_proxied(config: SecureGrpcConfig) -> bool:
    """Return whether the server may be behind a proxy, which then finds it by name. This machine itself never is."""
    return config.http_proxy is not None and not is_loopback(config.server_host)


def proxy_options(config: SecureGrpcConfig) -> tuple[tuple[str, int | str], ...]:
    """Return gRPC's options of a channel for the proxy of the settings; by default none is used, whatever is there."""
    if not may_be_proxied(config):
        return (("grpc.enable_http_proxy", 0),)
    if config.http_proxy == ENVIRONMENT:
        return (("grpc.enable_http_proxy", 1),)
    return (("grpc.enable_http_proxy", 1), ("grpc.http_proxy", str(config.http_proxy)))
