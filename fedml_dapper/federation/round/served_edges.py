"""Edges between a server and some of its silos: each is sent an order, and answers with one sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedml_dapper.config import EdgeArgs
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation.experiment import Experiment
from fedml_dapper.federation.round.edges import EdgeOrder, EdgeSum, check_sum
from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.round.update_norm import UpdateNorms
from fedml_dapper.federation.run_folder.records import EdgeRecord, RoundRecord
from fedml_dapper.methods import ClientProfile, MergingAggregation, ServerState
from fedml_dapper.process.profiling import part


class ServedEdges(RoundFeature):
    """Sends orders to edges, and merges their sums in order of rank when the round closes.

    As recipients of messages, edges are numbered by rank - 1, as silos are.
    """

    def __init__(self, experiment: Experiment, state: ServerState) -> None:
        self._method = experiment.method
        self._state = state
        self._edges: Mapping[int, EdgeArgs] = {edge.rank - 1: edge for edge in experiment.settings.comm_args.edges}
        self._sums: dict[int, EdgeSum] = {}
        """Sums that edges have sent in the open round, by edge."""
        self._asked: dict[int, dict[int, ClientProfile]] = {}
        """Profiles of the clients in each edge's order, as of then: a silo may announce other data meanwhile."""
        self._merged: dict[int, EdgeRecord] = {}
        """Records of the edges in the round that closes, by rank."""

    def __contains__(self, recipient: int) -> bool:
        """Return whether the recipient is an edge, not a client."""
        return recipient in self._edges

    def ranks_of_silos(self, edge: int) -> Sequence[int]:
        """Return the ranks of the silos that this edge serves."""
        return self._edges[edge].silos

    def num_behind(self, recipient: int) -> int:
        """Return how many clients can answer through a recipient: 1, or the number of an edge's silos."""
        return len(self.ranks_of_silos(recipient)) if recipient in self else 1

    def in_place_of(self, client_ids: Iterable[int]) -> Sequence[int]:
        """Return the recipients of messages for ``client_ids``: clients, or the edges that serve them; ascending."""
        served = {silo - 1: edge for edge, args in self._edges.items() for silo in args.silos}
        return sorted({served.get(client_id, client_id) for client_id in client_ids})

    def among(self, client_ids: Iterable[int], edge: int) -> list[int]:
        """Return those of ``client_ids`` that the edge serves."""
        return [client_id for client_id in client_ids if client_id + 1 in self._edges[edge].silos]

    def order(self, edge: int, client_ids: Sequence[int], usual: UpdateNorms) -> EdgeOrder:
        """Make the order for an edge to run a round among ``client_ids``, which it serves."""
        state = self._state
        self._asked[edge] = {client_id: state.profiles[client_id] for client_id in client_ids}
        return EdgeOrder(
            round=state.round + 1,
            edge=edge + 1,
            clients=tuple(client_ids),
            chosen=state.clients,
            profiles=state.profiles,
            weights=state.weights,
            memory=state.memory,
            usual=usual,
        )

    def receive(self, message: EdgeSum, opened: OpenRound) -> None:
        """Take the sum of an edge.

        Raises:
            ProtocolError: The sum is not awaited, or does not fit what the server knows; nothing has changed.
        """
        edge = message.edge - 1
        if message.round != opened.number or edge not in self or not opened.is_awaited(edge):
            raise ProtocolError(f"the edge of rank {message.edge} is not awaited with a sum of round {message.round}")
        check_sum(message, self._method, self._asked[edge])
        self._sums[edge] = message
        opened.set_aside(edge)

    @property
    def num_more(self) -> int:
        """Number of clients in edges' sums, minus the number of these sums."""
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
            plans = (self._method.upload_plan(self._state, record.client) for record in message.records)
            with part("aggregation"):
                opened.aggregation.merge(message.sum, plans)
            opened.records.extend(message.records)
        return EdgeRecord(
            clients=tuple(record.client for record in message.records),
            bytes_down=opened.bytes_down[message.edge - 1],
            bytes_up=message.payload_bytes,
        )
