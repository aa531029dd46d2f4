"""A silo's upload where the server learns sums alone: it stays here, and leaves under masks."""

from __future__ import annotations

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.sum_wire import (
    Content,
    Declined,
    Inbox,
    Masked,
    Ready,
    Start,
    SumCodec,
    SumMessage,
    Survivors,
)
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.pruning import Packing, encoded_changes
from fedml_dapper.secure_sum import Participant, Roster
from fedml_dapper.secure_sum.fixed_point import as_words


class MaskedUpload:
    """One upload, and its silo's part in the sum of its round."""

    def __init__(self, experiment: Experiment, codec: SumCodec, upload: Upload, downlink: Downlink) -> None:
        secure = experiment.method.problem.secure_sums
        assert secure is not None, "Experiment.sums_in_secret says so"
        self._layout, self._codec = experiment.method.problem.layout, codec
        self.round, self._client, self._plan = upload.round, upload.client_id, upload.plan
        self._steps = upload.metrics.steps
        share = experiment.method.problem.noise_share(upload.round, upload.client_id)
        self._numbers = encoded_changes(upload.weights, downlink.weights, secure.code, share)
        self._participant = Participant(upload.client_id, secure.rules)
        self._sum_id = ""
        self._packing: Packing | None = None
        self.has_opened = False
        """Whether it has told shares, after which nothing of the round may be told again."""

    def ready(self) -> SumMessage:
        """What the server is told when the upload is there."""
        return SumMessage(self.round, self._client, "", Ready(self._participant.public_keys, self._steps))

    def answer(self, message: SumMessage) -> SumMessage:
        """What is to be said to what the server says; that nothing more is, where that is against the protocol."""
        try:
            content = self._answer(message)
        except ProtocolError as error:
            content = Declined(str(error))
        return SumMessage(self.round, self._client, message.sum_id, content)

    def _answer(self, message: SumMessage) -> Content:
        if (message.round, message.client_id) != (self.round, self._client):
            raise ProtocolError("asked about another upload than the latest")
        match message.content:
            case Start(keys, plans):
                if self._client not in plans or not plans[self._client].equals(self._plan):
                    raise ProtocolError("the sum's plan for this client is not the one that it was sent")
                self._sum_id = message.sum_id
                self._packing = Packing(self._layout, plans)
                return self._participant.deal(Roster(self._codec.context(message), keys))
            case Inbox(sealed) if message.sum_id == self._sum_id and self._packing is not None:
                values = as_words(self._packing.pack(self._client, self._numbers))
                return Masked(self._participant.mask(sealed, values, self._packing.cells))
            case Survivors(clients) if message.sum_id == self._sum_id:
                revealed = self._participant.reveal(clients)
                self.has_opened = True
                return revealed
        raise ProtocolError("asked for what no step of the sum asks for")
