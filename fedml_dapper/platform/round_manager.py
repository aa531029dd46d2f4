"""Base class of the managers of server and edge: a round whose clients are in other processes."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any

from fedml.arguments import Arguments
from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.client.message_define import MyMessage
from fedml.cross_silo.server.fedml_server_manager import FedMLServerManager

from fedml_dapper.device.introduction import schema_for
from fedml_dapper.errors import ProtocolError, printable
from fedml_dapper.federation import Codec, Collector, Experiment
from fedml_dapper.federation.wire.vocabulary import LIFE, MEASURE, MEASURED, REFUSED, REFUSED_BEFORE, SILO, TICKET
from fedml_dapper.methods import Memory, Upload
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.orders import Order
from fedml_dapper.operations.status import Progress, ServerStatus, StatusBoard
from fedml_dapper.platform.callers import Arrival, Callers
from fedml_dapper.platform.dispatch import Dispatch, Silos
from fedml_dapper.platform.manager_loop import ManagerLoop
from fedml_dapper.platform.measuring import Measuring
from fedml_dapper.platform.phase import Phase, after
from fedml_dapper.platform.transports import open_audit_log, open_monitor
from fedml_dapper.secure_grpc import CUT_OFF, FLOODS, SecureServer, Transport, reason_of

LOGGER = logging.getLogger(__name__)
GOODBYE_SECONDS = 10.0
"""How long processes may take to confirm the end of the run, or to come online and be told of it."""
POST_SECONDS = 0.2
"""Shortest time between two posts of the status."""


class RoundManager(ManagerLoop, FedMLServerManager):  # type: ignore[misc]  # fedml is untyped
    """Sends each client what a round starts from, and collects the uploads.

    Three rules protect a round. A process that was started again is sent the round's model once more. An upload counts
    only if it answers the last message to its client, which its ticket shows. A client that did not answer in a round
    is still sent the next one's model, but is not waited for until it answers again.

    Args:
        args: FedML's arguments.
        aggregator: FedML's aggregator; None for an edge.
        collector: Makes downlinks and takes uploads.
        experiment: What is run.
        codec: Encodes and decodes messages to clients.
        processes: Ranks of the processes that call this one.
        connect: Opens the transport that they call, given the audit log.
        rank: Rank of this process.
        comm: MPI's communicator, under MPI.
    """

    def __init__(
        self,
        args: Arguments,
        aggregator: Any,
        collector: Collector,
        experiment: Experiment,
        codec: Codec,
        processes: Collection[int],
        connect: Callable[[AuditLog], Transport],
        rank: int = 0,
        comm: Any = None,
    ) -> None:
        self._board = StatusBoard()
        self._monitor = open_monitor(args, rank, self._board, experiment.settings.dapper_args.round_timeout_s)
        self._posted = float("-inf")
        self._refused_uploads = 0
        self._audit = open_audit_log(args)
        ManagerLoop.__init__(self, lambda: connect(self._audit))
        FedMLServerManager.__init__(self, args, aggregator, comm, 0, len(processes), args.backend)
        if isinstance(self.com_manager, SecureServer):
            self._board.callers = self.com_manager.figures
        self._collector = collector
        self._experiment = experiment
        self._codec = codec
        self._callers = Callers(processes)
        self._dispatch: Dispatch = Silos()
        self._sent: dict[int, str] = {}
        """Ticket of the last model that was sent to each client of the round, by client id, with clients that are at
        work since an earlier round."""
        self._silent: set[int] = set()
        """Clients that are not waited for until they answer again."""
        self._measuring: Measuring | None = None
        """The measurement of a model by silos, while it goes on."""
        self._phase = Phase.WAITING
        self._greeted = False

    def _enter(self, phase: Phase) -> None:
        self._phase = after(self._phase, phase)

    # Hooks in which server and edge differ

    def _lets_join(self, process: int, message: Message) -> bool:
        """Return whether a process that reports that it is online can take part; if not, tell it why."""
        raise NotImplementedError

    def _is_there(self, process: int, again: bool) -> None:
        """Handle a process that has come online, or reports so once more; ``again`` if it was restarted meanwhile."""
        raise NotImplementedError

    def _is_complete(self, answered: set[int], awaited: set[int]) -> bool:
        """Return whether the open round can close, with clients that have answered and those that are waited for."""
        raise NotImplementedError

    def _close(self) -> None:
        """Close the open round."""
        raise NotImplementedError

    def _outlook(self) -> str:
        """Return what becomes of the open round after the loss of a client, in words."""
        return "the round goes on without it"

    def _note_measured(self, sender: int, answer: Any) -> None:
        """Take a measurement, or raise :class:`ProtocolError` where the answer is none."""
        raise NotImplementedError

    def _all_measured(self) -> None:
        """Go on after the measurement of a model, in which some may not have answered in time."""
        raise NotImplementedError

    @property
    def _round_seconds(self) -> float:
        """Longest time of a round, and of the measurement after it."""
        raise NotImplementedError

    def ask(self, order: Order) -> Future[str]:
        """Have an operator's order carried out on the loop's thread; safe from any thread."""
        raise NotImplementedError

    def _progress(self) -> Progress:
        """Return the run's progress for operators."""
        raise NotImplementedError

    def register_message_receive_handlers(self) -> None:
        super().register_message_receive_handlers()
        self.register_message_receive_handler(MEASURED, self.handle_measurement)
        self.register_message_receive_handler(CUT_OFF, self.handle_cut_off)
        self.register_message_receive_handler(FLOODS, self.handle_flood)

    # Coming online

    def _greet(self, seconds: float) -> None:
        """Ask all processes whether they are online, and give them ``seconds`` to answer, or to start and call.

        MQTT reports every reconnection: after the first, those are asked that could not be reached meanwhile.
        """
        if self._greeted:
            for process in sorted(self._callers.known - self._callers.online):
                self._ask_status(process)
            return
        self._greeted = True
        self.set_deadline(seconds)
        missing = [process for process in sorted(self._callers.expected) if not self._ask_status(process)]
        if missing:
            LOGGER.info("waiting for ranks %s, which are not up yet; each calls when it is", missing)

    def _ask_status(self, process: int) -> bool:
        """Ask a process whether it is online; return whether it can be reached."""
        return self._send(Message(MyMessage.MSG_TYPE_S2C_CHECK_CLIENT_STATUS, 0, process))

    def handle_message_client_status_update(self, msg_params: Message) -> None:
        process = int(msg_params.get_sender_id())
        life = str(msg_params.get(LIFE))
        self._callers.heard(process, life)
        if msg_params.get(MyMessage.MSG_ARG_KEY_CLIENT_STATUS) == self.RUN_FINISHED_STATUS_FLAG:
            self._callers.mark_finished(process)
            self._stop_if_all_left()
        elif self._understands(process, msg_params) and self._lets_join(process, msg_params):
            arrival = self._callers.arrived(process, life)
            again = arrival is Arrival.RESTARTED
            if again:
                self._forget_what_was_sent(process)
            if arrival is not Arrival.STILL_HERE:
                self._audit.record("joined", self._name_of(process), started_again=int(again))
            self._is_there(process, again)

    def _understands(self, process: int, message: Message) -> bool:
        """Return whether the version of a process can take part with ours; if not, tell it who is to upgrade."""
        try:
            self._callers.schemas[process] = schema_for(message)
        except ProtocolError as error:
            self._refuse_silo(process, str(error))
            return False
        return True

    def _forget_what_was_sent(self, process: int) -> None:
        """Reassign or give up the clients of a process that was started again, and knows nothing of its last models."""
        for client_id in self._unanswered_by(process):
            del self._sent[client_id]
            if client_id in self._collector.at_work:
                LOGGER.info("client %d was started again; what it began in an earlier round is lost", client_id)
                self._collector.give_up(client_id)
            elif self._callers.starts_too_often(process):
                self._collector.give_up(client_id)
                LOGGER.warning("client %d was started again too often; %s", client_id, self._outlook())
            else:
                LOGGER.info("client %d was started again; it is sent the round's model once more", client_id)
                self._dispatch.give_back(client_id)

    def handle_cut_off(self, msg_params: Message) -> None:
        """Go on without a process that may no longer call."""
        self._let_go(int(msg_params.get_sender_id()))

    def handle_flood(self, msg_params: Message) -> None:
        """Stop waiting for a process that calls so often that its upload may not get through, until it answers."""
        process = int(msg_params.get_sender_id())
        unanswered = set(self._unanswered_by(process)) - self._silent
        if self._phase is not Phase.TRAINING or not unanswered:
            return
        LOGGER.warning("%s floods the server with calls; the round does not wait for it", self._name_of(process))
        self._audit.record("flood", self._name_of(process))
        self._silent |= unanswered
        self._close_if_complete()

    def _let_go(self, process: int) -> None:
        """Go on in the open round without the clients of a process that have not answered."""
        self._callers.lost(process)
        for client_id in self._unanswered_by(process):
            del self._sent[client_id]
            self._collector.give_up(client_id)
        if self._measuring is not None:
            self._measuring.lose(process - 1)
        elif self._phase is Phase.TRAINING:
            self._close_if_complete()
        else:
            self._stop_if_all_left()

    def _refuse_silo(self, process: int, reason: str, through: int | None = None) -> None:
        """Tell a silo that it cannot take part, ``through`` its edge (a rank) where it has one."""
        self.note_drop("silo %d is refused: %s", process, printable(reason))
        self._audit.record("turned_away", self._name_of(process), reason=reason)
        message = Message(REFUSED, 0, process if through is None else through)
        message.add_params(REFUSED, reason)
        if through is None:
            # the message may reach the silo's next life, which may take part and has to ignore it
            message.add_params(LIFE, self._callers.last_life(process))
        else:
            message.add_params(SILO, process)
        self._send(message)

    # A round

    def _begin(self, recipients: Sequence[int]) -> None:
        """Begin a round: send the recipients that are online what it starts from."""
        self._callers.begin_round()
        # Clients at work since an earlier round answer the model of that round, so their tickets stay.
        self._sent = {client_id: self._sent[client_id] for client_id in self._collector.at_work}
        self._dispatch.begin(recipients)
        self._enter(Phase.TRAINING)
        self.set_deadline(self._round_seconds)
        for process in sorted(self._callers.online):
            self._send_next(process)
        if self._calls:
            for process in self._callers.asked_again():
                self._ask_status(process)

    def _send_next(self, process: int) -> None:
        """Send a process the model of its next client, if the process is online and there is such a client."""
        client_id = self._dispatch.take(process) if process in self._callers.online else None
        if client_id is None:
            return
        message = self._model_for(client_id)
        if self._send(message):
            self._sent[client_id] = message.get(TICKET)
        else:
            self._dispatch.give_back(client_id)
            self._callers.lost(process)
            LOGGER.warning("the round goes on without client %d", client_id)

    def _model_for(self, client_id: int) -> Message:
        """Make the message with what the client starts the round from, and a new ticket."""
        message = Message(MyMessage.MSG_TYPE_S2C_SYNC_MODEL_TO_CLIENT, 0, self._process_of(client_id))
        message.add_params(MyMessage.MSG_ARG_KEY_MODEL_PARAMS, self._payload_for(client_id))
        message.add_params(MyMessage.MSG_ARG_KEY_CLIENT_INDEX, str(client_id))
        message.add_params(TICKET, secrets.token_hex(8))
        refused = self._collector.refused_before.get(client_id)
        if refused is not None:
            message.add_params(REFUSED_BEFORE, refused)
        return message

    def _payload_for(self, client_id: int) -> bytes:
        memories = self._collector.memories
        memory = memories.get(client_id, Memory()) if self._collector.is_simulation else None
        schema = self._callers.schemas[self._process_of(client_id)]
        return self._codec.encode(self._collector.downlink(client_id), memory, schema)

    def handle_message_receive_model_from_client(self, msg_params: Message) -> None:
        process = int(msg_params.get_sender_id())
        ticket = msg_params.get(TICKET)
        if ticket not in [self._sent[client_id] for client_id in self._unanswered_by(process)]:
            # It came too late or twice, or was trained on a model from before a crash of this server, or by a process
            # that was restarted since. It is not decoded, or a process that repeats it could keep the server busy.
            self.note_drop("rank %d: an upload that does not answer what it was sent last, dropped", process)
            return
        try:
            sender, take = self._read(process, msg_params.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS))
            if self._sent.get(sender) == ticket:
                take()
                self._silent.discard(sender)
                self._callers.answered(process)
            else:
                self.note_drop("rank %d: an upload for client %d with another's ticket, dropped", process, sender)
        except ProtocolError as error:
            if self._collector.is_simulation:  # a simulation, whose ranks run our own code, so this is a bug
                raise
            for client_id in self._unanswered_by(process):
                self._collector.refuse(client_id, error)
        if self._phase is Phase.TRAINING:
            for free in (process, *self._dispatch.in_waiting()):
                self._send_next(free)
            self._close_if_complete()

    def _read(self, process: int, data: Any) -> tuple[int, Callable[[], None]]:
        """Decode an answer; return the client that answers, and a function that takes its upload.

        Raises :class:`ProtocolError` for an answer that does not fit.
        """
        if not isinstance(data, bytes):
            raise ProtocolError(f"expected bytes, got {type(data).__name__}")
        message, memory = self._codec.decode(data)
        if not isinstance(message, Upload):
            raise ProtocolError("expected an upload, got a downlink")
        if self._process_of(message.client_id) != process:
            raise ProtocolError(f"it speaks for client {message.client_id}, which another process serves")
        if self._collector.is_simulation and memory is not None:
            self._collector.memories[message.client_id] = memory
        return message.client_id, lambda: self._collector.receive(message)

    def _close_if_complete(self) -> None:
        reachable = {each for each in self._unsent if self._dispatch.can_be_taken(each, self._callers.online)}
        awaited = (self._sent.keys() | reachable) - self._collector.refused.keys() - self._silent
        if self._phase is Phase.TRAINING and self._is_complete(self._collector.answered(), awaited):
            self._close()

    def _note_silent(self) -> None:
        """Mark clients that have not answered in time; they are not waited for until they answer."""
        self._silent |= self._sent.keys() - self._collector.answered() - self._collector.refused.keys()

    # Measurements of silos

    def _begin_measuring(self, recipients: Sequence[int]) -> bool:
        """Send a model to the ``recipients`` that are online, to be measured; return whether any could be reached."""
        self._callers.begin_round()
        measuring = Measuring(self._send_to_measure, self._note_measured, self._end_measuring)
        online = [client_id for client_id in recipients if self._process_of(client_id) in self._callers.online]
        is_begun = measuring.begin(online)
        self.set_deadline(self._round_seconds)
        if is_begun:
            self._measuring = measuring
            self._enter(Phase.MEASURING)
        return is_begun

    def _send_to_measure(self, client_id: int) -> str | None:
        message = self._model_for(client_id)
        message.add_params(MEASURE, True)
        if self._send(message):
            return str(message.get(TICKET))
        self._callers.lost(self._process_of(client_id))
        return None

    def _measure_again(self, process: int) -> None:
        """Send the model once more to a silo that was restarted; a new silo measures from the next round on."""
        client_id = process - 1
        if self._measuring is None or client_id not in self._measuring.awaited:
            return
        if self._callers.starts_too_often(process):
            LOGGER.warning("client %d was started again too often; it measures nothing", client_id)
            self._measuring.lose(client_id)
        else:
            self._measuring.send_again(client_id)

    def handle_measurement(self, msg_params: Message) -> None:
        sender = int(msg_params.get_sender_id()) - 1
        ticket = msg_params.get(TICKET)
        if self._measuring is None or not self._measuring.take_answer(sender, ticket, msg_params.get(MEASURED)):
            self.note_drop("client %d: a measurement that nobody waits for, dropped", sender)

    def _end_measuring(self) -> None:
        self._measuring = None
        self._enter(Phase.WAITING)
        self.set_deadline(None)
        self._all_measured()

    # Status for operators

    def status(self) -> ServerStatus:
        """Return the status of this process and its callers; safe from any thread."""
        return self._board.read()

    def on_turn(self) -> None:
        if time.monotonic() - self._posted >= POST_SECONDS:
            self._posted = time.monotonic()
            self._board.post(self._progress())

    def _standings(self, left_out: Collection[int] = ()) -> dict[str, str]:
        """Return what each process is doing, by name; ``left_out`` are clients that take no part now."""
        groups: dict[str, Collection[int]] = {
            "left out": left_out,
            "measures": () if self._measuring is None else self._measuring.awaited,
        }
        if self._phase is Phase.TRAINING:
            groups |= {"upload refused": self._collector.refused, "answered": self._collector.answered()}
            groups |= {"silent": self._silent, "at work": self._sent}
        found = {}
        for process in sorted(self._callers.expected):
            at_rest = "idle" if process in self._callers.online else "away"
            standings = (standing for standing, clients in groups.items() if process - 1 in clients)
            found[self._name_of(process)] = next(standings, at_rest)
        return found

    def _close_logs(self) -> None:
        """Close audit log and monitor, when nobody calls any more."""
        self._audit.close()
        if self._monitor is not None:
            self._monitor.close()

    # The end

    def _leave(self) -> None:
        """End the run: tell all processes that are there."""
        self._enter(Phase.LEAVING)
        self._sent = {}  # an upload that still comes is too late, which is no fault of its client's
        self.set_deadline(GOODBYE_SECONDS)
        for process in self._told_of_the_end:
            if not self._send(Message(MyMessage.MSG_TYPE_S2C_FINISH, 0, process)):
                self._callers.mark_finished(process)
        self._stop_if_all_left()

    def _stop_if_all_left(self) -> None:
        if self._phase is Phase.LEAVING and self._callers.all_finished:
            self.stop()

    @property
    def _calls(self) -> bool:
        """Whether this process calls the others; over DAPPER_GRPC they call, and so it hears of who is back."""
        return not isinstance(self.com_manager, SecureServer)

    @property
    def _told_of_the_end(self) -> list[int]:
        """Processes to tell that the run is over; where they do not call, a lost one would wait for ever."""
        return sorted(self._callers.known if self._calls else self._callers.online)

    def _send(self, message: Message) -> bool:
        try:
            self.send_message(message)
        except Exception as error:  # noqa: BLE001  # each transport has errors of its own; a lost client is no failure
            rank = int(message.get_receiver_id())
            if self._callers.has_been_online(rank):
                LOGGER.warning("rank %d cannot be reached: %s", rank, reason_of(error))
            return False
        return True

    def _unanswered_by(self, process: int) -> list[int]:
        """Return the clients of the process that were sent the round's model and have not answered."""
        unanswered = self._sent.keys() - self._collector.answered() - self._collector.refused.keys()
        return sorted(client_id for client_id in unanswered if self._process_of(client_id) == process)

    @property
    def _unsent(self) -> Collection[int]:
        """Clients that were chosen and have not been sent the round's model."""
        return self._dispatch.not_taken

    def _name_of(self, process: int) -> str:
        """Return the name in the process's certificate."""
        return f"{'silo' if self._experiment.settings.comm_args.edge(process) is None else 'edge'}-{process}"

    def _process_of(self, client_id: int) -> int:
        return self._dispatch.process_of(client_id)
