"""The server's side of a round: send, receive one by one, close."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.announcement import Announcement, Measurement
from fedml_dapper.federation.checkpoint import Checkpoint
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.late_uploads import AtWork, LateUpload, arriving, late_upload
from fedml_dapper.federation.quarantine import Quarantine
from fedml_dapper.federation.records import ClientRecord, RoundRecord, RoundSeconds
from fedml_dapper.federation.scoring import Measured, Scoring
from fedml_dapper.federation.testing import Figures
from fedml_dapper.federation.validation import UploadCheck
from fedml_dapper.federation.virtual_time import VirtualTime, at_work_after
from fedml_dapper.methods import Aggregation, Downlink, Memory, ServerState, Upload, payload_bytes
from fedml_dapper.profiling import part
from fedml_dapper.seeding import Stream, numpy_generator

LOGGER = logging.getLogger(__name__)
_REASON_LENGTH = 200


class Server:
    """Drives a method round by round: ``round_clients``, ``downlink`` and ``receive`` per client, ``close_round``.

    Uploads are folded in ascending client id whatever the order of arrival, so the result does not depend on it; one
    that arrives early waits for its turn, the others are dropped as soon as they are folded.

    An upload that does not fit raises :class:`ProtocolError` before anything has changed. In simulation, where clients
    run our own code, that is a bug and ends the run. Where clients are other people's, whoever carries messages calls
    :meth:`refuse`, and the round goes on without that client.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._method = experiment.method
        self._layout = experiment.method.problem.layout
        self._scoring = Scoring(experiment)
        self._check = UploadCheck(experiment)
        self._quarantine = Quarantine(experiment.settings.dapper_args.defence)
        self._virtual = VirtualTime(experiment)
        backbone = experiment.method.problem.backbone
        weights = {name: tensor.detach().clone() for name, tensor in backbone.state_dict().items()}
        self.state = ServerState(round=0, weights=weights, profiles=experiment.profiles)
        self.holds_memories = experiment.settings.common_args.training_type == "simulation"
        """Whether clients' memories are here; silos keep theirs to themselves."""
        self.memories: dict[int, Memory] = {}
        """What each client remembers, by client id."""
        self.last_record: RoundRecord | None = None
        self._clients: list[int] = []
        self._left_out: list[int] = []
        self._refused: dict[int, str] = {}
        self._awaited: list[int] = []
        self._early: dict[int, Upload] = {}
        self._not_counting: set[int] = set()
        """Clients of the open round whose upload arrived, and counts later or never, on the virtual clock."""
        self._late: dict[int, LateUpload] = {}
        """Uploads that will count in a later round, by client id."""
        self._keeps_late = experiment.settings.dapper_args.buffer_size is not None
        self._at_work: dict[int, AtWork] = {}
        """Silos that began in an earlier round, and whose uploads may count in the open one."""
        self._opening = self.state
        """The state in which the open round's clients began."""
        self._num_tests: dict[int, int] = {}
        """Test samples of silos with data of their own, by client id."""
        self._bytes_down: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        """Where an upload that counts in the open round began in an earlier one: that one, by client id."""
        self._records: list[ClientRecord] = []
        self._aggregation: Aggregation | None = None
        self._opened = 0.0

    @property
    def has_rounds_left(self) -> bool:
        """Whether the experiment asks for more rounds than are closed."""
        return self.state.round < self._experiment.settings.train_args.comm_round

    def join(self, client_id: int, announcement: Announcement) -> bool:
        """Take note of a silo that says what it holds, also where it is back with more; False if that is no news.

        It takes part from the next round on; in the open one its upload has to fit what it says now. Raises
        :class:`ProtocolError` for one whose device can run no level.
        """
        is_news = self._experiment.roster.join(announcement.device(client_id), announcement.profile)
        self._num_tests[client_id] = announcement.num_test
        self._renew_profile(client_id)
        return is_news

    def _renew_profile(self, client_id: int) -> None:
        """As the roster has it for the coming round."""
        known = list(self.state.profiles)
        known[client_id] = self._experiment.roster.profiles(self.state.round + 1)[client_id]
        self.state.profiles = tuple(known)

    @property
    def wants_measurements(self) -> bool:
        """Whether the round just closed is to be tested, and nobody but the silos can do it."""
        own_tests_alone = self._experiment.silos_have_own_data and not self._experiment.tests
        return own_tests_alone and self._is_tested(self.state.round)

    @property
    def measurers(self) -> Sequence[int]:
        """Silos that have joined with test samples, by client id; but for those still at work."""
        return sorted({client_id for client_id, count in self._num_tests.items() if count} - self._at_work.keys())

    def measured(self, measurements: Mapping[int, Measurement]) -> RoundRecord:
        """The record of the round just closed, with what silos measured of its model on their own test samples.

        A silo counts as often as it announced test samples. Without any measurement the record stays as it is.
        """
        assert self.last_record is not None, "no round was closed"
        found = {
            client_id: Figures(measurement.headline, measurement.loss)
            for client_id, measurement in measurements.items()
            if measurement.num_samples == self._num_tests[client_id]
        }
        if found:
            scores = self._scoring.of_silos(found, self._num_tests, self.state.profiles)
            self.last_record = self.last_record.model_copy(update={"scores": scores})
        return self.last_record

    def round_clients(self) -> Sequence[int]:
        """The clients of the present round, ascending; opens the round if none is open.

        Those in quarantine are chosen like the others, so that samples follow from the seed alone, and then left out.
        """
        if self._aggregation is None:
            chosen, round_ = self._choose_clients(), self.state.round + 1
            if self._experiment.roster.varies:
                self.state.profiles = self._experiment.roster.profiles(round_)
            self._left_out = [client_id for client_id in chosen if self._quarantine.holds(client_id, round_)]
            self._clients = [client_id for client_id in chosen if client_id not in self._left_out]
            self._virtual.open(round_, self.last_record, self._clients)
            self.state.clients = tuple(self._clients)
            self._refused, self._not_counting = {}, set()
            self._awaited = sorted([*self._clients, *self._virtual.arrived, *self._at_work])
            self._early, self._records, self._begun = {}, [], {}
            self._bytes_down = {client_id: one.bytes_down for client_id, one in self._at_work.items()}
            if self._keeps_late:
                self._opening = replace(
                    self.state, weights=dict(self.state.weights), memory=self.state.memory.snapshot()
                )
            self._aggregation = self._method.aggregation(self.state)
            self._opened = time.perf_counter()
            for client_id in self._virtual.arrived:
                late = self._late.pop(client_id)
                self._bytes_down[client_id], self._begun[client_id] = late.bytes_down, late.change.round
                self._early[client_id] = arriving(late, round_, self.state.weights, self._layout)
            self._fold_in_turn()
        return self._clients

    def downlink(self, client_id: int) -> Downlink:
        """What ``client_id`` starts this round from."""
        message = replace(self._method.downlink(self.state, client_id), level=self.state.profiles[client_id].level)
        self._bytes_down[client_id] = payload_bytes(message, self._layout)
        return message

    def receive(self, upload: Upload) -> None:
        """Take one upload; one that on the virtual clock does not count is checked, and dropped or kept for later.

        Raises :class:`ProtocolError`, with nothing changed, if it is not expected now or not what its client has to
        send. One that the defence finds implausible is refused, in simulation as elsewhere.
        """
        earlier = self._at_work.get(upload.client_id)
        before = self.state if earlier is None else earlier.server
        if upload.round != before.round + 1:
            raise ProtocolError(f"upload of round {upload.round} arrived in round {self.state.round + 1}")
        if upload.client_id not in self._awaited or upload.client_id in self._early:
            raise ProtocolError(f"client {upload.client_id} is not awaited in round {upload.round}")
        self._check.check_form(before, upload)
        if self._virtual.drops(upload.client_id):
            self._goes_on_without(upload.client_id)
            return
        try:
            self._check.check_change(before, upload)
        except ProtocolError as error:
            self.refuse(upload.client_id, error)
            return
        if self._virtual.keeps(upload.client_id):
            bytes_down = self._bytes_down.pop(upload.client_id, 0)
            self._late[upload.client_id] = late_upload(upload, self.state.weights, self._layout, bytes_down)
            self._goes_on_without(upload.client_id)
            return
        if earlier is not None:
            late = late_upload(upload, before.weights, self._layout, earlier.bytes_down)
            upload = arriving(late, self.state.round + 1, self.state.weights, self._layout)
            self._begun[upload.client_id] = earlier.begun
        self._early[upload.client_id] = upload
        self._fold_in_turn()

    def refuse(self, client_id: int, reason: ProtocolError) -> None:
        """Go on without ``client_id`` in the open round, and count that against it.

        Nothing happens where its upload was taken or refused before, or where it has no part in the round.
        """
        if client_id not in self._awaited or client_id in self._early:
            return
        self._awaited.remove(client_id)
        self._note_refusal(client_id, reason)
        self._fold_in_turn()

    def give_up(self, client_id: int) -> None:
        """Go on without ``client_id`` in the open round, which is not to blame: it was never reached, or what it began
        is lost. It may be chosen for the next round. Nothing happens where its upload was taken or refused before."""
        if client_id in self.answered():
            return
        self._at_work.pop(client_id, None)
        if client_id in self._awaited:
            self._awaited.remove(client_id)
            self._fold_in_turn()

    @property
    def at_work(self) -> Mapping[int, int]:
        """Silos that were at work already when the open or coming round began: the round that each began in."""
        return {client_id: one.begun for client_id, one in self._at_work.items()}

    @property
    def refused(self) -> Mapping[int, str]:
        """Clients whose upload was refused in the open round, and why."""
        return self._refused

    def answered(self) -> set[int]:
        """Clients whose upload of the open round has arrived and was taken, or does not count on the virtual clock."""
        return {record.client for record in self._records} | self._early.keys() | self._not_counting

    def close_round(self) -> RoundRecord:
        """Aggregate what arrived, test the new global model if its turn has come, and say what happened."""
        assert self._aggregation is not None, "round_clients comes first"
        unfinished = [client_id for client_id in self._awaited if client_id not in self._early]
        for client_id in sorted(self._early):
            self._fold(self._early.pop(client_id))
        self._at_work = self._still_at_work(unfinished) if self._keeps_late else {}
        with part("aggregation"):
            self._aggregation.close()
        self._aggregation = None
        self.state.round, self.state.clients = self.state.round + 1, ()
        evaluation_started = time.perf_counter()
        measured = Measured()
        if self._is_tested(self.state.round):
            measured = self._scoring.measure(self.state, self.memories if self.holds_memories else None)
        now = time.perf_counter()
        self.last_record = RoundRecord(
            round=self.state.round,
            scores=measured.scores,
            validation_scores=measured.validation_scores,
            personal=measured.personal,
            validation=measured.validation,
            devices=measured.devices,
            clients=tuple(self._records),
            absent=tuple(sorted(set(self._clients) - {record.client for record in self._records})),
            refused={client_id: self._refused[client_id] for client_id in sorted(self._refused)},
            quarantined=tuple(self._left_out),
            at_work=dict(self.at_work),
            clock=self._virtual.close(self.last_record, self._refused, self._late),
            notes=dict(self._method.round_notes(self.state)),
            seconds=RoundSeconds(total=now - self._opened, evaluation=now - evaluation_started),
        )
        for record in self._records:
            if self._experiment.roster.relieve(record.client, record.level, record.seconds):
                self._renew_profile(record.client)
        return self.last_record

    def checkpoint(self) -> Checkpoint:
        """What :meth:`restore` needs; stays as it is while rounds go on. Only between two rounds, after the first."""
        assert self._aggregation is None, "a round is open"
        assert self.last_record is not None, "no round was closed"
        return Checkpoint(
            weights=dict(self.state.weights),
            memory=self.state.memory.snapshot(),
            memories={client_id: memory.snapshot() for client_id, memory in self.memories.items()},
            best=replace(self._scoring.best),
            best_validation=replace(self._scoring.best_validation),
            last_record=self.last_record,
            standing=self._quarantine.standing,
            late=dict(self._late),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on as the server that made ``checkpoint`` would; its tensors are used, not copied."""
        assert self._aggregation is None, "a round is open"
        self.state.round = checkpoint.round
        self.state.weights, self.state.memory = dict(checkpoint.weights), checkpoint.memory
        self.memories.clear()  # the object stays: in simulation the clients' side holds it too
        self.memories.update(checkpoint.memories)
        self._scoring.best, self._scoring.best_validation = checkpoint.best, checkpoint.best_validation
        self.last_record, self._quarantine.standing = checkpoint.last_record, checkpoint.standing
        self._late, self._at_work = dict(checkpoint.late), {}  # silos are sent the next round's model

    def _choose_clients(self) -> list[int]:
        seed = self._experiment.settings.common_args.random_seed
        available = sorted(self._experiment.roster.available)
        ids = [client_id for client_id in available if self._method.takes_part(self.state.profiles[client_id].level)]
        ids = [client_id for client_id in ids if client_id not in self._at_work]
        at_work = {one.client for one in at_work_after(self.last_record)}
        ids = list(self._virtual.online(self.state.round + 1, self.last_record, ids, at_work))
        wanted = max(0, self._virtual.chosen - len(at_work) - len(self._at_work))
        if wanted >= len(ids):
            return ids
        stream = numpy_generator(seed, Stream.SAMPLING, self.state.round + 1)
        return sorted(stream.choice(ids, wanted, replace=False).tolist())

    def _still_at_work(self, client_ids: Sequence[int]) -> dict[int, AtWork]:
        """Those of ``client_ids``, whose uploads the round that closes has not seen, that were sent something."""
        return {
            client_id: self._at_work.get(client_id) or AtWork(self._opening, self._bytes_down[client_id])
            for client_id in client_ids
            if client_id in self._bytes_down
        }

    def _is_tested(self, round_: int) -> bool:
        every = self._experiment.settings.validation_args.frequency_of_the_test
        return round_ % every == 0 or round_ == self._experiment.settings.train_args.comm_round

    def _note_refusal(self, client_id: int, reason: ProtocolError) -> None:
        self._refused[client_id] = _one_line(str(reason))
        round_ = self.state.round + 1
        LOGGER.warning("round %d: upload of client %d refused: %s", round_, client_id, self._refused[client_id])
        if self._quarantine.strike(client_id, round_):
            last = self._quarantine.standing.out_until[client_id]
            LOGGER.warning("client %d is in quarantine up to and including round %d", client_id, last)

    def _goes_on_without(self, client_id: int) -> None:
        self._awaited.remove(client_id)
        self._not_counting.add(client_id)
        self._fold_in_turn()

    def _fold_in_turn(self) -> None:
        while self._awaited and self._awaited[0] in self._early:
            self._fold(self._early.pop(self._awaited.pop(0)))

    def _fold(self, upload: Upload) -> None:
        assert self._aggregation is not None, "round_clients comes first"
        try:
            with part("aggregation"):
                self._aggregation.add(upload)
        except ProtocolError as error:
            if self.holds_memories:
                raise
            self._note_refusal(upload.client_id, error)
            return
        earlier = self._at_work.get(upload.client_id)
        profile = (self.state if earlier is None else earlier.server).profiles[upload.client_id]
        params, macs = self._method.model_size(upload.plan)
        self._records.append(
            ClientRecord(
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
                begun=self._begun.get(upload.client_id),
            )
        )


def _one_line(reason: str) -> str:
    """A reason as it may stand in logs and ledger: it can quote what a stranger sent."""
    text = "".join(letter if letter.isprintable() else "?" for letter in reason)
    return text if len(text) <= _REASON_LENGTH else f"{text[:_REASON_LENGTH]}..."
