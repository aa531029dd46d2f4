"""Rounds of devices that call: each call is answered at once, by a task, by a time to come back, or by the end.

A round opens when enough devices are there, asks more of them than have to answer, and closes with the answers it
wants or at its deadline. With ``buffer_size`` those that are not done then go on, and count in the round in which they
answer. Nothing here waits, and nothing is sent but answers; so no device costs a thread or a connection while it does
not call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from math import ceil

from fedml_dapper.config import CheckInArgs
from fedml_dapper.device.introduction import schema_for
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import (
    Codec,
    Experiment,
    RoundRecord,
    RunJournal,
    Server,
    read_announcement,
    read_measurement,
)
from fedml_dapper.federation.round.checked_in import PERIODS
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.methods import Upload
from fedml_dapper.platform.device_lives import Lives
from fedml_dapper.platform.device_measuring import DeviceMeasuring
from fedml_dapper.platform.device_shortage import Shortage
from fedml_dapper.platform.device_tickets import Tickets
from fedml_dapper.platform.steering import EVICTED, Steering
from fedml_dapper.secure_grpc import AnyMessage, Message

LOGGER = logging.getLogger(__name__)
SOON_SECONDS = 1.0
"""When a device is to come back that calls while a round is closing."""
FAREWELL_SECONDS = 60.0
"""How long devices that are at work when the run ends may take to call, and be told so."""
LOOK_SECONDS = 1.0
"""How often it is looked whether enough devices are there, where none calls."""
STARTED_TWICE = "a process of this device that was started later has taken its place; start each device once"
TOO_LATE = "it comes too late, or another process of this device was sent a model since; start each device once"


class DevicePhase(Enum):
    """What a server of devices is doing."""

    WAITING = auto()
    """No round is open: too few devices are there."""
    TRAINING = auto()
    """A round is open."""
    CLOSING = auto()
    """The round's uploads are averaged, or it is tested or written down; nothing may change meanwhile."""
    MEASURING = auto()
    """Devices measure the round's model on their own test samples, before the round is recorded."""
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
        self._enough = experiment.settings.dapper_args.buffer_size or self._per_round
        self._tickets = Tickets(clock)
        """Those of the open round's devices, and of devices that are at work since an earlier round."""
        self._lives = Lives()
        self._unfinished: set[int] = set()
        """Devices that had not answered what they were sent when the last round closed."""
        self._deferred: dict[int, AnyMessage] = {}
        """Reports of such devices that came while no round was open, by client id; they count in the next one."""
        self._cut_off: set[int] = set()
        """Devices that may no longer call, as long as the round that was closing when that was found is not closed."""
        self._measuring: DeviceMeasuring | None = None
        """The measurement of the round just closed, while it goes on."""
        self._said_unmeasured = False
        self._told: set[int] = set()
        """Devices that were told that the run is over."""
        self._waiting_since = clock()
        self._over_since = clock()
        self._looked = clock()
        self._shortage = Shortage(self._there, self._fewest, clock)
        self._num_refused = 0
        """Uploads that were refused in closed rounds."""
        self.steering = Steering(server, self, self._num_devices, journal)
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
        if kind == say.MEASURED:
            return self._take_measurement(rank, message)
        raise ProtocolError(f"a device sends no message of type {str(kind)[:60]!r}")

    def not_awaited(self, rank: int) -> str | None:
        """Return why an upload of the device of this ``rank`` would be of no use; None where one is awaited."""
        client_id = rank - 1
        if (refused := self._refused_now(client_id)) is not None:
            return refused
        counts = self.phase is DevicePhase.TRAINING or self._may_defer(client_id)
        return None if counts and self._tickets.is_held_by(client_id) else TOO_LATE

    # Calls

    def _check_in(self, rank: int, message: AnyMessage) -> AnyMessage:
        client_id = rank - 1
        if self._lives.is_replaced(client_id, message.get(say.LIFE)):
            LOGGER.warning("device %d runs twice; the process that was started first is told to end", rank)
            return _refusal(message, STARTED_TWICE)
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
            return _refusal(message, str(error))
        if client_id in self._server.at_work.keys() - self._heard():
            self._lose_work_of(client_id)  # it calls, and so is not at work any more
        self._open_if_enough()
        return self._what_to_do(client_id, schema)

    def _what_to_do(self, client_id: int, schema: int) -> AnyMessage:
        """Return what there is to do for a device that is there: to measure, to train, or to come back."""
        if self._measuring is not None and self._measuring.asks(client_id):
            task = self._model_for(client_id, schema, self._measuring.ticket(client_id))
            return _with(task, {say.MEASURE: True})
        if self._is_asked(client_id):
            return self._task(client_id, schema)
        return _come_back(client_id + 1, self._args.come_back_s)

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
        is_open = self.phase is DevicePhase.TRAINING
        return is_open and client_id in self._server.round_clients() and client_id in self._server.awaited()

    def _heard(self) -> set[int]:
        """Return the clients whose answer has come: in the open round, or for the next one."""
        return self._server.answered() | self._server.refused.keys() | self._deferred.keys()

    def _lose_work_of(self, client_id: int) -> None:
        """Go on without what a device began in an earlier round."""
        LOGGER.info("what client %d began in round %d is lost", client_id, self._server.at_work[client_id])
        self._server.give_up(client_id)
        self._unfinished.discard(client_id)
        self._tickets.void(client_id)

    def _task(self, client_id: int, schema: int) -> AnyMessage:
        """Return the round's model; a device that calls again before it has answered begins anew."""
        task = self._model_for(client_id, schema, self._tickets.issue(client_id))
        refused = self._server.refused_before.get(client_id)
        return task if refused is None else _with(task, {say.REFUSED_BEFORE: refused})

    def _model_for(self, client_id: int, schema: int, ticket: str) -> AnyMessage:
        model = self._codec.encode(self._server.downlink(client_id), None, schema)
        return _with(Message(say.SYNC_MODEL, 0, client_id + 1), {say.MODEL: model, say.TICKET: ticket})

    def _report(self, rank: int, message: AnyMessage) -> AnyMessage:
        client_id = rank - 1
        answer = Message(say.TAKEN, 0, rank)
        if (refused := self._refused_now(client_id)) is not None:  # undecoded: a device may repeat what costs seconds
            return _with(answer, {say.REFUSED: refused})
        is_late = self.phase is not DevicePhase.TRAINING
        if not self._tickets.fits(client_id, message.get(say.TICKET)) or (is_late and not self._may_defer(client_id)):
            return _with(answer, {say.REFUSED: TOO_LATE})
        self._there.note(client_id)
        if is_late:
            self._deferred[client_id] = message
            return answer
        if client_id in self._server.answered():
            return answer  # it was taken, and its device did not hear so
        self._take_or_refuse(client_id, message)
        refused = self._refused_now(client_id)
        return answer if refused is None else _with(answer, {say.REFUSED: refused})

    def _refused_now(self, client_id: int) -> str | None:
        """Return why the device's upload was refused in the open round; None where it was not, or none is open."""
        return self._server.refused.get(client_id) if self.phase is DevicePhase.TRAINING else None

    def _may_defer(self, client_id: int) -> bool:
        """Return whether a report that comes while no round is open counts in the next one."""
        return self._is_buffered and self.phase is not DevicePhase.OVER and client_id in self._unfinished

    def _take_or_refuse(self, client_id: int, message: AnyMessage) -> None:
        try:
            self._take(client_id, message.get(say.MODEL))
        except ProtocolError as error:
            self._server.refuse(client_id, error)
            self._tickets.void(client_id)

    def _take(self, client_id: int, data: object) -> None:
        if not isinstance(data, bytes):
            raise ProtocolError(f"expected bytes, got {type(data).__name__}")
        upload, _ = self._codec.decode(data)
        if not isinstance(upload, Upload):
            raise ProtocolError("expected an upload, got a downlink")
        if upload.client_id != client_id:
            raise ProtocolError(f"it speaks for client {upload.client_id}, which is another device")
        self._server.receive(upload)

    def _take_measurement(self, rank: int, message: AnyMessage) -> AnyMessage:
        client_id = rank - 1
        answer = Message(say.TAKEN, 0, rank)
        measuring = self._measuring
        is_open = self.phase is DevicePhase.MEASURING
        if measuring is None or not is_open or not measuring.awaits(client_id, message.get(say.TICKET)):
            return _with(answer, {say.REFUSED: TOO_LATE})
        self._there.note(client_id)
        try:
            headline = self._experiment.method.problem.task.headline
            measuring.take(client_id, read_measurement(message.get(say.MEASURED), headline))
        except ProtocolError as error:
            LOGGER.warning("device %d: %s", rank, error)
            measuring.lose(client_id)
            return _with(answer, {say.REFUSED: str(error)})
        return answer

    # Rounds

    def cut_off(self, rank: int) -> None:
        """Go on without the device of this ``rank``, which may no longer call: at once, or after a round's closing."""
        self._cut_off.add(rank - 1)
        self._let_go()

    def _let_go(self) -> None:
        if self.phase is DevicePhase.CLOSING:  # another thread is at work on what would change
            return
        for client_id in self._cut_off:
            self.expel(client_id)
            self._there.forget(client_id)
            self._server.give_up(client_id)
        self._cut_off.clear()

    def _open_if_enough(self) -> None:
        """Open a round if none is open and so many devices are there as it asks, or wait for more."""
        if self.phase is not DevicePhase.WAITING or self.steering.is_paused:
            return
        args = self._experiment.settings.dapper_args
        for client_id in self._server.at_work.keys() & self._tickets.older_than(args.round_timeout_s):
            if client_id not in self._deferred:
                self._lose_work_of(client_id)
        there = self._num_able
        if there < self._fewest:
            self._shortage.remind(self._server.state.round + 1)
            return
        patient = self._clock() - self._waiting_since < self._args.come_back_s
        if patient and there < min(ceil(self._per_round * self._args.over_selection), self._num_devices):
            return
        at_work = self._server.at_work
        self._tickets.void_all_but(at_work)
        clients = list(self._server.round_clients())
        self._journal.round_opened(clients)
        self._deadline = self._clock() + args.round_timeout_s
        self.phase = DevicePhase.TRAINING
        LOGGER.info("round %d asks %d of %d devices", self._server.state.round + 1, len(clients), there)
        self._take_deferred()

    def _take_deferred(self) -> None:
        deferred = self._deferred
        self._deferred = {}
        for client_id, message in deferred.items():
            if client_id in self._server.at_work:
                self._take_or_refuse(client_id, message)

    def on_turn(self) -> None:
        """Open a round where enough devices are there by now, or say now and then what is lacking; call it often."""
        self._let_go()
        if self._clock() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock()
            self._open_if_enough()

    @property
    def _num_able(self) -> int:
        """Number of devices that can take part in the next round, or are at work already."""
        return len(self._there.able() | self._server.at_work.keys())

    @property
    def _is_buffered(self) -> bool:
        return self._experiment.settings.dapper_args.buffer_size is not None

    @property
    def _num_devices(self) -> int:
        return self._experiment.settings.train_args.client_num_in_total

    def begin_closing(self) -> bool:
        """Return whether :meth:`close` is to be called now; if so, calls change nothing until it is over."""
        if self._measuring is not None and self._measuring.is_over(self._there.present()):
            self.phase = DevicePhase.CLOSING
            return True
        if self.phase is not DevicePhase.TRAINING:
            return False
        answered = self._server.answered()
        awaited = self._server.awaited()
        is_enough = len(answered) >= (self._fewest if not awaited else self._enough)
        if not is_enough and self._clock() < self._deadline:
            return False  # also where all have been refused: bad uploads could use up a run's rounds in no time
        self._unfinished = awaited & self._tickets.holders()  # now, as the round is closed on another thread
        self.phase = DevicePhase.CLOSING
        return True

    def close(self) -> None:
        """Average the round's uploads, test the model and write the round down; the slow part of a round.

        Where devices are to measure it, the round is written down by a second call, when they have.
        """
        if self._measuring is None:
            record = self._server.close_round()
            if self._begin_measuring():
                return
        else:
            record = self._server.measured(self._measuring.measured)
            self._measuring = None
        self._write_down(record)

    def _begin_measuring(self) -> bool:
        """Return whether devices are to measure the round just closed, and have them asked as they call."""
        if not (self._server.wants_measurements and self._server.measurers):
            self._say_unmeasured()
            return False
        args = self._experiment.settings.dapper_args
        most = ceil(self._per_round * self._args.over_selection)
        calls_within_s = PERIODS * self._args.come_back_s
        self._measuring = DeviceMeasuring(
            self._server.can_measure, self._per_round, most, calls_within_s, args.round_timeout_s, self._clock
        )
        self.phase = DevicePhase.MEASURING
        return True

    def _say_unmeasured(self) -> None:
        if self._server.wants_measurements and not self._said_unmeasured:
            self._said_unmeasured = True
            LOGGER.warning(
                "nothing is measured: the server has no test samples, and no device that has called holds any; give the"
                " server some by data_args.data_cache_dir, or devices a test part"
            )

    def _write_down(self, record: RoundRecord) -> None:
        self._journal.round_closed(record)
        self._num_refused += len(record.refused)
        self._waiting_since = self._clock()
        self._shortage.end()
        self.phase = DevicePhase.WAITING
        if self.steering.is_last_round or not self._server.has_rounds_left:
            self._end()

    # Operators

    def go_on(self) -> None:
        """End the run where that is ordered between two rounds; one that is resumed opens its next round by itself."""
        if self.steering.is_last_round and self.phase is DevicePhase.WAITING:
            self._end()

    def expel(self, client_id: int) -> None:
        """Forget what a device was sent that is evicted, which it is told at its next call, or cut off."""
        self._tickets.void(client_id)
        if self._measuring is not None:
            self._measuring.lose(client_id)
        self._deferred.pop(client_id, None)
        self._unfinished.discard(client_id)

    def is_at_work(self, client_id: int) -> bool:
        """Return whether the device was sent a model that it may still answer."""
        return client_id in self._tickets.holders()

    @property
    def measuring(self) -> set[int]:
        """Clients that were asked to measure the model and have not answered."""
        return set() if self._measuring is None else self._measuring.at_it

    def lacks(self) -> str:
        """Return in words what is lacking for the next round; nothing where nothing is, or where a round is open."""
        is_waiting = self.phase is DevicePhase.WAITING and not self.steering.is_paused
        return self._shortage.describe() if is_waiting and self._num_able < self._fewest else ""

    @property
    def num_there(self) -> int:
        """Number of devices that have called lately."""
        return len(self._there.present())

    @property
    def num_refused(self) -> int:
        """Number of uploads that were refused so far."""
        return self._num_refused + (len(self._server.refused) if self.phase is DevicePhase.TRAINING else 0)

    # The end

    def _end(self) -> None:
        """Open no other round; devices are told so as they call."""
        self.phase = DevicePhase.OVER
        self._over_since = self._clock()

    def all_told(self) -> bool:
        """Return whether all devices that were there lately, or at work, know that the run is over."""
        if self.phase is not DevicePhase.OVER:
            return False
        is_patient = self._clock() - self._over_since < FAREWELL_SECONDS
        return self._there.present() | (self._unfinished if is_patient else set()) <= self._told


def _come_back(rank: int, seconds: float) -> AnyMessage:
    return _with(Message(say.COME_BACK, 0, rank), {say.COME_BACK: seconds})


def _refusal(status: AnyMessage, reason: str) -> AnyMessage:
    """Tell a device that it cannot take part; it ends."""
    refusal = Message(say.REFUSED, 0, int(status.get_sender_id()))
    return _with(refusal, {say.REFUSED: reason, say.LIFE: status.get(say.LIFE)})


def _with(message: AnyMessage, params: Mapping[str, object]) -> AnyMessage:
    for key, value in params.items():
        message.add_params(key, value)
    return message
