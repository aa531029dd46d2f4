"""Upload of a silo in a secure sum: it stays with the silo, and leaves it under masks alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.wire.sum_codec import (
    Agreed,
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
from fedml_dapper.secure_sum import Identity, Participant, Roster
from fedml_dapper.secure_sum.fixed_point import as_words


def terms_of_sum(experiment: Experiment, round_: int) -> bytes:
    """Return a digest of the terms on which a silo takes part in a round's sum.

    These are the method, the seed, the sum's rules, its fixed-point code and the noise that each silo adds, all from
    the silo's own settings and not from what a server says. Silos sum with silos of the same terms alone.
    """
    problem = experiment.method.problem
    secure = problem.secure_sums
    assert secure is not None, "Experiment.sums_in_secret says so"
    rules = [secure.rules.threshold, secure.rules.min_holders, secure.rules.most_clients]
    code = [secure.code.scale, secure.code.largest, secure.code.summands, secure.noise_std]
    privacy = None if problem.privacy is None else [problem.privacy.clip, problem.privacy.noise_multiplier]
    terms = [experiment.method.name, problem.seed, rules, code, privacy, round_]
    return hashlib.sha256(json.dumps(terms).encode()).digest()


class MaskedUpload:
    """One upload, and its silo's part in the secure sum of the upload's round.

    Args:
        experiment: The silo's.
        codec: Encodes plans, which the silo signs.
        upload: What the silo trained.
        downlink: What it trained from.
        identity: By which the silo signs.
        promise: Called before the silo signs a list of survivors, with the statement that it signs.
    """

    def __init__(
        self,
        experiment: Experiment,
        codec: SumCodec,
        upload: Upload,
        downlink: Downlink,
        identity: Identity,
        promise: Callable[[bytes], None],
    ) -> None:
        secure = experiment.method.problem.secure_sums
        assert secure is not None, "Experiment.sums_in_secret says so"
        self._layout = experiment.method.problem.layout
        self._codec = codec
        self.round = upload.round
        self._client = upload.client_id
        self._plan = upload.plan
        self._steps = upload.metrics.steps
        share = experiment.method.problem.noise_share(upload.round, upload.client_id)
        self._numbers = encoded_changes(upload.weights, downlink.weights, secure.code, share)
        about = terms_of_sum(experiment, upload.round)
        self._participant = Participant(
            upload.client_id, secure.rules, identity, about, codec.part(upload.plan), promise
        )
        self._sum_id = ""
        self._packing: Packing | None = None
        self.has_signed = False
        """Whether the silo has signed a list of survivors, after which no other sum of the round may be opened."""

    def ready(self) -> SumMessage:
        """Return the message that tells the server that the silo has trained."""
        return SumMessage(self.round, self._client, "", Ready(self._participant.public_keys, self._steps))

    def answer(self, message: SumMessage) -> SumMessage:
        """Answer a message of the server; the answer is :class:`Declined` where the message breaks the protocol."""
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
                for client, plan in plans.items():
                    if keys[client].part != self._codec.part(plan):
                        raise ProtocolError(f"the server says that client {client} holds what it has not signed")
                deal = self._participant.deal(Roster(self._codec.context(message), keys))
                self._sum_id = message.sum_id
                self._packing = Packing(self._layout, plans)  # of plans whose signatures are checked now
                return deal
            case Inbox(sealed) if message.sum_id == self._sum_id and self._packing is not None:
                values = as_words(self._packing.pack(self._client, self._numbers))
                return Masked(self._participant.mask(sealed, values, self._packing.cells))
            case Survivors(clients) if message.sum_id == self._sum_id:
                consent = self._participant.agree(clients)
                self.has_signed = True
                return consent
            case Agreed(consents) if message.sum_id == self._sum_id:
                return self._participant.reveal(consents)
        raise ProtocolError("asked for what no step of the sum asks for")
