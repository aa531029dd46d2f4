"""A device's transport: it says something in one call and is answered in the same call, with no connection between."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import grpc

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import ProtocolError
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.secure_grpc.endpoint import CALL, CALL_SECONDS, OFFER, SERVICE
from fedml_dapper.secure_grpc.going_on import OFFER_SECONDS, THE_SERVER, frames_to_deliver, holds
from fedml_dapper.secure_grpc.message import AnyMessage
from fedml_dapper.secure_grpc.pacing import Pace
from fedml_dapper.secure_grpc.parcel import MIB, Numbering, Parcel, read_envelope
from fedml_dapper.secure_grpc.parts import PartFolder, read_arriving
from fedml_dapper.secure_grpc.silo import metadata_of, open_channel, raise_if_final


class Caller:
    """Calls the server in the name of the device of this ``rank``; changed credentials are read before each call.

    A large answer that breaks off goes on at the next call, also of the next process with the same ``folder``.
    """

    def __init__(
        self, config: SecureGrpcConfig, credentials: CredentialFiles, rank: int, folder: Path | None = None
    ) -> None:
        self._config = config
        self._credentials = credentials
        self._rank = rank
        self._max_payload_bytes = config.max_message_mb * MIB
        self._numbering = Numbering(self._max_payload_bytes)
        self._parts = PartFolder(folder, self._max_payload_bytes)
        self._delivered = 0
        self._up = Pace(config.max_kib_per_s)
        self._down = Pace(config.max_kib_per_s)

    def call(self, message: AnyMessage) -> AnyMessage:
        """Say ``message`` to the server, and return its answer.

        Raises:
            grpc.RpcError: The server was not reached; trying again may help.
            PartsError: The answer did not come whole; trying again may help.
            NotAwaitedError: The server does not await this upload.
            DapperError: The server refuses the message or this device; trying again will not help.
        """
        self._credentials.renew()
        credentials = self._credentials.current
        metadata = metadata_of(credentials)
        parcel = self._numbering.parcel(message)
        try:
            with open_channel(self._config, credentials) as channel:
                offer = channel.stream_unary(f"/{SERVICE}/{OFFER}")
                offering = partial(offer, timeout=OFFER_SECONDS, metadata=metadata)
                frames = frames_to_deliver(parcel, offering, self._note_delivered)
                call = channel.stream_stream(f"/{SERVICE}/{CALL}")
                said = (*metadata, holds(self._parts))
                answer = self._down.receiving(call(self._up.sending(frames), timeout=CALL_SECONDS, metadata=said))
                envelope = read_envelope(answer, self._max_payload_bytes)
                payload = read_arriving(answer, envelope, self._parts, THE_SERVER)
        except grpc.RpcError as error:
            raise_if_final(error, self._config.server_address)
            raise
        if (envelope.sender, envelope.receiver) != (0, self._rank):
            raise ProtocolError(f"the server sent a message from {envelope.sender} to {envelope.receiver}")
        return Parcel(envelope, payload).message()

    @property
    def address(self) -> str:
        """HOST:PORT that is called."""
        return self._config.server_address

    @property
    def there(self) -> object:
        """What is there of the latest large answer; another value when more of it has come."""
        return self._parts.latest(THE_SERVER)

    def delivered(self) -> int:
        """Return how many bytes of the latest large message the server had when it was last asked."""
        return self._delivered

    def _note_delivered(self, size: int) -> None:
        self._delivered = size

    def forget(self) -> None:
        """Delete what the server sent last, when the run is over."""
        self._parts.forget()
