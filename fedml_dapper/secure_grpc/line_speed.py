"""Measurement of a silo's line to the server, for the profile of its device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import DapperError
from fedml_dapper.operations.credentials import Credentials
from fedml_dapper.secure_grpc.endpoint import SERVICE, TRIAL_BYTES, TRY_DOWN, TRY_UP
from fedml_dapper.secure_grpc.pacing import Pace
from fedml_dapper.secure_grpc.parcel import blank_frames
from fedml_dapper.secure_grpc.silo import metadata_of, open_channel, raise_if_final

FIRST_BYTES = 1 << 18
"""Size of the first transfer; it is doubled until a transfer takes ``ENOUGH_SECONDS`` or is of ``TRIAL_BYTES``."""
ENOUGH_SECONDS = 1.0
CALL_SECONDS = 120.0
"""Deadline of one transfer."""


@dataclass(frozen=True)
class LineSpeed:
    """Speed of a line in Mbit/s (10^6 bits a second), encryption and framing of messages included."""

    downlink_mbps: float
    uplink_mbps: float


def measure_line(
    config: SecureGrpcConfig, credentials: Credentials, clock: Callable[[], float] = time.perf_counter
) -> LineSpeed:
    """Time the line to the server of the silo with these ``credentials``; a run may go on meanwhile.

    Raises:
        DapperError: There is no server, or it refuses this silo.
    """
    metadata = metadata_of(credentials)
    with open_channel(config, credentials) as channel:
        up = channel.stream_unary(f"/{SERVICE}/{TRY_UP}")
        down = channel.stream_stream(f"/{SERVICE}/{TRY_DOWN}")

        pace_up = Pace(config.max_kib_per_s)
        pace_down = Pace(config.max_kib_per_s)

        def send(size: int) -> None:
            up(pace_up.sending(blank_frames(size)), timeout=CALL_SECONDS, metadata=metadata)

        def fetch(size: int) -> None:
            request = iter([size.to_bytes(8, "little")])
            for _ in pace_down.receiving(down(request, timeout=CALL_SECONDS, metadata=metadata)):
                pass

        try:
            return LineSpeed(downlink_mbps=_mbps(fetch, clock), uplink_mbps=_mbps(send, clock))
        except grpc.RpcError as error:
            raise_if_final(error, config.server_address)
            raise DapperError(
                f"the line to {config.server_address} cannot be timed; is the server up? {error.details()}"
            ) from error


def _mbps(transfer: Callable[[int], None], clock: Callable[[], float]) -> float:
    size = FIRST_BYTES
    transfer(size)  # connects
    while True:
        begun = clock()
        transfer(size)
        seconds = clock() - begun
        if seconds >= ENOUGH_SECONDS or size == TRIAL_BYTES:
            return 8 * size / seconds / 1e6
        size *= 2
