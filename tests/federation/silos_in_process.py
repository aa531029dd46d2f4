"""A server and silos that sum under masks, in one process: all that passes between them is bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedml_dapper.federation import (
    Agreement,
    ClientSide,
    Codec,
    Experiment,
    MaskedUpload,
    RoundRecord,
    Server,
    SumCodec,
    SumExchange,
    SumMessage,
)
from fedml_dapper.federation.round.secret_sums import SecretSums
from fedml_dapper.federation.wire.sum_codec import Consent, Deal, Masked, Revealed
from fedml_dapper.pruning import FixedPointMean, PruningPlan, Tensors
from tests.secure_sum.identities import Person, people

SECURE = "dapper_args.privacy={secure_aggregation: {threshold: 3, min_holders: 2}}"
STEPS = (Deal, Masked, Consent, Revealed)


@dataclass
class Federation:
    """A server and its silos in this process; all that passes between them is bytes."""

    experiment: Experiment
    server: Server = field(init=False)
    wire: list[bytes] = field(default_factory=list)
    """All that silos sent."""
    uploads: dict[int, MaskedUpload] = field(default_factory=dict)
    changes: dict[int, tuple[PruningPlan, Tensors]] = field(default_factory=dict)
    """What silos keep to themselves."""

    def __post_init__(self) -> None:
        layout, agreement = self.experiment.method.problem.layout, Agreement.of(self.experiment)
        self.server, self._clients = Server(self.experiment), ClientSide(self.experiment)
        self.codec = SumCodec(Codec(layout, agreement), agreement)
        self.people: dict[int, Person] = people(range(len(self.experiment.clients)))

    @property
    def sums(self) -> SecretSums:
        assert self.server.sums is not None
        return self.server.sums

    def train(self) -> None:
        """All clients of the next round, which then are ready."""
        for client_id in self.server.round_clients():
            downlink = self.server.downlink(client_id)
            upload = self._clients.update(downlink, self.experiment.clients[client_id])
            self.uploads[client_id] = MaskedUpload(
                self.experiment, self.codec, upload, downlink, self.people[client_id], lambda statement: None
            )
            self.changes[client_id] = (upload.plan, upload.weights)
            self.server.receive_ready(self.sent(self.uploads[client_id].ready()))

    def sent(self, message: SumMessage) -> SumMessage:
        self.wire.append(self.codec.encode(message))
        return self.codec.decode(self.wire[-1])

    def round(self, gone: Mapping[type, Collection[int]]) -> RoundRecord:
        """One whole round, in which these are gone before they send what is of that type."""
        self.train()
        exchange = self.sums.begin(self.codec, self.people[0])
        self.sum_up(exchange, gone)
        return self.server.close_round()

    def sum_up(self, exchange: SumExchange, gone: Mapping[type, Collection[int]]) -> None:
        told = exchange.beginning()
        for step in STEPS:
            for message in told:
                arrived = self.codec.decode(self.codec.encode(message))
                if message.client_id not in gone.get(step, ()):
                    answer = self.sent(self.uploads[message.client_id].answer(arrived))
                    if exchange.is_about(answer):
                        exchange.take(answer)
            exchange.time_is_over()
            told = exchange.go_on() if exchange.can_go_on else []
        assert exchange.is_over

    def plain_mean(self, clients: Collection[int]) -> Tensors:
        """Of these clients' summands of the round that was trained last, where they hold all, without masks."""
        problem, before = self.experiment.method.problem, self.server.state.weights
        assert problem.secure_sums is not None
        mean = FixedPointMean(before, problem.layout, "holders", problem.secure_sums.code, 2)
        for client in clients:
            plan, weights = self.changes[client]
            mean.add(weights, plan, 1, share=problem.noise_share(self.uploads[client].round, client))
        return mean.result()
