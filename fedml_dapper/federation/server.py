"""The server's side of a round: send, receive one by one, close."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import nan

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.accountant import spent
from fedml_dapper.federation.announcement import Announcement, Measurement
from fedml_dapper.federation.checkpoint import Checkpoint
from fedml_dapper.federation.collector import Collector, one_line
from fedml_dapper.federation.edges import EdgeSum, Order, check_sum
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.late_uploads import AtWork, LateUpload, arriving, late_upload
from fedml_dapper.federation.magnitude import Magnitude, is_finite, recorded_magnitude, usual_magnitude
from fedml_dapper.federation.quarantine import Quarantine
from fedml_dapper.federation.records import ClientRecord, EdgeRecord, PrivacySpent, RoundRecord, RoundSeconds
from fedml_dapper.federation.scoring import Measured, Scoring
from fedml_dapper.federation.sum_exchange import OpenedSum, SumExchange
from fedml_dapper.federation.sum_wire import Ready, SumCodec, SumMessage
from fedml_dapper.federation.testing import Figures
from fedml_dapper.federation.virtual_time import VirtualTime, at_work_after
from fedml_dapper.methods import ClientProfile, MergingAggregation, ServerState, TrainingMetrics, Upload
from fedml_dapper.profiling import part
from fedml_dapper.pruning import PruningPlan
from fedml_dapper.secure_sum import Witness
from fedml_dapper.seeding import Stream, numpy_generator

LOGGER = logging.getLogger(__name__)


class Server(Collector):
    """Drives a method round by round: ``round_clients``, ``downlink`` and ``receive`` per client, ``close_round``.

    Where edges stand between it and silos it sends each an :meth:`order` instead and gets one sum of their uploads.
    Edges go by their rank - 1, as silos do. Their sums are merged in this order, when the round closes.
    """

    def __init__(self, experiment: Experiment) -> None:
        backbone = experiment.method.problem.backbone
        weights = {name: tensor.detach().clone() for name, tensor in backbone.state_dict().items()}
        super().__init__(experiment, ServerState(round=0, weights=weights, profiles=experiment.profiles))
        self._scoring = Scoring(experiment)
        self._quarantine = Quarantine(experiment.settings.dapper_args.defence)
        self._virtual = VirtualTime(experiment)
        self.last_record: RoundRecord | None = None
        self._clients: list[int] = []
        self._left_out: list[int] = []
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
        self._begun: dict[int, int] = {}
        """Where an upload that counts in the open round began in an earlier one: that one, by client id."""
        self._edges = {edge.rank - 1: edge for edge in experiment.settings.comm_args.edges}
        self._not_finite: list[int] = []
        """Clients of the open round whose upload holds NaN or infinity, and counts."""
        self._sums: dict[int, EdgeSum] = {}
        """Those of the open round's edges that have answered."""
        self._asked: dict[int, dict[int, ClientProfile]] = {}
        """Clients of each edge's order as they were then: a silo may say meanwhile that it holds other data."""
        self._ready: dict[int, Ready] = {}
        """Clients of the open round whose upload waits, at theirs, for the sum of all."""
        self._exchange: SumExchange | None = None
        """The open round's, once nobody else can become ready."""
        self.opened_before = 0
        """The last round whose sum clients may have been asked to open before this server was started."""
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
        """Silos that have joined with test samples, by client id; but for those still at work, and for those of edges,
        in whose place are these."""
        able = {client_id for client_id, count in self._num_tests.items() if count} - self._at_work.keys()
        edges = [edge for edge in self._edges if self._measurers_of(edge)]
        return sorted({*able, *edges} - {client_id for edge in edges for client_id in self._measurers_of(edge)})

    def _measurers_of(self, edge: int) -> list[int]:
        return [silo - 1 for silo in sorted(self._edges[edge].silos) if self._num_tests.get(silo - 1)]

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
            self._not_counting, self._sums, self._begun = set(), {}, {}
            self._ready, self._exchange = {}, None
            self._not_finite = []
            if self._keeps_late:
                self._opening = replace(
                    self.state, weights=dict(self.state.weights), memory=self.state.memory.snapshot()
                )
            awaited = [*self.recipients, *self._virtual.arrived, *self._at_work]
            self._open(self._method.aggregation(self.state), awaited, self._usual_now())
            self._bytes_down = {client_id: one.bytes_down for client_id, one in self._at_work.items()}
            self._opened = time.perf_counter()
            for client_id in self._virtual.arrived:
                late = self._late.pop(client_id)
                self._bytes_down[client_id], self._begun[client_id] = late.bytes_down, late.change.round
                self._early[client_id] = arriving(late, round_, self.state.weights, self._layout)
            self._fold_in_turn()
        return self._clients

    @property
    def recipients(self) -> Sequence[int]:
        """To whom the open round's messages go: the clients, but for those of edges, and the edges of these."""
        served = {client_id: edge for edge in self._edges for client_id in self._chosen_of(edge)}
        return sorted({served.get(client_id, client_id) for client_id in self._clients})

    def is_edge(self, recipient: int) -> bool:
        """Whether that is no client, but an edge."""
        return recipient in self._edges

    def silos_of(self, edge: int) -> Sequence[int]:
        """Ranks of the silos that an edge serves."""
        return self._edges[edge].silos

    def num_behind(self, recipient: int) -> int:
        """How many clients can answer through a recipient: itself, or an edge's."""
        return len(self.silos_of(recipient)) if self.is_edge(recipient) else 1

    def order(self, edge: int) -> Order:
        """What an edge is to do in this round; between two, who of its clients is to measure."""
        state = self.state
        clients = self._chosen_of(edge) if self._aggregation is not None else self._measurers_of(edge)
        self._asked[edge] = {client_id: state.profiles[client_id] for client_id in clients}
        order = Order(
            state.round + 1, edge + 1, tuple(clients), state.clients, state.profiles, state.weights, state.memory,
            self._usual_now(),
        )  # fmt: skip
        self._bytes_down[edge] = order.payload_bytes
        return order

    def _chosen_of(self, edge: int) -> list[int]:
        """Clients of the open round that the edge serves."""
        return [client_id for client_id in self._clients if client_id + 1 in self._edges[edge].silos]

    def receive_sum(self, message: EdgeSum) -> None:
        """Take what an edge has summed; raises :class:`ProtocolError`, with nothing changed, if it does not fit."""
        edge = message.edge - 1
        if message.round != self.state.round + 1 or not self.is_edge(edge) or edge not in self._awaited:
            raise ProtocolError(f"the edge of rank {message.edge} is not awaited with a sum of round {message.round}")
        check_sum(message, self._method, self._asked[edge])
        self._awaited.remove(edge)
        self._sums[edge] = message

    def receive_ready(self, message: SumMessage) -> None:
        """Note that a client has trained, and waits for the others. Raises :class:`ProtocolError`, with nothing
        changed, where it is not expected now or says what it cannot."""
        if not isinstance(message.content, Ready):
            raise ProtocolError("expected to hear that a client is ready for the sum, got another message")
        upload = self._unseen(message.client_id, message.round, message.content.steps)
        self._check_awaited(upload, self.state)
        self._check.check_steps(self.state, upload)
        if message.content.keys is None:
            raise ProtocolError("it has opened the sum of this round before, and nothing is opened twice")
        keys = [each for ready in (*self._ready.values(), message.content) for each in ready.public]
        if len(set(keys)) < len(keys):
            raise ProtocolError("it says that a public key is its own which is another's, or the same twice")
        self._awaited.remove(message.client_id)
        self._ready[message.client_id] = message.content

    def begin_sum(self, codec: SumCodec, witness: Witness, opening: Callable[[], None] = lambda: None) -> SumExchange:
        """The sum over who is ready, before the round closes, where silos sum in secret.

        ``witness`` tells who has signed what. ``opening`` is called before clients are asked to open it. One that an
        earlier server may have seen opened is void: that of a round is a look at the clients' data, and there is no
        second one.
        """
        secure = self._method.problem.secure_sums
        assert secure is not None, "Experiment.sums_in_secret says so"
        round_, plans = self.state.round + 1, {client_id: self._plan_of(client_id) for client_id in self._ready}
        self._exchange = SumExchange(round_, self._ready, plans, self._layout, secure.rules, codec, witness, opening)
        if round_ <= self.opened_before:
            self._exchange.end("it may have been opened before the server crashed, and nothing is opened twice")
        return self._exchange

    def _plan_of(self, client_id: int) -> PruningPlan:
        return self._method.sendable(self._method.plan(self.state, client_id))

    def _unseen(self, client_id: int, round_: int, steps: int) -> Upload:
        """What is known of an upload of which nothing is to be seen."""
        if not 0 <= client_id < len(self.state.profiles):
            raise ProtocolError(f"there is no client {client_id}")
        samples = self._method.trained_samples(self.state.profiles[client_id])
        metrics = TrainingMetrics(nan, steps, 0.0)
        return Upload(round_, client_id, samples, {}, metrics, self._plan_of(client_id))

    def receive(self, upload: Upload) -> None:
        """Take one upload; one that on the virtual clock does not count is checked, and dropped or kept for later.

        Raises :class:`ProtocolError`, with nothing changed, if it is not expected now or not what its client has to
        send. One that the defence finds implausible is refused, in simulation as elsewhere.
        """
        earlier = self._at_work.get(upload.client_id)
        before = self.state if earlier is None else earlier.server
        self._check_awaited(upload, before)
        self._check.check_form(before, upload)
        if self._virtual.drops(upload.client_id):
            self._goes_on_without(upload.client_id)
            return
        if not self._is_plausible(before, upload):
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
        if self.holds_memories and not is_finite((*upload.weights.values(), *upload.extras.values())):
            self._not_finite.append(upload.client_id)
        self._take(upload)

    def give_up(self, client_id: int) -> None:
        """As of every collector; what a silo began in an earlier round is forgotten too."""
        if client_id not in self.answered():
            self._at_work.pop(client_id, None)
            super().give_up(client_id)

    def evict(self, client_id: int) -> None:
        """Go on without the client, in the open round and all later ones, until :meth:`lift`."""
        self._quarantine.evict(client_id)
        if self._aggregation is not None:
            self.give_up(client_id)

    def lift(self, client_id: int) -> bool:
        """Let a client in quarantine, or evicted, take part from the next round on; False where it is neither."""
        return self._quarantine.lift(client_id, self.state.round + 1)

    def is_evicted(self, client_id: int) -> bool:
        """Whether only :meth:`lift` lets the client in again."""
        return self._quarantine.is_evicted(client_id)

    @property
    def left_out(self) -> Mapping[int, int]:
        """Clients in quarantine, or evicted, and the last round in which they are."""
        return self._quarantine.out(self.state.round + 1)

    @property
    def refused_before(self) -> Mapping[int, str]:
        return {} if self.last_record is None else self.last_record.refused

    @property
    def at_work(self) -> Mapping[int, int]:
        return {client_id: one.begun for client_id, one in self._at_work.items()}

    def answered(self) -> set[int]:
        """Clients whose upload of the open round has arrived and was taken, or does not count on the virtual clock, and
        edges whose sum has."""
        return super().answered() | self._sums.keys() | self._not_counting | self._ready.keys()

    @property
    def num_uploads(self) -> int:
        """How many clients' uploads have arrived in the open round, those within edges' sums included."""
        return len(self.answered()) + sum(len(message.records) - 1 for message in self._sums.values())

    def close_round(self) -> RoundRecord:
        """Aggregate what arrived, test the new global model if its turn has come, and say what happened."""
        assert self._aggregation is not None, "round_clients comes first"
        unfinished = self._fold_the_rest()
        edges = {edge + 1: self._merge(edge) for edge in sorted(self._sums)}
        self._at_work = self._still_at_work(unfinished) if self._keeps_late else {}
        self._count_in_the_silent()
        void = self._merge_opened()
        rolled_back = void or self._aggregate()
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
            clients=tuple(self._judged(record) for record in sorted(self._records, key=lambda record: record.client)),
            edges=edges,
            absent=tuple(sorted(set(self._clients) - {record.client for record in self._records})),
            refused={one: reason for one, reason in sorted(self._refused.items()) if not self.is_edge(one)},
            quarantined=tuple(self._left_out),
            not_finite=tuple(sorted(self._not_finite)),
            model_is_finite=is_finite(self.state.weights.values()),
            rolled_back=rolled_back,
            at_work=dict(self.at_work),
            clock=self._virtual.close(self.last_record, self._refused, self._late),
            privacy=self._privacy_spent(),
            opened_share=None if self._exchange is None or void else self._opened_sum.opened_share,
            notes=dict(self._method.round_notes(self.state)),
            seconds=RoundSeconds(total=now - self._opened, evaluation=now - evaluation_started),
        )
        for record in self._records:
            if self._experiment.roster.relieve(record.client, record.level, record.seconds):
                self._renew_profile(record.client)
        return self.last_record

    @property
    def _opened_sum(self) -> OpenedSum:
        assert self._exchange is not None
        assert self._exchange.opened is not None, "the sum is void, or not over"
        return self._exchange.opened

    def _merge_opened(self) -> str | None:
        """Fold in what the clients' secure sum came to, where there is one; or say why it came to nothing."""
        if self._exchange is None:
            return None
        assert self._exchange.is_over, "a round closes after its sum"
        for client_id, reason in sorted(self._exchange.lost.items()):
            LOGGER.warning("round %d: client %d left the sum: %s", self.state.round + 1, client_id, one_line(reason))
        if self._exchange.opened is None:
            return self._rolled_back(f"the sum is void: {one_line(self._exchange.void)}")
        assert isinstance(self._aggregation, MergingAggregation), "check_privacy sees to that"
        self._aggregation.merge(self._opened_sum.partial)
        for client_id in self._opened_sum.clients:
            upload = self._unseen(client_id, self.state.round + 1, self._ready[client_id].steps)
            record = self._record(upload, self.state.profiles[client_id])
            self._records.append(record.model_copy(update={"bytes_up": self._opened_sum.bytes_up[client_id]}))
        return None

    def _count_in_the_silent(self) -> None:
        """Where the server adds noise, chosen clients without an upload count as ones that changed nothing: what is
        divided by has to be the same with and without anybody's upload (``pruning.private``)."""
        privacy = self._method.problem.privacy
        if privacy is None or privacy.where != "server":
            return
        assert self._aggregation is not None
        for client_id in sorted(set(self._clients) - {record.client for record in self._records}):
            sent, nothing = self._method.downlink(self.state, client_id), TrainingMetrics(0.0, 0, 0.0)
            self._aggregation.add(Upload(sent.round, client_id, 0, sent.weights, nothing, sent.plan))

    def _privacy_spent(self) -> PrivacySpent | None:
        """After the round that closes."""
        privacy, before = self._method.problem.privacy, self.last_record
        if privacy is None:
            return None
        uses = {client_id: self._num_downlinks.get(client_id, 1) for client_id in self._clients}
        if not (privacy.is_secret and privacy.where == "client"):  # otherwise one that trains again sends other noise
            uses = dict.fromkeys(uses, 1)
        return spent(privacy, None if before is None else before.privacy, uses)

    def _aggregate(self) -> str | None:
        """Make the new global model; or say why it stays as it is, where the uploads would ruin it.

        In the first round nothing is known of what is usual: there it shows when all uploads are in. In simulation,
        where clients run our own code, a model that is ruined is a result.
        """
        assert self._aggregation is not None
        times = self._check.times_median
        if times is not None and (outliers := self._outliers(times)):
            for client_id, reason in outliers.items():
                self._note_refusal(client_id, reason)
            self._records = [record for record in self._records if record.client not in outliers]
            return self._rolled_back(f"what clients {sorted(outliers)} sent is out of all proportion")
        weights, memory = dict(self.state.weights), self.state.memory.snapshot()
        with part("aggregation"):
            self._aggregation.close()
        made = (*self.state.weights.values(), *self.state.memory.tensors.values())
        if self.holds_memories or is_finite(made):
            return None
        self.state.weights, self.state.memory = weights, memory
        senders = sorted(record.client for record in self._records)
        return self._rolled_back(f"the model made of what clients {senders} sent is not finite")

    def _judged(self, record: ClientRecord) -> ClientRecord:
        """With what the defence made of the upload, where it judges them."""
        verdict = self.state.verdicts.get(record.client)
        if verdict is None:
            return record
        if verdict.counted == 0:
            LOGGER.warning(
                "round %d: upload of client %d left out: it agrees by %.3g with the others", self.state.round,
                record.client, verdict.agreement,
            )  # fmt: skip
        said = {"agreement": verdict.agreement, "length": verdict.length, "counted": verdict.counted}
        return record.model_copy(update=said)

    def _outliers(self, times: float) -> dict[int, str]:
        """Clients whose folded upload is no better than one that would have been refused, had it been known when it
        came what is usual; and why."""
        usual, outliers = usual_magnitude(self._records).without(self._usual), {}
        for record in self._records:
            try:
                recorded_magnitude(record).check(usual, times)
            except ProtocolError as error:
                outliers[record.client] = str(error)
        return outliers

    def _rolled_back(self, reason: str) -> str:
        LOGGER.error("round %d: %s; the global model stays as it was before", self.state.round + 1, reason)
        return reason

    def _usual_now(self) -> Magnitude:
        """What is known to be usual among the open round's uploads, from those of the round before."""
        return usual_magnitude([] if self.last_record is None else self.last_record.clients)

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

    def _note_refusal(self, client_id: int, reason: str) -> None:
        super()._note_refusal(client_id, reason)
        if not self.is_edge(client_id) and self._quarantine.strike(client_id, self.state.round + 1):
            last = self._quarantine.standing.out_until[client_id]
            LOGGER.warning("client %d is in quarantine up to and including round %d", client_id, last)

    def _goes_on_without(self, client_id: int) -> None:
        self._awaited.remove(client_id)
        self._not_counting.add(client_id)
        self._fold_in_turn()

    def _record(self, upload: Upload, profile: ClientProfile, begun: int | None = None) -> ClientRecord:
        earlier = self._at_work.get(upload.client_id)
        began_as = profile if earlier is None else earlier.server.profiles[upload.client_id]
        return super()._record(upload, began_as, self._begun.get(upload.client_id, begun))

    def _merge(self, edge: int) -> EdgeRecord:
        """Fold in what an edge has summed."""
        message = self._sums.pop(edge)
        for client_id, reason in message.refused.items():
            self._note_refusal(client_id, reason)
        if message.records:
            assert isinstance(self._aggregation, MergingAggregation), "Method.takes_edges sees to that"
            with part("aggregation"):
                self._aggregation.merge(message.sum)
            self._records.extend(message.records)
        return EdgeRecord(
            clients=tuple(record.client for record in message.records),
            bytes_down=self._bytes_down[edge],
            bytes_up=message.payload_bytes,
        )
