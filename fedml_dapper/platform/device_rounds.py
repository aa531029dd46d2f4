"""Rounds of devices that call: each call is answered at once, by a task, by a time to come back, or by the end.

A round opens when enough devices are there, asks more of them than have to answer, and closes with the answers it
wants or at its deadline. Nothing here waits, and nothing is sent but answers; so no device costs a thread or a
connection while it does not call.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from math import ceil

from fedml_dapper.config import CheckInArgs
from fedml_dapper.device.introduction import schema_for
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import Codec, Experiment, RunJournal, Server, read_announcement
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.methods import Upload
from fedml_dapper.platform.steering import EVICTED
from fedml_dapper.secure_grpc import AnyMessage, Message

LOGGER = logging.getLogger(__name__)
SOON_SECONDS = 1.0
"""When a device is to come back that calls while a round is closing."""
REMIND_SECONDS = 60.0
"""How often the log says that too few devices are there."""
TOO_LATE = "it comes too late, or another process of this device was sent a model since; start each device once"


class DevicePhase(Enum):
    """What a server of devices is doing."""

    WAITING = auto()
    """No round is open: too few devices are there."""
    TRAINING = auto()
    """A round is open."""
    CLOSING = auto()
    """The round's uploads are averaged and the model is tested; nothing may change meanwhile."""
    OVER = auto()
    """The last round is closed; devices that call are told so."""


class DeviceRounds:
    """The server's side of calls, for devices with ids from 0; call it from one thread at a time.

    Args:
        experiment: What is run.
        server: Chooses devices and takes uploads.
        codec: Encodes and decodes models.
        journal: Is told of rounds.
        clock: Seconds.
    """

    def __init__(
        self,
        experiment: Experiment,
        server: Server,
        codec: Codec,
        journal: RunJournal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert server.checked_in is not None, "the experiment is not one of devices that call"
        self._experiment = experiment
        self._server = server
        self._codec = codec
        self._journal = journal
        self._clock = clock
        self._there = server.checked_in
        self._args = experiment.settings.dapper_args.check_in or CheckInArgs()
        self._fewest = experiment.settings.dapper_args.min_clients_per_round
        self._per_round = experiment.settings.train_args.client_num_per_round
        self._sent: dict[int, str] = {}
        """Ticket of the model that each device of the open round was sent last, by client id."""
        self._told: set[int] = set()
        """Devices that were told that the run is over."""
        self._waiting_since = clock()
        self._reminded = clock()
        self._deadline = float("inf")
        self.phase = DevicePhase.WAITING if server.has_rounds_left else DevicePhase.OVER

    def answer(self, rank: int, message: AnyMessage) -> AnyMessage:
        """Answer the call of the device of this ``rank``.

        Raises:
            ProtocolError: The message is none that a device sends.
        """
        kind = message.get_type()
        if kind == say.CLIENT_STATUS:
            return self._check_in(rank, message)
        if kind == say.SEND_UPLOAD:
            return self._report(rank, message)
        raise ProtocolError(f"a device sends no message of type {str(kind)[:60]!r}")

    def not_awaited(self, rank: int) -> str | None:
        """Return why an upload of the device of this ``rank`` would be of no use; None where one is awaited."""
        return None if self.phase is DevicePhase.TRAINING and rank - 1 in self._sent else TOO_LATE

    # Calls

    def _check_in(self, rank: int, message: AnyMessage) -> AnyMessage:
        client_id = rank - 1
        if self.phase is DevicePhase.OVER:
            self._told.add(client_id)
            return Message(say.FINISH, 0, rank)
        if self.phase is DevicePhase.CLOSING:
            return _come_back(rank, SOON_SECONDS)
        try:
            schema = schema_for(message)
            self._take_in(client_id, message)
        except ProtocolError as error:
            LOGGER.warning("device %d is refused: %s", rank, error)
            return _with(Message(say.REFUSED, 0, rank), {say.REFUSED: str(error), say.LIFE: message.get(say.LIFE)})
        self._open_if_enough()
        if self._is_asked(client_id):
            return self._task(client_id, schema)
        return _come_back(rank, self._args.come_back_s)

    def _take_in(self, client_id: int, message: AnyMessage) -> None:
        """Note a device that calls, and what it holds; raise :class:`ProtocolError` where it cannot take part."""
        if self._server.attendance.quarantine.is_evicted(client_id):
            raise ProtocolError(EVICTED)
        if self._experiment.silos_have_own_data:
            levels = len(self._experiment.settings.dapper_args.levels.ratios)
            self._server.join(client_id, read_announcement(message.get(say.HOLDS), levels))
        self._there.note(client_id)

    def _is_asked(self, client_id: int) -> bool:
        """Return whether the open round still waits for the device."""
        if self.phase is not DevicePhase.TRAINING or client_id not in self._server.round_clients():
            return False
        return client_id not in self._server.answered() | self._server.refused.keys()

    def _task(self, client_id: int, schema: int) -> AnyMessage:
        """Return the round's model; a device that calls again before it has answered begins anew."""
        self._sent[client_id] = secrets.token_hex(8)
        params: dict[str, object] = {
            say.MODEL: self._codec.encode(self._server.downlink(client_id), None, schema),
            say.TICKET: self._sent[client_id],
        }
        refused = self._server.refused_before.get(client_id)
        if refused is not None:
            params[say.REFUSED_BEFORE] = refused
        return _with(Message(say.SYNC_MODEL, 0, client_id + 1), params)

    def _report(self, rank: int, message: AnyMessage) -> AnyMessage:
        client_id = rank - 1
        answer = Message(say.TAKEN, 0, rank)
        ticket = message.get(say.TICKET)
        if ticket is None or self._sent.get(client_id) != ticket or self.phase is not DevicePhase.TRAINING:
            return _with(answer, {say.REFUSED: TOO_LATE})
        self._there.note(client_id)
        if client_id in self._server.answered():
            return answer  # it was taken, and its device did not hear so
        try:
            self._take(client_id, message.get(say.MODEL))
        except ProtocolError as error:
            self._server.refuse(client_id, error)
        refused = self._server.refused.get(client_id)
        return answer if refused is None else _with(answer, {say.REFUSED: refused})

    def _take(self, client_id: int, data: object) -> None:
        if not isinstance(data, bytes):
            raise ProtocolError(f"expected bytes, got {type(data).__name__}")
        upload, _ = self._codec.decode(data)
        if not isinstance(upload, Upload):
            raise ProtocolError("expected an upload, got a downlink")
        if upload.client_id != client_id:
            raise ProtocolError(f"it speaks for client {upload.client_id}, which is another device")
        self._server.receive(upload)

    # Rounds

    def _open_if_enough(self) -> None:
        """Open a round if none is open and so many devices are there as it asks, or wait for more."""
        if self.phase is not DevicePhase.WAITING:
            return
        args = self._experiment.settings.dapper_args
        there = len(self._there.able())
        wanted = min(ceil(self._per_round * self._args.over_selection), self._num_devices)
        patient = self._clock() - self._waiting_since < self._args.come_back_s
        if there < (wanted if patient else args.min_clients_per_round):
            self._remind(there)
            return
        self._sent = {}
        clients = list(self._server.round_clients())
        self._journal.round_opened(clients)
        self._deadline = self._clock() + args.round_timeout_s
        self.phase = DevicePhase.TRAINING
        LOGGER.info("round %d asks %d of %d devices", self._server.state.round + 1, len(clients), there)

    @property
    def _num_devices(self) -> int:
        return self._experiment.settings.train_args.client_num_in_total

    def _remind(self, there: int) -> None:
        if self._clock() - self._reminded >= REMIND_SECONDS:
            self._reminded = self._clock()
            left_out = len(self._there.present()) - there
            LOGGER.warning(
                "too few devices for round %d: %d may be asked, and %d that are there are left out",
                self._server.state.round + 1,
                there,
                left_out,
            )

    def begin_closing(self) -> bool:
        """Return whether the open round is to close now; if so, calls change nothing until :meth:`close` is over."""
        if self.phase is not DevicePhase.TRAINING:
            return False
        answered = self._server.answered()
        awaited = set(self._server.round_clients()) - answered - self._server.refused.keys()
        is_enough = len(answered) >= (self._fewest if not awaited else self._per_round)
        if not is_enough and self._clock() < self._deadline:
            return False  # also where all have been refused: bad uploads could use up a run's rounds in no time
        self.phase = DevicePhase.CLOSING
        return True

    def close(self) -> None:
        """Average the round's uploads, test the model and write the round down; the slow part of a round."""
        record = self._server.close_round()
        self._journal.round_closed(record)
        self._waiting_since = self._clock()
        self.phase = DevicePhase.WAITING if self._server.has_rounds_left else DevicePhase.OVER

    def all_told(self) -> bool:
        """Return whether all devices that were there lately know that the run is over."""
        return self.phase is DevicePhase.OVER and self._there.present() <= self._told


def _come_back(rank: int, seconds: float) -> AnyMessage:
    return _with(Message(say.COME_BACK, 0, rank), {say.COME_BACK: seconds})


def _with(message: Message, params: Mapping[str, object]) -> AnyMessage:
    for key, value in params.items():
        message.add_params(key, value)
    return message
