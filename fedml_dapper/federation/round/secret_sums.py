"""Rounds of a server in which silos sum their changes securely: it learns who has trained, and the sum alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import nan

from fedml_dapper.errors import ProtocolError, printable
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.privacy.sum_exchange import OpenedSum, SumExchange
from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.run_folder.records import RoundRecord
from fedml_dapper.federation.wire.sum_codec import Ready, SumCodec, SumMessage
from fedml_dapper.methods import MergingAggregation, ServerState, TrainingMetrics, Upload
from fedml_dapper.pruning import PruningPlan
from fedml_dapper.secure_sum import Witness

LOGGER = logging.getLogger(__name__)


class SecretSums(RoundFeature):
    """Notes which clients are ready, in place of uploads, and sums over them before the round closes."""

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        secure = experiment.method.problem.secure_sums
        assert secure is not None, "Experiment.sums_in_secret says so"
        self._method = experiment.method
        self._state = state
        self._secure = secure
        self._ready: dict[int, Ready] = {}
        """Messages of the clients of the open round that have trained, by client id."""
        self._exchange: SumExchange | None = None
        """Exchange of the open round, from when no other client can become ready."""
        self._sum: OpenedSum | None = None
        """Sum of the round that closes; None where it is void."""
        self.opened_before = 0
        """The last round whose sum clients may have been asked to open before this server was started."""

    def opened(self, opened: OpenRound) -> None:
        self._ready = {}
        self._exchange = None
        self._sum = None

    def announced(self, message: SumMessage) -> Upload:
        """Return what is known of the upload of a client that says that it is ready: all but its tensors.

        Raises:
            ProtocolError: The message is of another kind, or of no client.
        """
        if not isinstance(message.content, Ready):
            raise ProtocolError("expected to hear that a client is ready for the sum, got another message")
        return self._unseen(message.client_id, message.round, message.content.steps)

    def take(self, client_id: int, ready: Ready, opened: OpenRound) -> None:
        """Note that an awaited client has trained.

        Raises:
            ProtocolError: The client takes no part, or its keys are another client's; nothing has changed.
        """
        if ready.keys is None:
            raise ProtocolError("it may have opened a sum of this round before, and nothing is opened twice")
        keys = [key for each in (*self._ready.values(), ready) for key in each.public]
        if len(set(keys)) < len(keys):
            raise ProtocolError("it says that a public key is its own which is another's, or the same twice")
        self._ready[client_id] = ready
        opened.set_aside(client_id)

    def begin(self, codec: SumCodec, witness: Witness, opening: Callable[[], None] = lambda: None) -> SumExchange:
        """Begin the sum over the clients that are ready, before the round closes.

        Where an earlier server process may have opened this round's sum, the sum is void: the difference of two sums
        could give away a single client's change.

        Args:
            codec: Encodes plans, which clients sign.
            witness: Verifies who has signed what.
            opening: Called before clients are asked to open the sum.
        """
        round_ = self._state.round + 1
        plans = {client_id: self._plan_of(client_id) for client_id in self._ready}
        layout = self._method.problem.layout
        rules = self._secure.rules
        self._exchange = SumExchange(round_, self._ready, plans, layout, rules, codec, witness, opening)
        if round_ <= self.opened_before:
            self._exchange.end("it may have been opened before the server crashed, and nothing is opened twice")
        return self._exchange

    def closing(self, opened: OpenRound, unfinished: Sequence[int]) -> str | None:
        """Fold in the opened sum, or return why it is void."""
        exchange = self._exchange
        assert exchange is not None, "a round closes after its sum"
        assert exchange.is_over, "a round closes after its sum"
        for client_id, reason in sorted(exchange.lost.items()):
            LOGGER.warning("round %d: client %d left the sum: %s", opened.number, client_id, printable(reason))
        if exchange.opened is None:
            return f"the sum is void: {printable(exchange.void)}"
        self._sum = exchange.opened
        assert isinstance(opened.aggregation, MergingAggregation), "a method that learns more goes with no sums"
        opened.aggregation.merge(self._sum.partial, map(self._plan_of, self._sum.clients))
        for client_id in self._sum.clients:
            line = opened.line_of(self._unseen(client_id, opened.number, self._ready[client_id].steps))
            opened.records.append(line().model_copy(update={"bytes_up": self._sum.bytes_up[client_id]}))
        return None

    def closed(self, record: RoundRecord) -> RoundRecord:
        return record.model_copy(update={"opened_share": None if self._sum is None else self._sum.opened_share})

    def _plan_of(self, client_id: int) -> PruningPlan:
        return self._method.upload_plan(self._state, client_id)

    def _unseen(self, client_id: int, round_: int, steps: int) -> Upload:
        if not 0 <= client_id < len(self._state.profiles):
            raise ProtocolError(f"there is no client {client_id}")
        samples = self._method.trained_samples(self._state.profiles[client_id])
        metrics = TrainingMetrics(nan, steps, 0.0)
        return Upload(round_, client_id, samples, {}, metrics, self._plan_of(client_id))
