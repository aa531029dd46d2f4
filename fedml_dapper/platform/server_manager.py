"""FedML's server manager with rounds that end: deadlines, partial participation, clients that die."""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict, deque
from typing import Any

from fedml.arguments import Arguments
from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.client.message_define import MyMessage
from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager

from fedml_dapper.errors import DapperError, ProtocolError
from fedml_dapper.federation import (
    Codec,
    Experiment,
    Measurement,
    RoundRecord,
    RunJournal,
    Server,
    read_announcement,
    read_measurement,
)
from fedml_dapper.methods import Memory, Upload
from fedml_dapper.platform.client_manager import HOLDS, LIFE, MEASURE, MEASURED, REFUSED, TICKET
from fedml_dapper.platform.event_loop import EventLoop
from fedml_dapper.platform.server_aggregator import DapperServerAggregator
from fedml_dapper.platform.transports import reason_of

LOGGER = logging.getLogger(__name__)
GOODBYE_SECONDS = 10.0
"""How long the server waits for clients to confirm the end of the run, or to come and hear of it."""


class DapperServerManager(EventLoop, FedMLServerManager):  # type: ignore[misc]  # fedml is untyped
    """Runs the rounds of a federation whose clients live in other processes.

    A process serves one client (cross-silo) or several, one after another (MPI). Under MPI a client moves to the next
    rank in every round, and what it remembers travels with it; a silo keeps its own. A round closes when everyone who
    should answer has, or at ``round_timeout_s`` with at least ``min_clients_per_round`` uploads. A client that let a
    round pass is still sent the next, but no longer waited for until it answers again. With ``buffer_size`` a round
    closes with so many uploads, and who is not done goes on.

    Silos with data of their own say what they hold when they come online, and join with that. Where the server has no
    test samples, it sends them the model of every tested round to be measured before the round is recorded.
    """

    def __init__(
        self, args: Arguments, aggregator: DapperServerAggregator, experiment: Experiment, codec: Codec,
        journal: RunJournal, comm: Any, num_processes: int,
    ) -> None:  # fmt: skip
        EventLoop.__init__(self, num_processes)
        FedMLServerManager.__init__(self, args, aggregator, comm, 0, num_processes, args.backend)
        self._server: Server = aggregator.server
        self._experiment = experiment
        self._codec = codec
        self._journal = journal
        self._online: set[int] = set()
        self._said_goodbye: set[int] = set()
        self._queues: dict[int, deque[int]] = defaultdict(deque)
        self._sent: dict[int, str] = {}
        """Clients that were sent the round's model or are at work since an earlier one, and the ticket that came with
        what they were sent."""
        self._silent: set[int] = set()
        self._lives: dict[int, str] = {}
        """The clients', by process."""
        self._measuring: dict[int, str] = {}
        """Clients that are to measure the model of the round just closed, and the ticket that came with it."""
        self._measured: dict[int, Measurement] = {}
        self._deferred: list[Message] = []
        """Uploads that came while a round's model was measured."""
        self._open = False
        self._leaving = False
        self._greeted = False

    def run(self) -> None:
        """Run all rounds; raises what ended them early."""
        self.register_message_receive_handlers()
        self.register_message_receive_handler(MEASURED, self.handle_measurement)
        try:
            self._journal.started()
            self.loop()
            self.com_manager.forget_finished_rounds()  # what silos sent that were at work to the end
        finally:
            self._journal.finished()

    # Coming online

    def handle_message_connection_ready(self, msg_params: Message) -> None:
        if self._greeted:  # MQTT tells of every reconnection
            return
        self._greeted = True
        # a finished run needs no silos, which may have left long ago; ranks are there, and end only when told
        is_awaited = self._server.has_rounds_left or self._server.holds_memories
        self.set_deadline(self._join_seconds if is_awaited else GOODBYE_SECONDS)
        asked = range(1, self._num_processes + 1)
        missing = [n for n in asked if not self._send(Message(MyMessage.MSG_TYPE_S2C_CHECK_CLIENT_STATUS, 0, n))]
        if missing:
            LOGGER.info("waiting for ranks %s, which are not up yet; each calls when it is", missing)

    def handle_message_client_status_update(self, msg_params: Message) -> None:
        process = int(msg_params.get_sender_id())
        if msg_params.get(MyMessage.MSG_ARG_KEY_CLIENT_STATUS) == self.RUN_FINISHED_STATUS_FLAG:
            self._said_goodbye.add(process)
            if self._leaving and self._said_goodbye >= self._online:
                self.stop()
            return
        if self._experiment.silos_have_own_data and not self._lets_join(process, msg_params.get(HOLDS)):
            return
        self._online.add(process)
        self._note_life(process, str(msg_params.get(LIFE)))
        if self._measuring:
            self._measure_again(process)
        elif self._open:
            if not self._owed_by(process):
                self._send_next(process)  # back from a restart, or late; some say twice that they are there
            self._close_if_complete()
        elif not self._leaving and len(self._online) == self._num_processes:
            self._open_round_or_leave()

    def _lets_join(self, process: int, announcement: Any) -> bool:
        """Whether a silo can take part with the data that it says it holds; if not, it hears why."""
        client_id, levels = process - 1, len(self._experiment.settings.dapper_args.levels.ratios)
        try:
            held = read_announcement(announcement, levels)
            is_news = self._server.join(client_id, held)
        except ProtocolError as error:
            LOGGER.warning("silo %d is refused: %s", process, error)
            message = Message(REFUSED, 0, process)
            message.add_params(REFUSED, str(error))
            self._send(message)
            return False
        if is_news:
            level = self._server.state.profiles[client_id].level
            LOGGER.info(
                "silo %d joins with %d training samples of %s at level %d", process, held.num_train, held.domain, level
            )
        return True

    def _note_life(self, process: int, life: str) -> None:
        """A process that was started again knows nothing of what its earlier life was sent."""
        if self._lives.setdefault(process, life) == life:
            return
        self._lives[process] = life
        for client_id in reversed(self._owed_by(process)):
            del self._sent[client_id]
            if client_id in self._server.at_work:
                LOGGER.info("client %d was started again; what it began in an earlier round is lost", client_id)
                self._server.give_up(client_id)
            else:
                LOGGER.info("client %d was started again; it is sent the round's model once more", client_id)
                self._queues[process].appendleft(client_id)

    # A round

    def _open_round_or_leave(self) -> None:
        if self._server.has_rounds_left:
            self._open_round()
        else:
            self._leave()

    def _open_round(self) -> None:
        chosen = list(self._server.round_clients())
        self._journal.round_opened(chosen)
        self._queues.clear()
        self._sent = {client_id: self._sent[client_id] for client_id in self._server.at_work}
        for client_id in chosen:
            self._queues[self._process_of(client_id)].append(client_id)
        self._open = True
        self.set_deadline(self._experiment.settings.dapper_args.round_timeout_s)
        for process in sorted(self._queues):
            self._send_next(process)
        deferred, self._deferred = self._deferred, []
        for message in deferred:
            self.handle_message_receive_model_from_client(message)
        self._close_if_complete()

    def _send_next(self, process: int) -> None:
        """Send the process its next client's downlink, if it is there to take it."""
        if process not in self._online or not self._queues[process]:
            return
        client_id = self._queues[process][0]
        message = self._model_for(client_id)
        if self._send(message):
            self._queues[process].popleft()
            self._sent[client_id] = message.get(TICKET)
        else:
            self._online.discard(process)
            LOGGER.warning("the round goes on without client %d", client_id)

    def _model_for(self, client_id: int) -> Message:
        """What the client starts the round from, with a new ticket."""
        message = Message(MyMessage.MSG_TYPE_S2C_SYNC_MODEL_TO_CLIENT, 0, self._process_of(client_id))
        memory = self._server.memories.get(client_id, Memory()) if self._server.holds_memories else None
        payload = self._codec.encode(self._server.downlink(client_id), memory)
        message.add_params(MyMessage.MSG_ARG_KEY_MODEL_PARAMS, payload)
        message.add_params(MyMessage.MSG_ARG_KEY_CLIENT_INDEX, str(client_id))
        message.add_params(TICKET, secrets.token_hex(8))
        return message

    def handle_message_receive_model_from_client(self, msg_params: Message) -> None:
        if self._measuring:
            self._deferred.append(msg_params)
            return
        process = int(msg_params.get_sender_id())
        try:
            upload = self._decoded(process, msg_params.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS))
            if upload.round <= self._server.state.round and upload.client_id not in self._server.at_work:
                LOGGER.warning("client %d: upload of round %d came too late, dropped", upload.client_id, upload.round)
                return
            if upload.client_id not in self._sent or msg_params.get(TICKET) != self._sent[upload.client_id]:
                # trained on what this server sent before it crashed, or on another round's model, or by a process that
                # has been started again since: not what the client is to answer now
                LOGGER.warning("client %d: upload does not answer what it was sent last, dropped", upload.client_id)
                return
            self._server.receive(upload)
            self._silent.discard(upload.client_id)
        except ProtocolError as error:
            if self._server.holds_memories:  # a simulation's ranks run our own code: a bug, not a stranger's fault
                raise
            owed = self._owed_by(process)
            for client_id in owed:
                self._server.refuse(client_id, error)
            if not owed:
                LOGGER.warning("message of process %d dropped: %.200r", process, str(error))
        if self._open:
            self._send_next(process)
            self._close_if_complete()

    def _decoded(self, process: int, data: Any) -> Upload:
        if not isinstance(data, bytes):
            raise ProtocolError(f"expected bytes, got {type(data).__name__}")
        message, memory = self._codec.decode(data)
        if not isinstance(message, Upload):
            raise ProtocolError("expected an upload, got a downlink")
        if self._process_of(message.client_id) != process:
            raise ProtocolError(f"it speaks for client {message.client_id}, which another process serves")
        if self._server.holds_memories and memory is not None:
            self._server.memories[message.client_id] = memory
        return message

    def on_deadline(self) -> None:
        if self._leaving:
            self.stop()
        elif self._measuring:
            LOGGER.warning("clients %s measured nothing within %s", sorted(self._measuring), self._timeout())
            self._record_measured()
        elif not self._server.has_rounds_left:
            self._leave()
        elif not self._open:
            self._start_without_the_missing()
        else:
            answered = self._server.answered()
            self._silent |= self._sent.keys() - answered - self._server.refused.keys()
            minimum = self._experiment.settings.dapper_args.min_clients_per_round
            if len(answered) < minimum:
                self._give_up(
                    f"round {self._server.state.round + 1}: {len(answered)} of the {minimum} uploads that"
                    f" min_clients_per_round asks for came within {self._timeout()}; silent: {sorted(self._silent)},"
                    f" refused: {sorted(self._server.refused)}"
                )
            self._close()

    def _start_without_the_missing(self) -> None:
        missing = sorted(set(range(1, self._num_processes + 1)) - self._online)
        minimum = self._experiment.settings.dapper_args.min_clients_per_round
        if len(self._online) < minimum:
            self._give_up(
                f"{len(self._online)} of {self._num_processes} client processes came online within"
                f" {self._join_seconds:g} s; missing ranks: {missing}. Are they started with the same addresses?"
            )
        LOGGER.warning("starting without ranks %s, which did not come online within %g s", missing, self._join_seconds)
        self._open_round_or_leave()

    def _close_if_complete(self) -> None:
        answered = self._server.answered()
        reachable = {client_id for client_id in self._unsent if self._process_of(client_id) in self._online}
        awaited = (self._sent.keys() | reachable) - self._server.refused.keys() - self._silent
        args = self._experiment.settings.dapper_args
        full = args.buffer_size is not None and len(answered) >= args.buffer_size
        if self._open and len(answered) >= args.min_clients_per_round and (full or awaited <= answered):
            self._close()

    def _close(self) -> None:
        self._open = False
        for client_id in self._unsent:
            self._server.give_up(client_id)
        record = self._server.close_round()
        if missing := sorted(set(record.absent) - record.at_work.keys()):
            LOGGER.warning("round %d closed without clients %s", record.round, missing)
        if not self._starts_measuring():
            self._go_on_from(record)

    def _go_on_from(self, record: RoundRecord) -> None:
        self.com_manager.forget_finished_rounds([self._process_of(client_id) for client_id in record.at_work])
        self._journal.round_closed(record)
        self._open_round_or_leave()

    # What silos measure

    def _starts_measuring(self) -> bool:
        """Send the model of the round just closed to those who have samples to test it on; False if there are none."""
        if not self._server.wants_measurements:
            return False
        self._measuring, self._measured = {}, {}
        for client_id in self._server.measurers:
            if self._process_of(client_id) in self._online:
                self._send_to_measure(client_id)
        self.set_deadline(self._experiment.settings.dapper_args.round_timeout_s)
        return bool(self._measuring)

    def _send_to_measure(self, client_id: int) -> None:
        message = self._model_for(client_id)
        message.add_params(MEASURE, True)
        if self._send(message):
            self._measuring[client_id] = message.get(TICKET)
        else:
            self._measuring.pop(client_id, None)
            self._online.discard(self._process_of(client_id))

    def _measure_again(self, process: int) -> None:
        """A silo that is back has forgotten what it was to measure; a new one takes part from the next round on."""
        if process - 1 in self._measuring:
            self._send_to_measure(process - 1)
            if not self._measuring:
                self._record_measured()

    def handle_measurement(self, msg_params: Message) -> None:
        client_id = int(msg_params.get_sender_id()) - 1
        if client_id not in self._measuring or self._measuring[client_id] != msg_params.get(TICKET):
            LOGGER.info("client %d: a measurement that nobody waits for, dropped", client_id)
            return
        del self._measuring[client_id]
        try:
            self._measured[client_id] = read_measurement(
                msg_params.get(MEASURED), self._experiment.method.problem.task.headline
            )
        except ProtocolError as error:
            LOGGER.warning("client %d: %s", client_id, error)
        if not self._measuring:
            self._record_measured()

    def _record_measured(self) -> None:
        self._measuring = {}
        self._go_on_from(self._server.measured(self._measured))

    # The end

    def _leave(self) -> None:
        self._leaving = True
        for client_id in self._server.at_work:
            self._server.give_up(client_id)
        self.set_deadline(GOODBYE_SECONDS)
        for process in sorted(self._online):
            if not self._send(Message(MyMessage.MSG_TYPE_S2C_FINISH, 0, process)):
                self._said_goodbye.add(process)
        if self._said_goodbye >= self._online:
            self.stop()

    def _give_up(self, reason: str) -> None:
        for process in sorted(self._online):
            self._send(Message(MyMessage.MSG_TYPE_S2C_FINISH, 0, process))
        raise DapperError(reason)

    def _send(self, message: Message) -> bool:
        try:
            self.send_message(message)
        except Exception as error:  # noqa: BLE001  # each transport has errors of its own; a lost client is no failure
            rank = int(message.get_receiver_id())
            if rank in self._lives:  # it was there
                LOGGER.warning("rank %d cannot be reached: %s", rank, reason_of(error))
            return False
        return True

    def _owed_by(self, process: int) -> list[int]:
        """Clients of the process that were sent the round's model and have not been heard of since."""
        owed = self._sent.keys() - self._server.answered() - self._server.refused.keys()
        return sorted(client_id for client_id in owed if self._process_of(client_id) == process)

    @property
    def _unsent(self) -> set[int]:
        """Clients that were chosen and have not been sent the round's model."""
        return {client_id for queued in self._queues.values() for client_id in queued}

    def _process_of(self, client_id: int) -> int:
        if not self._server.holds_memories:
            return 1 + client_id % self._num_processes
        return 1 + (client_id + self._server.state.round) % self._num_processes

    @property
    def _join_seconds(self) -> float:
        args = self._experiment.settings.dapper_args
        return args.round_timeout_s if args.join_timeout_s is None else args.join_timeout_s

    def _timeout(self) -> str:
        return f"{self._experiment.settings.dapper_args.round_timeout_s:g} s"
