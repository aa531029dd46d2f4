"""The server's side of a round: choose clients, send downlinks, receive uploads one by one, close."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedml_dapper.config import CheckInArgs
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.method_errors import method_blamed
from fedml_dapper.federation.round.attendance import Attendance
from fedml_dapper.federation.round.buffered import Buffered
from fedml_dapper.federation.round.checked_in import CheckedIn
from fedml_dapper.federation.round.collector import Collector
from fedml_dapper.federation.round.edges import EdgeOrder, EdgeSum
from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.fetched import fetched
from fedml_dapper.federation.round.findings import Finding, all_finite, raise_first
from fedml_dapper.federation.round.new_model import judged, make_model
from fedml_dapper.federation.round.private_rounds import PrivateRounds
from fedml_dapper.federation.round.served_edges import ServedEdges
from fedml_dapper.federation.round.update_norm import UpdateNorms, usual_norms
from fedml_dapper.federation.round.virtual_time import VirtualTime
from fedml_dapper.federation.run_folder.checkpoint import Checkpoint
from fedml_dapper.federation.run_folder.records import PrivacySpent, RoundRecord, RoundSeconds
from fedml_dapper.federation.scoring.after_round import Measured, Scoring
from fedml_dapper.federation.scoring.own_tests import OwnTests
from fedml_dapper.federation.wire.announcement import Announcement, Measurement
from fedml_dapper.federation.wire.sum_codec import Ready, SumMessage
from fedml_dapper.methods import ServerState, Upload

if TYPE_CHECKING:
    from fedml_dapper.federation.round.secret_sums import SecretSums

LOGGER = logging.getLogger(__name__)


class Server(Collector):
    """Runs a method round by round: ``round_clients``, ``downlink`` and ``receive`` for every client, ``close_round``.

    Everything that an experiment adds to plain rounds is a :class:`RoundFeature`; they are composed here.
    """

    def __init__(self, experiment: Experiment) -> None:
        starting = experiment.method.problem.starting_weights()
        weights = {name: tensor.detach().clone() for name, tensor in starting.items()}
        super().__init__(experiment, ServerState(round=0, weights=weights, profiles=experiment.profiles))
        privacy = experiment.method.problem.privacy
        self._scoring = Scoring(experiment)
        self.attendance = Attendance(experiment, self.state)
        """Choice of clients, and clients that are left out."""
        self._late = None if experiment.clock is None else VirtualTime(experiment, experiment.clock, self.state)
        is_buffered = experiment.settings.dapper_args.buffer_size is not None
        self._buffered = Buffered(self.state, self._layout) if is_buffered else None
        self.edges = ServedEdges(experiment, self.state)
        """Edges between this server and some of the silos."""
        self.sums = _secret_sums(experiment, self.state)
        """Secure sums; None where silos send uploads."""
        self._private = None if privacy is None else PrivateRounds(experiment.method, privacy, self.state)
        self.checked_in = _checked_in(experiment, self.attendance)
        """Devices that are there; None where clients stay connected."""
        # those that are there come first: over-selection says how many are at work, some of them since earlier rounds
        composed = (self.checked_in, self.edges, self._buffered, self._late, self._private, self.sums)
        self._features: tuple[RoundFeature, ...] = tuple(feature for feature in composed if feature is not None)
        self._own_tests = OwnTests(self.edges)
        self.last_record: RoundRecord | None = None
        self._clients: list[int] = []
        self._unread: list[Finding] = []
        """Findings on uploads of the open round, where a GPU would be waited for."""
        self._opened_at = 0.0

    @property
    def has_rounds_left(self) -> bool:
        """Whether the experiment asks for more rounds than are closed."""
        return self.state.round < self._experiment.settings.train_args.comm_round

    # A round

    def round_clients(self) -> Sequence[int]:
        """Return the clients of the present round, ascending; opens the round if none is open."""
        if not self._round.is_open:
            self._open_round()
        return self._clients

    def _open_round(self) -> None:
        self._clients = self.attendance.choose(self._features)
        self._unread = []
        self.state.clients = tuple(self._clients)
        self.state.verdicts = {}
        others = [client_id for feature in self._features for client_id in feature.opening(self._clients)]
        self._open(self._method.aggregation(self.state), [*self.recipients, *others], self._usual_now())
        self._opened_at = time.perf_counter()
        for feature in self._features:
            feature.opened(self._round)

    def receive(self, upload: Upload) -> None:
        """Check one upload, and fold it in, keep it for a later round or drop it.

        One that the defence finds implausible is refused, in simulation as elsewhere.

        Raises:
            ProtocolError: The upload is not expected now or not what its client has to send; nothing has changed.
        """
        before = self._start_of(upload.client_id)
        self._check_awaited(upload, before)
        self._check.check_parts(before, upload)
        upload = self._down.since(self._method.downlink(before, upload.client_id), upload)
        self._check_values(before, upload)
        if any(feature.drops(upload.client_id) for feature in self._features):
            self._round.set_aside(upload.client_id)
        elif self._is_plausible(before, upload):
            self._count(upload)

    def _check_values(self, before: ServerState, upload: Upload) -> None:
        """Check the upload's counters and variances: at once, or when the round closes, not to wait for a GPU now."""
        findings = self._check.values_outside(before, upload)
        if self.is_simulation and all(finding.broken.is_cuda for finding in findings):
            self._unread += findings
        else:
            raise_first(findings)

    def _count(self, upload: Upload) -> None:
        """Fold the upload in, unless a feature keeps it for another round."""
        counted: Upload | None = upload
        for feature in self._features:
            counted = None if counted is None else feature.received(counted)
        if counted is None:
            self._round.set_aside(upload.client_id)
            return
        self._round.take(counted)

    def _start_of(self, client_id: int) -> ServerState:
        found = (feature.start_of(client_id) for feature in self._features)
        return next((state for state in found if state is not None), self.state)

    def give_up(self, client_id: int) -> None:
        """Go on without ``client_id`` in the open round, without blame, and forget what it began in an earlier one."""
        if client_id not in self.answered():
            for feature in self._features:
                feature.given_up(client_id)
            super().give_up(client_id)

    def awaited(self) -> set[int]:
        """Return the clients whose upload may still come in the open round, also those at work since earlier ones."""
        return self._round.awaited()

    @property
    def num_uploads(self) -> int:
        """Number of clients whose uploads have arrived in the open round, those within edges' sums included."""
        return len(self.answered()) + self.edges.num_more

    def close_round(self) -> RoundRecord:
        """Aggregate the uploads that arrived, test the new global model in rounds with a test, return the record."""
        raise_first(self._unread)
        unfinished = self._round.fold_the_rest()
        # Features come before the model: edges and secure sums fold their sums in here, or find the round void.
        found = [feature.closing(self._round, unfinished) for feature in self._features]
        void = next((reason for reason in found if reason is not None), None)
        if void is None:
            with method_blamed(self._method, f"end of round {self._round.number}"):
                void = make_model(self._round, self.state, self._layout, self._check.times_median, self.is_simulation)
        if void is not None:
            LOGGER.error("round %d: %s; the global model stays as it was before", self._round.number, void)
        self._round.close()
        self.state.round = self.state.round + 1
        self.state.clients = ()
        evaluation_started = time.perf_counter()
        measured = Measured()
        if self._is_tested(self.state.round):
            measured = self._scoring.measure(self.state, self.memories if self.is_simulation else None)
        records = self._round.records
        now = time.perf_counter()
        record = RoundRecord(
            round=self.state.round,
            scores=measured.scores,
            validation_scores=measured.validation_scores,
            personal=measured.personal,
            validation=measured.validation,
            devices=measured.devices,
            clients=tuple(judged(record, self.state) for record in sorted(records, key=lambda record: record.client)),
            absent=tuple(sorted(set(self._clients) - {record.client for record in records})),
            refused=dict(sorted(self._round.refused.items())),
            quarantined=self.attendance.quarantined,
            not_finite=self._senders_not_finite(),
            model_is_finite=bool(all_finite(self.state.weights.values())),
            rolled_back=void,
            notes=dict(self._method.round_notes(self.state)),
            seconds=RoundSeconds(total=now - self._opened_at, evaluation=now - evaluation_started),
        )
        for feature in self._features:
            record = feature.closed(record)
        self.last_record = record
        self.attendance.round_closed(records)
        return record

    def _senders_not_finite(self) -> tuple[int, ...]:
        found = self._round.finite
        finite = fetched(list(found.values()))
        return tuple(sorted(client_id for client_id, is_fine in zip(found, finite, strict=True) if not is_fine))

    def _usual_now(self) -> UpdateNorms:
        """Return the usual size of uploads, from those of the round before."""
        return usual_norms([] if self.last_record is None else self.last_record.clients)

    def _is_tested(self, round_: int) -> bool:
        every = self._experiment.settings.validation_args.frequency_of_the_test
        return round_ % every == 0 or round_ == self._experiment.settings.train_args.comm_round

    @property
    def refused_before(self) -> Mapping[int, str]:
        return {} if self.last_record is None else self.last_record.refused

    @property
    def at_work(self) -> Mapping[int, int]:
        return {} if self._buffered is None else self._buffered.at_work

    # Between rounds

    def checkpoint(self) -> Checkpoint:
        """Return a checkpoint, which later rounds do not change. Call it between two rounds, after the first."""
        assert not self._round.is_open, "a round is open"
        assert self.last_record is not None, "no round was closed"
        return Checkpoint(
            weights=dict(self.state.weights),
            memory=self.state.memory.snapshot(),
            memories={client_id: memory.snapshot() for client_id, memory in self.memories.items()},
            best=replace(self._scoring.best),
            best_validation=replace(self._scoring.best_validation),
            last_record=self.last_record,
            standing=self.attendance.quarantine.standing,
            late={} if self._late is None else dict(self._late.late),
        )

    def whole_model(self) -> dict[str, Tensor]:
        """Return all tensors of the global model, frozen parameters among them."""
        return self._method.problem.whole(self.state.weights)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on as the server that made ``checkpoint`` would; its tensors are used, not copied."""
        assert not self._round.is_open, "a round is open"
        self.state.round = checkpoint.round
        travelling = self._method.problem.layout.travelling
        self.state.weights = {name: checkpoint.weights[name] for name in travelling}
        self.state.memory = checkpoint.memory
        self.memories.clear()  # the object stays: in simulation the clients' side holds it too
        self.memories.update(checkpoint.memories)
        self._scoring.best = checkpoint.best
        self._scoring.best_validation = checkpoint.best_validation
        self.last_record = checkpoint.last_record
        self.attendance.quarantine.standing = checkpoint.standing
        for feature in self._features:
            feature.resumed(checkpoint.last_record)
        if self._late is not None:
            self._late.late = dict(checkpoint.late)

    def keep_account(self, spent: PrivacySpent) -> None:
        """Go on with the privacy account of the last round that was written down.

        Where that is later than the restored checkpoint, the rounds between are run again with other noise, and count
        twice.
        """
        if self._private is not None:
            self._private.go_on_from(spent)

    def join(self, client_id: int, announcement: Announcement) -> bool:
        """Note what data and test samples a silo holds; see :meth:`Attendance.join`."""
        is_news = self.attendance.join(client_id, announcement)
        self._own_tests.join(client_id, announcement)
        return is_news

    def evict(self, client_id: int) -> None:
        """Go on without the client, in the open round and all later ones, until :meth:`Attendance.lift`."""
        self.attendance.quarantine.evict(client_id)
        self.give_up(client_id)  # between two rounds it may be at work since an earlier one

    def _note_refusal(self, client_id: int) -> None:
        if client_id not in self.edges:
            self.attendance.strike(client_id)

    # Edges, secure sums and silos' measurements

    @property
    def recipients(self) -> Sequence[int]:
        """Recipients of the open round's messages: clients, and edges in place of the clients that they serve."""
        return self.edges.in_place_of(self._clients)

    def order(self, edge: int) -> EdgeOrder:
        """Make the order for an edge: to train in the open round, or to measure between two rounds."""
        clients = self.edges.among(self._clients, edge) if self._round.is_open else self._own_tests.behind(edge)
        order = self.edges.order(edge, clients, self._usual_now())
        self._round.bytes_down[edge] = order.payload_bytes
        return order

    def receive_sum(self, message: EdgeSum) -> None:
        """Take the sum of an edge.

        Raises:
            ProtocolError: The sum is not awaited, or does not fit what the server knows; nothing has changed.
        """
        self.edges.receive(message, self._round)

    def receive_ready(self, message: SumMessage) -> None:
        """Note that a client has trained and waits for the secure sum.

        Raises:
            ProtocolError: The message is not expected now or cannot be true; nothing has changed.
        """
        assert self.sums is not None, "silos send uploads"
        upload = self.sums.announced(message)
        self._check_awaited(upload, self.state)
        self._check.check_steps(self.state, upload)
        assert isinstance(message.content, Ready)
        self.sums.take(message.client_id, message.content, self._round)

    @property
    def wants_measurements(self) -> bool:
        """Whether the round just closed is to be tested, and only silos have test samples."""
        own_tests_alone = self._experiment.silos_have_own_data and not self._experiment.tests
        return own_tests_alone and self._is_tested(self.state.round)

    @property
    def measurers(self) -> Sequence[int]:
        """Recipients of requests to measure: silos with test samples, and edges in place of silos that they serve."""
        return self._own_tests.measurers(self.at_work.keys())

    def can_measure(self, client_id: int) -> bool:
        """Return whether a silo has test samples, and is not at work."""
        return self._own_tests.has_tests(client_id) and client_id not in self.at_work

    def measured(self, measurements: Mapping[int, Measurement]) -> RoundRecord:
        """Add to the record of the round just closed the scores of its model on silos' own test samples.

        Silos are weighted by the number of test samples that they announced. Without any measurement the record stays
        as it is.
        """
        assert self.last_record is not None, "no round was closed"
        found = self._own_tests.figures(measurements)
        if found:
            scores = self._scoring.of_silos(found, self._own_tests.num_samples, self.state.profiles)
            self.last_record = self.last_record.model_copy(update={"scores": scores})
        return self.last_record


def _secret_sums(experiment: Experiment, state: ServerState) -> SecretSums | None:
    """Return the feature of secure sums where there are such; only then its ciphers are loaded."""
    if not experiment.sums_in_secret:
        return None
    from fedml_dapper.federation.round.secret_sums import SecretSums  # noqa: PLC0415

    return SecretSums(experiment, state)


def _checked_in(experiment: Experiment, attendance: Attendance) -> CheckedIn | None:
    args = experiment.settings.dapper_args
    if experiment.settings.common_args.training_type != "cross_device":
        return None
    check_in = args.check_in or CheckInArgs()
    return CheckedIn(check_in, args.min_clients_per_round, lambda: attendance.left_out, attendance.may_train)
