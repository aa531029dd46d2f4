"""What operators see of a server of devices that call, and how their orders reach it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from fedml_dapper.config import SecureGrpcConfig
from fedml_dapper.errors import DapperError
from fedml_dapper.federation import Server
from fedml_dapper.federation.wire import vocabulary as say
from fedml_dapper.operations.orders import Order
from fedml_dapper.operations.status import CallerFigures, Progress, ServerStatus, State, StatusBoard
from fedml_dapper.platform.device_rounds import DevicePhase, DeviceRounds
from fedml_dapper.secure_grpc import AnyMessage

POST_SECONDS = 1.0
"""Shortest time between two looks at what operators are shown."""
_STATE_OF: Mapping[DevicePhase, State] = {
    DevicePhase.WAITING: "waiting",
    DevicePhase.TRAINING: "round",
    DevicePhase.CLOSING: "round",
    DevicePhase.MEASURING: "measuring",
    DevicePhase.OVER: "ending",
}


class DeviceDesk:
    """The ``Desk`` of a server of devices; use it on the thread of its event loop.

    Args:
        rounds: What is shown and steered.
        server: Its server.
        config: Names of devices.
        num_rounds: Rounds that the run is to have.
        board: Where the status is read, from any thread.
        clock: Seconds.
    """

    def __init__(
        self,
        rounds: DeviceRounds,
        server: Server,
        config: SecureGrpcConfig,
        num_rounds: int,
        board: StatusBoard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rounds = rounds
        self._server = server
        self._config = config
        self._num_rounds = num_rounds
        self._board = board
        self._clock = clock
        self._posted = float("-inf")
        self._heard: dict[int, float] = {}
        self._bytes_in: Counter[int] = Counter()
        self._bytes_out: Counter[int] = Counter()
        self._refused: Counter[int] = Counter()
        self._orders: deque[tuple[Order, Future[str]]] = deque()
        """Orders that came while a round was closing."""
        self._figures: Sequence[CallerFigures] = ()
        self.strangers: Callable[[], int] = lambda: 0
        """Returns the number of refused calls of strangers."""
        board.callers = lambda: (self._figures, self.strangers())
        self._post()  # before anybody can ask

    def answer(self, rank: int, message: AnyMessage) -> AnyMessage:
        """Answer a device's call, and count what it brings and takes."""
        answer = self._rounds.answer(rank, message)
        client_id = rank - 1
        self._heard[client_id] = self._clock()
        self._bytes_in[client_id] += _model_bytes(message)
        self._bytes_out[client_id] += _model_bytes(answer)
        self._refused[client_id] += answer.get(say.REFUSED) is not None
        return answer

    def status(self) -> ServerStatus:
        """Return the status; safe from any thread."""
        return self._board.read()

    def ask(self, order: Order) -> Future[str]:
        """Have an order carried out: at once, or when the round that is closing is closed."""
        future: Future[str] = Future()
        self._orders.append((order, future))
        self._carry_out()
        return future

    def on_turn(self) -> None:
        """Carry out orders that wait, and post the status; call it often."""
        if self._rounds.phase is DevicePhase.CLOSING:  # another thread is at work on what would be read
            return
        self._carry_out()
        if self._clock() - self._posted >= POST_SECONDS:
            self._post()

    def _carry_out(self) -> None:
        while self._orders and self._rounds.phase is not DevicePhase.CLOSING:
            order, future = self._orders.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                said = self._rounds.steering.carry_out(order)
            except DapperError as error:
                future.set_exception(error)
            else:
                self._post()
                future.set_result(said)

    def _post(self) -> None:
        self._posted = self._clock()
        standings = self._standings()
        self._figures = tuple(self._figures_of(client_id) for client_id in standings)
        record = self._server.last_record
        self._board.post(
            Progress(
                state=self._state,
                round=self._server.state.round + (self._rounds.phase is DevicePhase.TRAINING),
                rounds=self._num_rounds,
                standings={self._name_of(client_id): standing for client_id, standing in standings.items()},
                out={
                    self._name_of(client_id): self._until(client_id, until)
                    for client_id, until in self._server.attendance.left_out.items()
                },
                absent=() if record is None else tuple(map(self._name_of, record.absent)),
                refused_uploads=self._rounds.num_refused,
                there=self._rounds.num_there,
                lacks=self._rounds.lacks(),
            )
        )

    @property
    def _state(self) -> State:
        is_waiting = self._rounds.phase is DevicePhase.WAITING
        return "paused" if is_waiting and self._rounds.steering.is_paused else _STATE_OF[self._rounds.phase]

    def _standings(self) -> dict[int, str]:
        """Return what the open round's devices are doing, and those at work, by client id."""
        found = dict.fromkeys(self._server.at_work, "at work") | dict.fromkeys(self._rounds.measuring, "measures")
        if self._rounds.phase is not DevicePhase.TRAINING:
            return found
        answered = self._server.answered()
        for client_id in self._server.round_clients():
            found[client_id] = "at work" if self._rounds.is_at_work(client_id) else "asked"
        found |= dict.fromkeys(answered, "answered")
        found |= dict.fromkeys(self._server.refused, "upload refused")
        return dict(sorted(found.items()))

    def _figures_of(self, client_id: int) -> CallerFigures:
        heard = self._heard.get(client_id)
        return CallerFigures(
            name=self._name_of(client_id),
            connected=False,
            heard_s=None if heard is None else self._clock() - heard,
            bytes_in=self._bytes_in[client_id],
            bytes_out=self._bytes_out[client_id],
            refused_calls=self._refused[client_id],
        )

    def _until(self, client_id: int, until: int) -> str:
        return "evicted" if self._server.attendance.quarantine.is_evicted(client_id) else f"up to round {until}"

    def _name_of(self, client_id: int) -> str:
        return self._config.name_of(client_id + 1)


def _model_bytes(message: AnyMessage) -> int:
    """Return the size of the model in a message; 0 where there is none, whatever stands in its place."""
    model = message.get(say.MODEL)
    return len(model) if isinstance(model, bytes) else 0
