"""How fast a silo's line to the server is, for the profile of its device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.credentials import Credentials
from fedml_dapper.errors import DapperError
from fedml_dapper.platform.secure_grpc.endpoint import SERVICE, TRIAL_BYTES, TRY_DOWN, TRY_UP
from fedml_dapper.platform.secure_grpc.parcel import blank_frames
from fedml_dapper.platform.secure_grpc.silo import metadata_of, open_channel, raise_if_final

FIRST_BYTES = 1 << 18
ENOUGH_SECONDS = 1.0
CALL_SECONDS = 120.0
"""A trial begins with so many bytes, and doubles them until one takes so long, or as much as one may."""


@dataclass(frozen=True)
class LineSpeed:
    """Mbit/s, 10^6 bits a second, through everything that messages go through."""

    downlink_mbps: float
    uplink_mbps: float


def measure_line(
    config: SecureGrpcConfig, credentials: Credentials, clock: Callable[[], float] = time.perf_counter
) -> LineSpeed:
    """Time the line of the silo of these ``credentials`` to the server, which has to be up; a run may go on meanwhile.

    Raises :class:`DapperError` where there is no server, or it refuses this silo.
    """
    metadata = metadata_of(credentials)
    with open_channel(config, credentials) as channel:
        up = channel.stream_unary(f"/{SERVICE}/{TRY_UP}")
        down = channel.stream_stream(f"/{SERVICE}/{TRY_DOWN}")

        def send(size: int) -> None:
            up(blank_frames(size), timeout=CALL_SECONDS, metadata=metadata)

        def fetch(size: int) -> None:
            for _ in down(iter([size.to_bytes(8, "little")]), timeout=CALL_SECONDS, metadata=metadata):
                pass

        try:
            return LineSpeed(downlink_mbps=_mbps(fetch, clock), uplink_mbps=_mbps(send, clock))
        except grpc.RpcError as error:
            raise_if_final(error, config.server_address)
            raise DapperError(
                f"the line to {config.server_address} cannot be timed; is the server up? {error.details()}"
            ) from error


def _mbps(carry: Callable[[int], None], clock: Callable[[], float]) -> float:
    size = FIRST_BYTES
    carry(size)  # connects
    while True:
        begun = clock()
        carry(size)
        seconds = clock() - begun
        if seconds >= ENOUGH_SECONDS or size == TRIAL_BYTES:
            return 8 * size / seconds / 1e6
        size *= 2
