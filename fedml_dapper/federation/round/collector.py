"""Base class of server and edge: sends clients what they start a round from, and takes their uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.method_errors import method_blamed
from fedml_dapper.federation.round.fewer_bits_down import FewerBitsDown
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.federation.round.validation import UploadCheck
from fedml_dapper.federation.run_folder.records import ClientRecord
from fedml_dapper.methods import Aggregation, Downlink, Memory, ServerState, Upload, payload_bytes


class Collector:
    """Runs the rounds of one experiment: call ``downlink`` and ``receive`` for every client.

    An upload that does not fit raises :class:`ProtocolError` before anything has changed. In simulation, where clients
    run our own code, that is a bug and ends the run. Where clients are other people's, the caller catches the error and
    calls :meth:`refuse`, and the round goes on without that client.
    """

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        self._experiment = experiment
        self._method = experiment.method
        self._layout = experiment.method.problem.layout
        self._check = UploadCheck(experiment)
        self.state = state
        self.is_simulation = experiment.settings.common_args.is_simulation
        """Whether this process keeps clients' memories; silos keep theirs to themselves."""
        self.memories: dict[int, Memory] = {}
        """What the method remembers on each client, by client id."""
        self._down = FewerBitsDown(self._layout)
        self._round = OpenRound(number=0)
        """The open round, or the last one where none is open."""

    def _open(self, aggregation: Aggregation, awaited: Iterable[int], usual: UpdateNorms) -> None:
        """Begin a round that folds the uploads of the ``awaited`` clients, ``usual`` being their usual size."""
        self._down.begin_round(self.state.weights)
        self._round = OpenRound(
            self.state.round + 1, aggregation, awaited, usual, self._record, self._note_refusal, self.is_simulation
        )

    def _note_refusal(self, client_id: int) -> None:
        """Hook that is called where an upload of the open round is refused."""

    def downlink(self, client_id: int) -> Downlink:
        """Return what ``client_id`` starts this round from."""
        with method_blamed(self._method, f"downlink to client {client_id}, round {self._round.number}"):
            sent = self._method.downlink(self.state, client_id)
        made = self._down.sent(sent)
        message = replace(made, level=self.state.profiles[client_id].level)
        self._round.bytes_down[client_id] = payload_bytes(message, self._layout)
        self._round.num_downlinks[client_id] += 1
        return message

    def receive(self, upload: Upload) -> None:
        """Check one upload and fold it in.

        One that the defence finds implausible is refused, in simulation as elsewhere.

        Raises:
            ProtocolError: The upload is not expected now or not what its client has to send; nothing has changed.
        """
        self._check_awaited(upload, self.state)
        self._check.check_form(self.state, upload)
        upload = self._down.since(self._method.downlink(self.state, upload.client_id), upload)
        if self._is_plausible(self.state, upload):
            self._round.take(upload)

    def _is_plausible(self, before: ServerState, upload: Upload) -> bool:
        """Return whether the upload's size is plausible, and refuse it where it is not."""
        try:
            magnitude = self._check.check_change(before, upload, self._round.usual)
        except ProtocolError as error:
            self.refuse(upload.client_id, error)
            return False
        self._round.magnitudes[upload.client_id] = magnitude
        return True

    def _check_awaited(self, upload: Upload, before: ServerState) -> None:
        """Raise :class:`ProtocolError` unless a client that began in the state ``before`` may send ``upload`` now."""
        if upload.round != before.round + 1:
            raise ProtocolError(f"upload of round {upload.round} arrived in round {self.state.round + 1}")
        if not self._round.is_awaited(upload.client_id):
            raise ProtocolError(f"client {upload.client_id} is not awaited in round {upload.round}")

    def refuse(self, client_id: int, reason: ProtocolError) -> None:
        """Go on without ``client_id`` in the open round, and count that against it.

        Nothing happens where its upload was taken or refused before, or where it has no part in the round.
        """
        self._round.refuse(client_id, str(reason))

    def give_up(self, client_id: int) -> None:
        """Go on without ``client_id`` in the open round, without blame: it was not reached, or its work is lost.

        It may be chosen for the next round. Nothing happens where its upload was taken or refused before.
        """
        self._round.give_up(client_id)

    @property
    def at_work(self) -> Mapping[int, int]:
        """Round that each silo began in which was at work before the open or coming round began, by client id."""
        return {}

    @property
    def refused_before(self) -> Mapping[int, str]:
        """Why uploads of the round before were refused, by client id; empty where that is not known here."""
        return {}

    @property
    def refused(self) -> Mapping[int, str]:
        """Why uploads of the open round were refused, by client id."""
        return self._round.refused

    def answered(self) -> set[int]:
        """Return the clients whose upload of the open round has arrived and was not refused."""
        return self._round.answered()

    def _record(self, upload: Upload) -> Callable[[], ClientRecord]:
        """Return what makes the ledger's record of an upload, without holding the upload."""
        profile = self._start_of(upload.client_id).profiles[upload.client_id]
        params, macs = self._method.model_size(upload.plan)
        magnitude = self._round.magnitudes.get(upload.client_id, UpdateNorms())
        metrics = upload.metrics
        known = partial(
            ClientRecord,
            client=upload.client_id,
            domain=profile.domain,
            level=profile.level,
            ratio=profile.ratio,
            num_samples=upload.num_samples,
            params=params,
            macs=macs,
            bytes_up=payload_bytes(upload, self._layout),
            bytes_down=self._round.bytes_down.get(upload.client_id, 0),
            steps=metrics.steps,
            accuracy_before=metrics.accuracy_before,
            accuracy_after=metrics.accuracy_after,
            change=magnitude.change,
            extras_norm=magnitude.extras,
            begun=self._round.begun.get(upload.client_id),
        )
        return lambda: known(loss=metrics.loss, seconds=metrics.seconds)  # for these a GPU is waited for

    def _start_of(self, client_id: int) -> ServerState:
        """Return the server state from which the client began to train."""
        return self.state
