"""Measurements that silos make on their own test samples, where a server has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fedml_dapper.federation.round.served_edges import ServedEdges
from fedml_dapper.federation.scoring.testing import Figures
from fedml_dapper.federation.wire.announcement import Announcement, Measurement


class OwnTests:
    """Knows which silos have test samples of their own, and reads what they measure; edges may serve some of them."""

    def __init__(self, edges: ServedEdges) -> None:
        self._edges = edges
        self._num_tests: dict[int, int] = {}
        """Number of test samples of each silo with data of its own, by client id."""

    def join(self, client_id: int, announcement: Announcement) -> None:
        """Note how many test samples a silo announces."""
        self._num_tests[client_id] = announcement.num_test

    def measurers(self, at_work: Collection[int]) -> Sequence[int]:
        """Return whom to ask for measurements: silos with test samples that are not at work, by client id.

        In place of silos that an edge serves stands the edge.
        """
        return self._edges.in_place_of(client_id for client_id in self._able if client_id not in at_work)

    def has_tests(self, client_id: int) -> bool:
        """Return whether a silo has announced test samples."""
        return self._num_tests.get(client_id, 0) > 0

    def behind(self, edge: int) -> list[int]:
        """Return the silos with test samples that this edge serves, by client id."""
        return self._edges.among(self._able, edge)

    @property
    def _able(self) -> list[int]:
        return sorted(client_id for client_id, count in self._num_tests.items() if count)

    def figures(self, measurements: Mapping[int, Measurement]) -> dict[int, Figures]:
        """Return the figures of silos that measured as many samples as they announced, by client id.

        Others are left out; an edge may even pass on measurements of silos that never joined.
        """
        return {
            client_id: Figures(measurement.headline, measurement.loss)
            for client_id, measurement in measurements.items()
            if 0 < measurement.num_samples == self._num_tests.get(client_id)
        }

    @property
    def num_samples(self) -> Mapping[int, int]:
        """Number of test samples of each silo, by client id, which is its weight in means over silos."""
        return self._num_tests
