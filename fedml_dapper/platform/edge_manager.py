"""Manager of an edge's process, which acts as the server to its silos and as a client to the server."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from concurrent.futures import Future
from typing import Any

from fedml.arguments import Arguments
from fedml.core.distributed.communication.constants import CommunicationConstants
from fedml.core.distributed.communication.message import Message
from fedml.core.distributed.communication.observer import Observer
from fedml.cross_silo.client.message_define import MyMessage

from fedml_dapper.config import EdgeArgs
from fedml_dapper.device.event_loop import STOP_SECONDS
from fedml_dapper.device.introduction import introduce
from fedml_dapper.device.retry import send_with_retries
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.federation import (
    Codec,
    Edge,
    EdgeCodec,
    Experiment,
    read_announcement,
    read_measurement,
)
from fedml_dapper.federation.wire.vocabulary import HOLDS, LIFE, MEASURE, MEASURED, REFUSED, SILO, TICKET
from fedml_dapper.operations import AuditLog
from fedml_dapper.operations.orders import Order
from fedml_dapper.operations.status import Progress
from fedml_dapper.platform.phase import STATE_OF, Phase
from fedml_dapper.platform.round_manager import RoundManager
from fedml_dapper.platform.transports import open_downwards, open_upwards
from fedml_dapper.secure_grpc import Transport, reason_of

LOGGER = logging.getLogger(__name__)
_LOST = "lost"
"""Type of the event that the server can no longer be reached, and key of the error."""
SHARE_OF_TIME = 0.8
"""Share of the server's time limits that an edge gives its silos; the rest is for messages between edge and server."""


class DapperEdgeManager(RoundManager):
    """Runs the server's rounds among an edge's silos, and answers each order with one sum.

    Messages of the server are handled by the same loop as those of silos, under types that no message of a silo can
    have. An edge remembers nothing between rounds: one that is started again is sent the open round's order once more,
    and its silos find it again as they would a server.
    """

    def __init__(
        self, args: Arguments, experiment: Experiment, codec: Codec, edge_codec: EdgeCodec, edge_args: EdgeArgs
    ) -> None:
        self._edge = Edge(experiment)

        def connect(audit: AuditLog) -> Transport:
            return open_downwards(args, edge_args.rank, edge_args.silos, audit, self)

        super().__init__(args, None, self._edge, experiment, codec, edge_args.silos, connect, edge_args.rank)
        self._own_rank = edge_args.rank
        self._edge_codec = edge_codec
        self._upwards = open_upwards(args, edge_args.rank)
        self._life = secrets.token_hex(8)
        self._announced = False
        self._ticket = ""
        """Ticket of the last order."""
        self._measured: dict[int, str] = {}
        """Measurements of silos as texts, by rank."""
        self._announcements: dict[int, str] = {}
        """Announcements of silos with data of their own as texts, by rank."""
        self._ordered: tuple[int, ...] = ()
        """Clients of the last order."""
        self._absent: tuple[str, ...] = ()
        """Names of the silos that are not in the edge's last sum."""

    def run(self) -> None:
        """Serve until the server ends the run; errors that end it early are raised."""
        self.register_message_receive_handlers()
        handlers = {
            CommunicationConstants.MSG_TYPE_CONNECTION_IS_READY: self.handle_server_found,
            MyMessage.MSG_TYPE_S2C_CHECK_CLIENT_STATUS: self.handle_server_found,
            MyMessage.MSG_TYPE_S2C_SYNC_MODEL_TO_CLIENT: self.handle_order,
            MyMessage.MSG_TYPE_S2C_FINISH: self.handle_finish,
            REFUSED: self.handle_refusal,
            _LOST: self.handle_server_lost,
        }
        for kind, handler in handlers.items():
            self.register_message_receive_handler(_from_server(kind), handler)
        self._upwards.add_observer(_ServerObserver(self))
        thread = threading.Thread(target=self._listen_upwards, name="transport upwards", daemon=True)
        thread.start()
        try:
            self.loop()
            self._say_goodbye()
        finally:
            self._upwards.stop_receive_message()
            thread.join(STOP_SECONDS)
            self._close_logs()

    def _listen_upwards(self) -> None:
        try:
            self._upwards.handle_receive_message()
        except Exception as error:  # noqa: BLE001  # handed over to the main thread, which raises it
            message = Message(_LOST, 0, self._own_rank)
            message.add_params(_LOST, error)
            self.receive_message(_from_server(_LOST), message)

    # The silos

    def handle_message_connection_ready(self, msg_params: Message) -> None:
        args = self._experiment.settings.dapper_args
        wait = args.round_timeout_s if args.join_timeout_s is None else args.join_timeout_s
        self._greet(SHARE_OF_TIME * wait)

    def _lets_join(self, process: int, message: Message) -> bool:
        if not self._experiment.silos_have_own_data:
            return True
        try:
            levels = len(self._experiment.settings.dapper_args.levels.ratios)
            self._announcements[process] = read_announcement(message.get(HOLDS), levels).as_text()
            if self._announced:
                self._pass_on(process)
        except ProtocolError as error:
            self._announcements.pop(process, None)
            self._refuse_silo(process, str(error))
            return False
        return True

    def _is_there(self, process: int, again: bool) -> None:
        if self._measuring is not None:
            if again:
                self._measure_again(process)
        elif self._phase is Phase.TRAINING:
            if not self._unanswered_by(process):
                self._send_next(process)
            self._close_if_complete()
        elif not self._announced and not self._callers.missing:
            self.set_deadline(None)
            self._announce()

    def _announce(self) -> None:
        """Pass silos' announcements on to the server, and then report that this edge is online."""
        self._announced = True
        for silo in sorted(self._announcements):
            try:
                self._pass_on(silo)
            except ProtocolError as error:  # the announcement is too large for one message
                self._refuse_silo(silo, str(error))
        self._tell_server(self._status(self.ONLINE_STATUS_FLAG))

    def _pass_on(self, silo: int) -> None:
        message = self._status(self.ONLINE_STATUS_FLAG)
        message.add_params(SILO, silo)
        message.add_params(HOLDS, self._announcements[silo])
        self._tell_server(message)

    # The server

    def handle_server_found(self, msg_params: Message) -> None:
        """Report to the server once more when the connection stands again, or the server asks who is online."""
        if self._announced:
            self._announce()

    def handle_server_lost(self, msg_params: Message) -> None:
        raise msg_params.get(_LOST)

    def handle_refusal(self, msg_params: Message) -> None:
        silo = msg_params.get(SILO)
        if silo is None:
            if msg_params.get(LIFE) not in (None, self._life):
                return  # it is for an earlier life of this process
            raise ConfigError(f"the server refuses this edge: {msg_params.get(REFUSED)}")
        self._announcements.pop(int(silo), None)
        self._refuse_silo(int(silo), str(msg_params.get(REFUSED)))
        self._let_go(int(silo))

    def handle_order(self, msg_params: Message) -> None:
        """Begin a round, or a measurement, that the server orders; one that still goes on here is dropped."""
        data = msg_params.get(MyMessage.MSG_ARG_KEY_MODEL_PARAMS)
        if not isinstance(data, bytes):
            raise ProtocolError(f"expected bytes from the server, got {type(data).__name__}")
        order = self._edge_codec.decode_order(data)
        self._edge.begin(order)
        self._ordered = order.clients
        self._ticket = str(msg_params.get(TICKET))
        self._measuring = None
        self._enter(Phase.WAITING)
        if msg_params.get(MEASURE):
            self._measured = {}
            if not self._begin_measuring(order.clients):
                self._all_measured()
            return
        self._begin(order.clients)
        self._close_if_complete()

    def on_deadline(self) -> None:
        if self._phase is Phase.LEAVING:
            self.stop()
        elif self._measuring is not None:
            self._measuring.time_is_over()
        elif self._phase is Phase.TRAINING:
            self._note_silent()
            self._close()
        elif not self._announced:
            LOGGER.warning("starting without silos %s", self._callers.missing)
            self._announce()

    def _is_complete(self, answered: set[int], awaited: set[int]) -> bool:
        return awaited <= answered

    def _close(self) -> None:
        self._enter(Phase.WAITING)
        self.set_deadline(None)
        for client_id in self._unsent:
            self._edge.give_up(client_id)
        total = self._edge.close()
        missing = sorted(set(self._ordered) - {record.client for record in total.records})
        self._absent = tuple(self._name_of(client_id + 1) for client_id in missing)
        self._refused_uploads += len(total.refused)
        message = Message(MyMessage.MSG_TYPE_C2S_SEND_MODEL_TO_SERVER, self._own_rank, 0)
        message.add_params(MyMessage.MSG_ARG_KEY_MODEL_PARAMS, self._edge_codec.encode_sum(total))
        message.add_params(TICKET, self._ticket)
        self._tell_server(message)
        LOGGER.info("round %d: the sum of %d silos' uploads is sent", total.round, len(total.records))

    def _note_measured(self, sender: int, answer: Any) -> None:
        headline = self._experiment.method.problem.task.headline
        self._measured[sender + 1] = read_measurement(answer, headline).as_text()

    def _all_measured(self) -> None:
        message = Message(MEASURED, self._own_rank, 0)
        message.add_params(MEASURED, json.dumps(self._measured))
        message.add_params(TICKET, self._ticket)
        self._tell_server(message)

    @property
    def _round_seconds(self) -> float:
        return SHARE_OF_TIME * self._experiment.settings.dapper_args.round_timeout_s

    # Operators' orders, and status for them

    def ask(self, order: Order) -> Future[str]:
        reason = f"an edge says how it is, and takes no orders; ask the server to {order.act}"
        refused: Future[str] = Future()
        refused.set_exception(ConfigError(reason))
        return refused

    def _progress(self) -> Progress:
        is_open = self._phase is Phase.TRAINING
        refused = len(self._edge.refused) if is_open else 0
        return Progress(
            state=STATE_OF[self._phase],
            round=self._edge.state.round + (1 if is_open else 0),
            rounds=self._experiment.settings.train_args.comm_round,
            standings=self._standings(),
            absent=self._absent,
            refused_uploads=self._refused_uploads + refused,
        )

    # The end

    def handle_finish(self, msg_params: Message) -> None:
        """End the run: tell the silos, and then the server that this edge ends."""
        self._leave()

    def _say_goodbye(self) -> None:
        try:
            self._upwards.send_message(self._status(self.RUN_FINISHED_STATUS_FLAG))
        except Exception as error:  # noqa: BLE001  # gRPC's errors are of many classes
            LOGGER.info("the server left before this edge could say goodbye: %s", reason_of(error))

    def _status(self, status: str) -> Message:
        message = Message(MyMessage.MSG_TYPE_C2S_CLIENT_STATUS, self._own_rank, 0)
        message.add_params(MyMessage.MSG_ARG_KEY_CLIENT_STATUS, status)
        message.add_params(LIFE, self._life)
        introduce(message)
        return message

    def _tell_server(self, message: Message) -> None:
        give_up_after_s = self._experiment.settings.dapper_args.round_timeout_s
        upwards = self._upwards
        send_with_retries(upwards.send_message, message, self._own_rank, give_up_after_s, upwards.delivered)


class _ServerObserver(Observer):  # type: ignore[misc]  # fedml is untyped
    """Passes the server's messages on to the edge's loop."""

    def __init__(self, manager: DapperEdgeManager) -> None:
        self._manager = manager

    def receive_message(self, msg_type: Any, msg_params: Message) -> None:
        self._manager.receive_message(_from_server(msg_type), msg_params)


def _from_server(kind: object) -> tuple[str, str]:
    """Return the type under which a message of the server is handled: a pair, which no silo's message can have."""
    return "server", str(kind)
