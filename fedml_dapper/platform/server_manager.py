"""FedML's server manager for this package: rounds with deadlines, partial participation and clients that die."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Any

from fedml.arguments import Arguments
from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.client.message_define import MyMessage

from fedml_dapper.device.certificate_signatures import CertifiedWitness
from fedml_dapper.errors import DapperError, ProtocolError, printable
from fedml_dapper.federation import (
    FIRST_WITH_SUMS,
    Codec,
    EdgeCodec,
    Experiment,
    Measurement,
    RoundRecord,
    RunJournal,
    Server,
    SumCodec,
    cost_of_rounds,
    read_announcement,
    read_measurement,
    read_measurements,
)
from fedml_dapper.federation.wire.vocabulary import HOLDS, SILO, SUM, TICKET
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.credentials import CredentialFiles
from fedml_dapper.operations.orders import Order
from fedml_dapper.operations.status import Progress
from fedml_dapper.platform.dispatch import Ranks
from fedml_dapper.platform.phase import STATE_OF, Phase
from fedml_dapper.platform.round_manager import GOODBYE_SECONDS, RoundManager
from fedml_dapper.platform.server_aggregator import DapperServerAggregator
from fedml_dapper.platform.steering import EVICTED, Steering
from fedml_dapper.platform.summing import Summing
from fedml_dapper.platform.transports import open_downwards, open_transport
from fedml_dapper.secure_grpc import PARTS_NAME, Transport

LOGGER = logging.getLogger(__name__)


class DapperServerManager(RoundManager):
    """Runs the rounds of a federation whose clients are in other processes.

    A process serves one client (cross-silo) or several, one after another (MPI). Under MPI a free process takes the
    next client, and the client's memory travels with it; a silo keeps its own memory. An edge answers for several silos
    at once.

    A round closes when all clients that are waited for have answered, or at ``round_timeout_s`` with at least
    ``min_clients_per_round`` uploads. With ``buffer_size`` a round closes after so many uploads, and the other clients
    go on training.

    Silos with data of their own announce these when they come online. Where the server has no test samples, it sends
    them the model of every tested round to be measured before the round is recorded.
    """

    def __init__(
        self,
        args: Arguments,
        aggregator: DapperServerAggregator,
        experiment: Experiment,
        codec: Codec,
        edge_codec: EdgeCodec,
        sum_codec: SumCodec,
        journal: RunJournal,
        comm: Any,
        processes: Collection[int],
    ) -> None:
        self._server: Server = aggregator.server
        self._steering = Steering(self._server, self, experiment.settings.train_args.client_num_in_total, journal)

        def connect(audit: AuditLog) -> Transport:
            if args.backend == "DAPPER_GRPC":
                folder = None if journal.run_dir is None else journal.run_dir / PARTS_NAME
                return open_downwards(args, 0, processes, audit, self, folder)
            return open_transport(args, comm, 0, len(processes))

        super().__init__(args, aggregator, self._server, experiment, codec, processes, connect, comm=comm)
        if self._server.is_simulation:
            cost = cost_of_rounds(experiment, lambda client_id: self._server.state.profiles[client_id])
            self._dispatch = Ranks(len(processes), cost, self._no_more_awaited)
        grpc = experiment.settings.comm_args.dapper_grpc
        self._credentials = CredentialFiles(grpc, 0) if experiment.sums_in_secret and grpc is not None else None
        """The server's certificate and authorities, by which it checks signatures in secure sums."""
        self._edge_codec = edge_codec
        self._sum_codec = sum_codec
        self._summing: Summing | None = None
        """The secure sum of the open round, while it goes on."""
        self._journal = journal
        self._measured: dict[int, Measurement] = {}
        self._deferred: dict[str, Message] = {}
        """Uploads of clients still at work (``buffer_size``) that came while a round's model was measured or the run
        was paused, by ticket, one a client at most. They count in the next round, and are read when it opens."""

    def register_message_receive_handlers(self) -> None:
        super().register_message_receive_handlers()
        self.register_message_receive_handler(SUM, self.handle_sum)

    def run(self) -> None:
        """Run all rounds; errors that end them early are raised."""
        self.register_message_receive_handlers()
        try:
            self._journal.started()
            self.loop()
            self.com_manager.forget_finished_rounds()  # messages of silos that were at work to the end
        finally:
            self._journal.finished()
            self._close_logs()

    # Coming online

    def handle_message_connection_ready(self, msg_params: Message) -> None:
        # A finished run needs no silos, which may have left long ago. Ranks of a simulation are there, and end only
        # when they are told.
        is_awaited = self._server.has_rounds_left or self._server.is_simulation
        self._greet(self._join_seconds if is_awaited else GOODBYE_SECONDS)

    def _understands(self, process: int, message: Message) -> bool:
        if not super()._understands(process, message):
            return False
        if self._experiment.sums_in_secret and self._callers.schemas[process] < FIRST_WITH_SUMS:
            self._refuse_silo(process, "this run sums under masks, which its version of fedml_dapper cannot: upgrade")
            return False
        return True

    def _lets_join(self, process: int, message: Message) -> bool:
        if self._server.attendance.quarantine.is_evicted(process - 1):
            self._refuse_silo(process, EVICTED)
            return False
        if not self._experiment.silos_have_own_data:
            return True
        if process - 1 not in self._server.edges:
            return self._takes_in(process, message.get(HOLDS))
        silo = message.get(SILO)
        if silo is None:
            return True  # the edge itself
        # `True` is 1 to Python, and a string is no rank: an edge may send either, and is not to end the run by it.
        if type(silo) is int and silo in self._server.edges.ranks_of_silos(process - 1):
            self._takes_in(silo, message.get(HOLDS), process)
        else:
            shown = printable(str(silo))
            self.note_drop("rank %d speaks for silo %s, which it does not serve; dropped", process, shown)
        return False

    def _takes_in(self, silo: int, announcement: Any, edge: int | None = None) -> bool:
        """Return whether a silo, perhaps of an edge, can take part with the data it announces; if not, tell it why."""
        client_id = silo - 1
        levels = len(self._experiment.settings.dapper_args.levels.ratios)
        try:
            announced = read_announcement(announcement, levels)
            is_news = self._server.join(client_id, announced)
        except ProtocolError as error:
            self._refuse_silo(silo, str(error), edge)
            return False
        if is_news:
            level = self._server.state.profiles[client_id].level
            LOGGER.info(
                "silo %d joins with %d training samples of %s at level %d",
                silo,
                announced.num_train,
                announced.domain,
                level,
            )
        return True

    def _is_there(self, process: int, again: bool) -> None:
        if self._measuring is not None:
            if again:
                self._measure_again(process)
        elif self._summing is not None:
            if again:
                self._summing.lose(process - 1, "it was started again, and knows nothing of the sum")
        elif self._phase is Phase.TRAINING:
            if not self._unanswered_by(process):  # not one that only reports once more that it is online
                self._send_next(process)
            self._close_if_complete()
        elif self._phase is not Phase.LEAVING and not self._callers.missing:
            self._open_round_or_leave()

    # A round

    def _no_more_awaited(self) -> Collection[int]:
        """Return the clients whose uploads have come, or will not come."""
        return self._server.answered() | self._server.refused.keys()

    def _open_round_or_leave(self) -> None:
        is_over = self._steering.is_last_round or not self._server.has_rounds_left
        if is_over:
            self._leave()
        elif self._steering.is_paused:
            self._enter(Phase.PAUSED)
            self.set_deadline(None)
            LOGGER.info("paused after round %d", self._server.state.round)
        else:
            self._open_round()

    def _open_round(self) -> None:
        self._journal.round_opened(list(self._server.round_clients()))
        self._begin(self._server.recipients)
        deferred = self._deferred
        self._deferred = {}
        for message in deferred.values():
            self.handle_message_receive_model_from_client(message)
        self._close_if_complete()

    def _payload_for(self, client_id: int) -> bytes:
        if client_id in self._server.edges:
            return self._edge_codec.encode_order(self._server.order(client_id), self._callers.schemas[client_id + 1])
        return super()._payload_for(client_id)

    def handle_message_receive_model_from_client(self, msg_params: Message) -> None:
        if self._summing is not None:
            self.note_drop("rank %s: an upload that comes too late for its sum, dropped", msg_params.get_sender_id())
        elif self._phase in (Phase.MEASURING, Phase.PAUSED):
            self._defer(msg_params)
        else:
            super().handle_message_receive_model_from_client(msg_params)

    def _defer(self, message: Message) -> None:
        """Keep an upload for the next round, unless it is too late; a pause may last, and who sends may not stop."""
        process = int(message.get_sender_id())
        at_work = [client_id for client_id in self._unanswered_by(process) if client_id in self._server.at_work]
        ticket = message.get(TICKET)
        if ticket in [self._sent[client_id] for client_id in at_work]:
            self._deferred.setdefault(ticket, message)
        else:
            self.note_drop("rank %d: an upload that comes between two rounds and is too late, dropped", process)

    def _read(self, process: int, data: Any) -> tuple[int, Callable[[], None]]:
        if self._experiment.sums_in_secret:
            return self._read_ready(process, data)
        if not (process - 1 in self._server.edges and isinstance(data, bytes)):
            return super()._read(process, data)
        message = self._edge_codec.decode_sum(data)
        if message.edge != process:
            raise ProtocolError(f"it speaks for the edge of rank {message.edge}")
        return process - 1, lambda: self._server.receive_sum(message)

    def _read_ready(self, process: int, data: Any) -> tuple[int, Callable[[], None]]:
        """Decode the message of a silo that is ready for a secure sum; see :meth:`_read`."""
        message = self._sum_codec.decode(data if isinstance(data, bytes) else b"")
        if self._process_of(message.client_id) != process:
            raise ProtocolError(f"it speaks for client {message.client_id}, which another process serves")
        return message.client_id, lambda: self._server.receive_ready(message)

    def handle_sum(self, msg_params: Message) -> None:
        """Take a silo's answer in a step of the secure sum."""
        process = int(msg_params.get_sender_id())
        if self._summing is None:
            return  # the sum was opened without this silo's shares
        if not self._summing.take_answer(process - 1, msg_params.get(SUM)):
            self.note_drop("rank %d: what is no step of the present sum, dropped", process)

    def on_deadline(self) -> None:
        if self._phase is Phase.LEAVING:
            self.stop()
        elif self._summing is not None:
            self._summing.time_is_over()
        elif self._measuring is not None:
            silent = sorted(self._measuring.awaited)
            LOGGER.warning("clients %s measured nothing within %s", silent, self._timeout())
            self._measuring.time_is_over()
        elif not self._server.has_rounds_left:
            self._leave()
        elif self._phase is not Phase.TRAINING:
            self._start_without_the_missing()
        else:
            self._note_silent()
            minimum = self._experiment.settings.dapper_args.min_clients_per_round
            if self._num_answers < minimum:
                self._give_up(
                    f"round {self._server.state.round + 1}: {self._server.num_uploads} of the {minimum} uploads that"
                    f" min_clients_per_round asks for came within {self._timeout()}; silent: {sorted(self._silent)},"
                    f" refused: {sorted(self._server.refused)}"
                )
            self._close()

    def _start_without_the_missing(self) -> None:
        missing = self._callers.missing
        minimum = self._experiment.settings.dapper_args.min_clients_per_round
        if sum(self._server.edges.num_behind(process - 1) for process in self._callers.online) < minimum:
            self._give_up(
                f"{len(self._callers.online)} of {len(self._callers.expected)} client processes came online within"
                f" {self._join_seconds:g} s; missing ranks: {missing}. Are they started with the same addresses?"
            )
        LOGGER.warning("starting without ranks %s, which did not come online within %g s", missing, self._join_seconds)
        self._open_round_or_leave()

    def _is_complete(self, answered: set[int], awaited: set[int]) -> bool:
        args = self._experiment.settings.dapper_args
        full = args.buffer_size is not None and len(answered) >= args.buffer_size
        return self._num_answers >= args.min_clients_per_round and (full or awaited <= answered)

    @property
    def _num_answers(self) -> int:
        """Number of clients that have answered in the open round.

        In secure sums, clients that refuse since they may have opened this round before count too: after a crash of the
        server the round is void, and waiting would not help.
        """
        refused = len(self._server.refused) if self._experiment.sums_in_secret else 0
        return self._server.num_uploads + refused

    def _outlook(self) -> str:
        args = self._experiment.settings.dapper_args
        fewest = args.min_clients_per_round
        possible = self._num_answers + sum(map(self._server.edges.num_behind, self._server.awaited()))
        if possible >= fewest:
            return super()._outlook()
        return (
            f"{possible} of the {fewest} uploads that min_clients_per_round asks for can come now,"
            f" and where no more do within the round's {args.round_timeout_s:g} s, the run ends"
        )

    def _witness(self) -> CertifiedWitness:
        config = self._experiment.settings.comm_args.dapper_grpc
        assert config is not None, "sums in secret are for silos that have certificates"
        assert self._credentials is not None
        self._credentials.renew()  # half replaced, the ones before still count, as they do for calls
        return CertifiedWitness(config, self._credentials.current)

    def _close(self) -> None:
        for client_id in self._unsent:
            self._server.give_up(client_id)
        if self._server.sums is None:
            self._close_after_sum()
            return
        self._enter(Phase.SUMMING)
        exchange = self._server.sums.begin(self._sum_codec, self._witness(), self._journal.sum_opens)
        self._summing = Summing(exchange, self._sum_codec, self._send_sum_message, self._allow_step, self._end_sum)
        self._summing.begin()

    def _send_sum_message(self, client_id: int, data: bytes) -> bool:
        message = Message(SUM, 0, self._process_of(client_id))
        message.add_params(SUM, data)
        return self._send(message)

    def _allow_step(self) -> None:
        privacy = self._experiment.settings.dapper_args.privacy
        assert privacy is not None
        assert privacy.secure_aggregation is not None
        self.set_deadline(privacy.secure_aggregation.step_timeout_s)

    def _end_sum(self, lost: Collection[int]) -> None:
        self._summing = None
        self._silent |= set(lost)  # the next round does not wait for them until they answer
        self.set_deadline(None)
        self._close_after_sum()

    def _close_after_sum(self) -> None:
        self._enter(Phase.WAITING)
        record = self._server.close_round()
        self._refused_uploads += len(record.refused)
        if missing := sorted(set(record.absent) - record.at_work.keys()):
            LOGGER.warning("round %d closed without clients %s", record.round, missing)
        self._measured = {}
        if not (self._server.wants_measurements and self._begin_measuring(self._server.measurers)):
            self._go_on_from(record)

    def _go_on_from(self, record: RoundRecord) -> None:
        self._journal.round_closed(record)
        self.com_manager.forget_finished_rounds([self._process_of(client_id) for client_id in record.at_work])
        self._open_round_or_leave()

    # Measurements of silos

    def _note_measured(self, sender: int, answer: Any) -> None:
        headline = self._experiment.method.problem.task.headline
        texts = {sender: answer}
        if sender in self._server.edges:
            by_rank = read_measurements(answer)
            texts = {silo - 1: by_rank[silo] for silo in self._server.edges.ranks_of_silos(sender) if silo in by_rank}
        self._measured |= {client_id: read_measurement(text, headline) for client_id, text in texts.items()}

    def _all_measured(self) -> None:
        self._go_on_from(self._server.measured(self._measured))

    # Operators' orders, and status for them

    def ask(self, order: Order) -> Future[str]:
        return self.call(partial(self._steering.carry_out, order))

    def go_on(self) -> None:
        ends_now = self._steering.is_last_round and self._phase is Phase.WAITING
        if self._phase is Phase.PAUSED or ends_now:
            self._open_round_or_leave()

    def _let_go(self, process: int) -> None:
        super()._let_go(process)
        if self._summing is not None:
            self._summing.lose(process - 1, "it may no longer call")

    def expel(self, client_id: int) -> None:
        silo = client_id + 1
        edges = self._experiment.settings.comm_args.edges
        self._refuse_silo(silo, EVICTED, next((edge.rank for edge in edges if silo in edge.silos), None))
        self._let_go(silo)

    def _progress(self) -> Progress:
        server = self._server
        record = self._server.last_record
        round_ = server.state.round + (1 if self._phase in (Phase.TRAINING, Phase.SUMMING) else 0)
        out = {
            self._name_of(client + 1): "evicted"
            if server.attendance.quarantine.is_evicted(client)
            else f"up to round {until}"
            for client, until in server.attendance.left_out.items()
        }
        return Progress(
            state=STATE_OF[self._phase],
            round=round_,
            rounds=self._experiment.settings.train_args.comm_round,
            standings=self._standings(server.attendance.left_out),
            out=out,
            absent=() if record is None else tuple(self._name_of(client + 1) for client in record.absent),
            refused_uploads=self._refused_uploads + len(server.refused if self._phase is Phase.TRAINING else ()),
        )

    # The end

    def _leave(self) -> None:
        for client_id in self._server.at_work:
            self._server.give_up(client_id)
        super()._leave()

    def _give_up(self, reason: str) -> None:
        for process in self._told_of_the_end:
            self._send(Message(MyMessage.MSG_TYPE_S2C_FINISH, 0, process))
        raise DapperError(reason)

    @property
    def _round_seconds(self) -> float:
        return self._experiment.settings.dapper_args.round_timeout_s

    @property
    def _join_seconds(self) -> float:
        args = self._experiment.settings.dapper_args
        return args.round_timeout_s if args.join_timeout_s is None else args.join_timeout_s

    def _timeout(self) -> str:
        return f"{self._experiment.settings.dapper_args.round_timeout_s:g} s"
