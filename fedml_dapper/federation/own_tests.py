"""What silos measure on their own test samples, where a server has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fedml_dapper.federation.announcement import Announcement, Measurement
from fedml_dapper.federation.served_edges import ServedEdges
from fedml_dapper.federation.testing import Figures


class OwnTests:
    """Silos with data of their own, of which some are an edge's."""

    def __init__(self, edges: ServedEdges) -> None:
        self._edges = edges
        self._num_tests: dict[int, int] = {}
        """Test samples of silos with data of their own, by client id."""

    def join(self, client_id: int, announcement: Announcement) -> None:
        """Take note of how many test samples a silo says it has."""
        self._num_tests[client_id] = announcement.num_test

    def measurers(self, at_work: Collection[int]) -> Sequence[int]:
        """Silos that have joined with test samples, by client id; but for those still at work, and for those of edges,
        in whose place are these."""
        return self._edges.in_place_of(client_id for client_id in self._able if client_id not in at_work)

    def behind(self, edge: int) -> list[int]:
        """Silos that have joined with test samples and that this edge serves, by client id."""
        return self._edges.among(self._able, edge)

    @property
    def _able(self) -> list[int]:
        return sorted(client_id for client_id, count in self._num_tests.items() if count)

    def figures(self, measurements: Mapping[int, Measurement]) -> dict[int, Figures]:
        """The figures of silos that measured as many samples as they said they have, by client id."""
        return {
            client_id: Figures(measurement.headline, measurement.loss)
            for client_id, measurement in measurements.items()
            if measurement.num_samples == self._num_tests[client_id]
        }

    @property
    def num_samples(self) -> Mapping[int, int]:
        """Test samples by client id: what a silo counts for."""
        return self._num_tests
