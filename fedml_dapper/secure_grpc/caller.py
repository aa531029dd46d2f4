"""A device's transport: it says something in one call and is answered in the same call, with no connection between."""

from __future__ import annotations

import grpc

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ProtocolError
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.secure_grpc.endpoint import CALL, CALL_SECONDS, SERVICE
from fedml_dapper.secure_grpc.message import AnyMessage
from fedml_dapper.secure_grpc.parcel import MIB, Numbering, Parcel, read_envelope, read_payload
from fedml_dapper.secure_grpc.silo import metadata_of, open_channel, raise_if_final


class Caller:
    """Calls the server in the name of the device of this ``rank``; changed credentials are read before each call."""

    def __init__(self, config: SecureGrpcConfig, credentials: CredentialFiles, rank: int) -> None:
        self._config = config
        self._credentials = credentials
        self._rank = rank
        self._max_payload_bytes = config.max_message_mb * MIB
        self._numbering = Numbering(self._max_payload_bytes)

    def call(self, message: AnyMessage) -> AnyMessage:
        """Say ``message`` to the server, and return its answer.

        Raises:
            grpc.RpcError: The server was not reached; trying again may help.
            DapperError: The server refuses the message or this device; trying again will not help.
        """
        self._credentials.renew()
        credentials = self._credentials.current
        frames = self._numbering.parcel(message).frames()
        try:
            with open_channel(self._config, credentials) as channel:
                call = channel.stream_stream(f"/{SERVICE}/{CALL}")
                answer = call(frames, timeout=CALL_SECONDS, metadata=metadata_of(credentials))
                envelope = read_envelope(answer, self._max_payload_bytes)
                payload = read_payload(answer, envelope)
        except grpc.RpcError as error:
            raise_if_final(error, self._config.server_address)
            raise
        if (envelope.sender, envelope.receiver) != (0, self._rank):
            raise ProtocolError(f"the server sent a message from {envelope.sender} to {envelope.receiver}")
        return Parcel(envelope, payload).message()
