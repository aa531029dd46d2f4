"""Edges: servers near some of the silos, which sum their uploads and send the server one sum in place of many.

In a round an edge gets an :class:`EdgeOrder` with the server's state, from which it makes its silos' downlinks. It
checks and folds their uploads as the server would have, and answers with an :class:`EdgeSum`. Sums are in float64, so
the global model differs from the one without edges by the order of additions alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.round.collector import Collector
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.federation.run_folder.records import ClientRecord
from fedml_dapper.methods import ClientProfile, Memory, Method, RecoverAndAverage, ServerState
from fedml_dapper.pruning import PartialSum, Tensors, check_partial


@dataclass(frozen=True, eq=False)
class EdgeOrder:
    """Message from server to edge: a round that the edge is to run among some of its silos."""

    round: int
    edge: int
    """The edge's rank."""
    clients: tuple[int, ...]
    """Clients of this edge that are to train, or to measure between two rounds; ascending."""
    chosen: tuple[int, ...]
    """All clients that were chosen for the round, also those of the server and of other edges; none between rounds."""
    profiles: tuple[ClientProfile, ...]
    weights: Tensors
    memory: Memory
    """What the method remembers on the server, on which downlinks may depend."""
    usual: UpdateNorms = field(default_factory=UpdateNorms)
    """Usual size of the uploads of the round before."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of the order's tensors."""
        return sum(tensor.nbytes for tensor in (*self.weights.values(), *self.memory.tensors.values()))


@dataclass(frozen=True, eq=False)
class EdgeSum:
    """Message from edge to server: the sum of its silos' uploads of a round."""

    round: int
    edge: int
    """The edge's rank."""
    records: tuple[ClientRecord, ...] = ()
    """The ledger's records of the clients in the sum."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Why uploads were refused, by client id."""
    sum: PartialSum = field(default_factory=PartialSum)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the sum's tensors."""
        parts = [tensor for pair in self.sum.sums.values() for tensor in pair]
        return sum(tensor.nbytes for tensor in (*parts, *self.sum.largest.values()))


class Edge(Collector):
    """Runs rounds in a server's name: :meth:`begin`, ``downlink`` and ``receive`` for every client, :meth:`close`."""

    def __init__(self, experiment: Experiment) -> None:
        weights = experiment.method.problem.starting_weights()
        super().__init__(experiment, ServerState(round=0, weights=weights, profiles=()))
        self._sum: RecoverAndAverage | None = None
        self._rank = 0

    @property
    def is_open(self) -> bool:
        """Whether an order is being worked on."""
        return self._sum is not None

    def begin(self, order: EdgeOrder) -> None:
        """Begin the round of ``order``; an earlier order that was not finished is dropped."""
        self.state = ServerState(
            order.round - 1, dict(order.weights), order.profiles, order.memory, clients=order.chosen
        )
        self._rank = order.edge
        self._sum = RecoverAndAverage(self.state, self._method.problem)
        self._open(self._sum, order.clients, order.usual)

    def close(self) -> EdgeSum:
        """End the round, and return the sum of the uploads that have come."""
        assert self._sum is not None, "begin comes first"
        self._round.fold_the_rest()
        records = tuple(self._round.records)
        refused = dict(self._round.refused)
        partial = self._sum.partial() if records else PartialSum()
        self._sum = None
        self._round.close()
        self.state.round += 1
        return EdgeSum(self.state.round, self._rank, records, refused, partial)


def check_sum(message: EdgeSum, method: Method[Any], clients: Mapping[int, ClientProfile]) -> None:
    """Check an edge's sum against what the server knows of its clients; the summed values are taken on trust.

    Args:
        message: The sum.
        method: The experiment's.
        clients: Profiles of the chosen clients that the edge serves, by client id.

    Raises:
        ProtocolError: A client was not to be asked, is named twice or is not as the server knows it; the weight is not
            that of the clients; or the tensors are not those that clients send.
    """
    named = [*(record.client for record in message.records), *message.refused]
    if len(set(named)) < len(named) or not set(named) <= clients.keys():
        raise ProtocolError(f"the edge of rank {message.edge} sums up clients that it was not to ask, or one twice")
    for record in message.records:
        profile = clients[record.client]
        expected = (profile.domain, profile.level, profile.ratio, method.trained_samples(profile))
        if (record.domain, record.level, record.ratio, record.num_samples) != expected:
            raise ProtocolError(f"the edge of rank {message.edge} knows client {record.client} as another than it is")
    uniform = method.problem.uniform_weights
    names = set(method.problem.layout.travelling) - method.problem.personal_tensors
    weight = sum(1 if uniform else record.num_samples for record in message.records)
    if message.sum.total != weight:
        raise ProtocolError(f"the edge of rank {message.edge} sums up a weight of {message.sum.total:g}, not {weight}")
    if message.records:
        check_partial(message.sum, method.problem.layout, names)
