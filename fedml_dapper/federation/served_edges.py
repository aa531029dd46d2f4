"""The edges that a server has between it and some of its silos: each is sent an order, and answers with one sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedml_dapper.config import EdgeArgs
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.edges import EdgeSum, Order, check_sum
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.magnitude import Magnitude
from fedml_dapper.federation.open_round import OpenRound
from fedml_dapper.federation.records import EdgeRecord, RoundRecord
from fedml_dapper.federation.round_feature import RoundFeature
from fedml_dapper.methods import ClientProfile, MergingAggregation, ServerState
from fedml_dapper.profiling import part


class ServedEdges(RoundFeature):
    """Edges go by their rank - 1, as silos do. Their sums are merged in this order, when the round closes."""

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        self._method = experiment.method
        self._state = state
        self._edges: Mapping[int, EdgeArgs] = {edge.rank - 1: edge for edge in experiment.settings.comm_args.edges}
        self._sums: dict[int, EdgeSum] = {}
        """Sums of the open round's edges that have answered, by edge."""
        self._asked: dict[int, dict[int, ClientProfile]] = {}
        """Clients of each edge's order as they were then: a silo may say meanwhile that it holds other data."""
        self._merged: dict[int, EdgeRecord] = {}
        """The ledger's lines of the edges in the round that closes, by rank."""

    def __contains__(self, recipient: int) -> bool:
        """Whether that is no client, but an edge."""
        return recipient in self._edges

    def ranks_of_silos(self, edge: int) -> Sequence[int]:
        """The ranks of the silos that this edge serves."""
        return self._edges[edge].silos

    def num_behind(self, recipient: int) -> int:
        """How many clients can answer through a recipient: itself, or an edge's."""
        return len(self.ranks_of_silos(recipient)) if recipient in self else 1

    def in_place_of(self, client_ids: Iterable[int]) -> Sequence[int]:
        """``client_ids``, but for those of edges, in whose place are these; ascending."""
        served = {silo - 1: edge for edge, args in self._edges.items() for silo in args.silos}
        return sorted({served.get(client_id, client_id) for client_id in client_ids})

    def among(self, client_ids: Iterable[int], edge: int) -> list[int]:
        """Those of ``client_ids`` whom the edge serves."""
        return [client_id for client_id in client_ids if client_id + 1 in self._edges[edge].silos]

    def order(self, edge: int, client_ids: Sequence[int], usual: Magnitude) -> Order:
        """What an edge is to do among ``client_ids``, which it serves."""
        state = self._state
        self._asked[edge] = {client_id: state.profiles[client_id] for client_id in client_ids}
        return Order(
            state.round + 1, edge + 1, tuple(client_ids), state.clients, state.profiles, state.weights, state.memory,
            usual,
        )  # fmt: skip

    def receive(self, message: EdgeSum, opened: OpenRound) -> None:
        """Take what an edge has summed; raises :class:`ProtocolError`, with nothing changed, if it does not fit."""
        edge = message.edge - 1
        if message.round != opened.number or edge not in self or not opened.is_awaited(edge):
            raise ProtocolError(f"the edge of rank {message.edge} is not awaited with a sum of round {message.round}")
        check_sum(message, self._method, self._asked[edge])
        self._sums[edge] = message
        opened.set_aside(edge)

    @property
    def num_more(self) -> int:
        """How many more clients than edges have answered through these."""
        return sum(len(message.records) - 1 for message in self._sums.values())

    def opened(self, opened: OpenRound) -> None:
        self._sums = {}

    def closing(self, opened: OpenRound, unfinished: Sequence[int]) -> None:
        self._merged = {edge + 1: self._merge(self._sums[edge], opened) for edge in sorted(self._sums)}

    def closed(self, record: RoundRecord) -> RoundRecord:
        refused = {one: reason for one, reason in record.refused.items() if one not in self}
        return record.model_copy(update={"edges": self._merged, "refused": refused})

    def _merge(self, message: EdgeSum, opened: OpenRound) -> EdgeRecord:
        for client_id, reason in message.refused.items():
            opened.note_refusal(client_id, reason)
        if message.records:
            assert isinstance(opened.aggregation, MergingAggregation), "Method.takes_edges sees to that"
            with part("aggregation"):
                opened.aggregation.merge(message.sum)
            opened.records.extend(message.records)
        return EdgeRecord(
            clients=tuple(record.client for record in message.records),
            bytes_down=opened.bytes_down[message.edge - 1],
            bytes_up=message.payload_bytes,
        )
