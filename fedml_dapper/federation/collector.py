"""One round's uploads as they come in: who is awaited, what fits, and in which order it is folded."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.magnitude import Magnitude
from fedml_dapper.federation.records import ClientRecord
from fedml_dapper.federation.validation import UploadCheck
from fedml_dapper.methods import Aggregation, ClientProfile, Downlink, Memory, ServerState, Upload, payload_bytes
from fedml_dapper.profiling import part
from fedml_dapper.pruning import Together

LOGGER = logging.getLogger(__name__)
_REASON_LENGTH = 200


class Collector:
    """What a server and an edge do alike in an open round: ``downlink`` and ``receive`` per client.

    Uploads are folded in ascending client id whatever the order of arrival, so the result does not depend on it; one
    that arrives early waits for its turn. Those whose turn has come are folded together and dropped; the last ones of a
    round when it closes, as the new model is made of the sums in the same pass.

    An upload that does not fit raises :class:`ProtocolError` before anything has changed. In simulation, where clients
    run our own code, that is a bug and ends the run. Where clients are other people's, whoever carries messages calls
    :meth:`refuse`, and the round goes on without that client.
    """

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        self._experiment = experiment
        self._method = experiment.method
        self._layout = experiment.method.problem.layout
        self._check = UploadCheck(experiment)
        self.state = state
        self.holds_memories = experiment.settings.common_args.is_simulation
        """Whether clients' memories are here; silos keep theirs to themselves."""
        self.memories: dict[int, Memory] = {}
        """What each client remembers, by client id."""
        self._aggregation: Aggregation | None = None
        self._together = Together()
        self._awaited: list[int] = []
        self._early: dict[int, Upload] = {}
        self._folded: set[int] = set()
        self._refused: dict[int, str] = {}
        self._records: list[ClientRecord] = []
        self._bytes_down: dict[int, int] = {}
        self._num_downlinks: dict[int, int] = {}
        """How often each client was sent something in the open round."""
        self._usual = Magnitude()
        """Of the uploads of the round before."""
        self._magnitudes: dict[int, Magnitude] = {}
        """Of the uploads of the open round, by client id."""

    def _open(self, aggregation: Aggregation, awaited: Iterable[int], usual: Magnitude) -> None:
        """Begin a round that these clients' uploads, about as large as ``usual``, are to be folded in."""
        self._aggregation, self._together, self._awaited = aggregation, Together(), sorted(awaited)
        self._usual, self._magnitudes, self._num_downlinks = usual, {}, {}
        self._early, self._folded, self._refused, self._records, self._bytes_down = {}, set(), {}, [], {}

    def downlink(self, client_id: int) -> Downlink:
        """What ``client_id`` starts this round from."""
        message = replace(self._method.downlink(self.state, client_id), level=self.state.profiles[client_id].level)
        self._bytes_down[client_id] = payload_bytes(message, self._layout)
        self._num_downlinks[client_id] = self._num_downlinks.get(client_id, 0) + 1
        return message

    def receive(self, upload: Upload) -> None:
        """Take one upload. Raises :class:`ProtocolError`, with nothing changed, if it is not expected now or not what
        its client has to send. One that the defence finds implausible is refused, in simulation as elsewhere."""
        self._check_awaited(upload, self.state)
        self._check.check_form(self.state, upload)
        if self._is_plausible(self.state, upload):
            self._take(upload)

    def _is_plausible(self, before: ServerState, upload: Upload) -> bool:
        """Whether the upload is of a size that it may have; one that is not is refused."""
        try:
            self._magnitudes[upload.client_id] = self._check.check_change(before, upload, self._usual)
        except ProtocolError as error:
            self.refuse(upload.client_id, error)
            return False
        return True

    def _check_awaited(self, upload: Upload, before: ServerState) -> None:
        """Raises :class:`ProtocolError` unless a client that began in the state ``before`` may send ``upload`` now."""
        if upload.round != before.round + 1:
            raise ProtocolError(f"upload of round {upload.round} arrived in round {self.state.round + 1}")
        if upload.client_id not in self._awaited or upload.client_id in self._early:
            raise ProtocolError(f"client {upload.client_id} is not awaited in round {upload.round}")

    def refuse(self, client_id: int, reason: ProtocolError) -> None:
        """Go on without ``client_id`` in the open round, and count that against it.

        Nothing happens where its upload was taken or refused before, or where it has no part in the round.
        """
        if client_id not in self._awaited or client_id in self._early:
            return
        self._awaited.remove(client_id)
        self._note_refusal(client_id, str(reason))
        self._fold_in_turn()

    def give_up(self, client_id: int) -> None:
        """Go on without ``client_id`` in the open round, which is not to blame: it was never reached, or what it began
        is lost. It may be chosen for the next round. Nothing happens where its upload was taken or refused before."""
        if client_id in self._awaited and client_id not in self._early:
            self._awaited.remove(client_id)
            self._fold_in_turn()

    @property
    def at_work(self) -> Mapping[int, int]:
        """Silos that were at work already when the open or coming round began: the round that each began in."""
        return {}

    @property
    def refused_before(self) -> Mapping[int, str]:
        """Clients whose upload was refused in the round before, and why; as far as that is known here."""
        return {}

    @property
    def refused(self) -> Mapping[int, str]:
        """Clients whose upload was refused in the open round, and why."""
        return self._refused

    def answered(self) -> set[int]:
        """Clients whose upload of the open round has arrived and was not refused."""
        return self._folded | self._early.keys()

    def _note_refusal(self, client_id: int, reason: str) -> None:
        self._refused[client_id] = one_line(reason)
        round_ = self.state.round + 1
        LOGGER.warning("round %d: upload of client %d refused: %s", round_, client_id, self._refused[client_id])

    def _take(self, upload: Upload) -> None:
        self._early[upload.client_id] = upload
        self._fold_in_turn()

    def _fold_in_turn(self) -> None:
        while self._awaited and self._awaited[0] in self._early:
            self._fold(self._early.pop(self._awaited.pop(0)))
        if self._awaited:
            with part("aggregation"):
                self._together.fold()

    def _fold_the_rest(self) -> list[int]:
        """Fold whatever has come; who has not answered is returned."""
        unfinished = [client_id for client_id in self._awaited if client_id not in self._early]
        for client_id in sorted(self._early):
            self._fold(self._early.pop(client_id))
        return unfinished

    def _fold(self, upload: Upload) -> None:
        """Together with others whose turn it is."""
        assert self._aggregation is not None, "no round is open"
        try:
            with part("aggregation"), self._together.waiting():
                self._aggregation.add(upload)
        except ProtocolError as error:
            if self.holds_memories:
                raise
            self._note_refusal(upload.client_id, str(error))
            return
        self._folded.add(upload.client_id)
        self._records.append(self._record(upload, self.state.profiles[upload.client_id]))

    def _record(self, upload: Upload, profile: ClientProfile, begun: int | None = None) -> ClientRecord:
        """What the ledger says of an upload of a client that was like ``profile`` when it began."""
        params, macs = self._method.model_size(upload.plan)
        magnitude = self._magnitudes.get(upload.client_id, Magnitude())
        return ClientRecord(
            client=upload.client_id,
            domain=profile.domain,
            level=profile.level,
            ratio=profile.ratio,
            num_samples=upload.num_samples,
            params=params,
            macs=macs,
            bytes_up=payload_bytes(upload, self._layout),
            bytes_down=self._bytes_down.get(upload.client_id, 0),
            loss=upload.metrics.loss,
            steps=upload.metrics.steps,
            seconds=upload.metrics.seconds,
            accuracy_before=upload.metrics.accuracy_before,
            accuracy_after=upload.metrics.accuracy_after,
            change=magnitude.change,
            extras_norm=magnitude.extras,
            begun=begun,
        )


def one_line(reason: str) -> str:
    """A reason as it may stand in logs and ledger: it can quote what a stranger sent."""
    text = "".join(letter if letter.isprintable() else "?" for letter in reason)
    return text if len(text) <= _REASON_LENGTH else f"{text[:_REASON_LENGTH]}..."
