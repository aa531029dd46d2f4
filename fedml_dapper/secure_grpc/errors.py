"""Words for errors of transports."""

from __future__ import annotations

import grpc


def reason_of(error: Exception) -> str:
    """Return the message of a transport's error."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
