"""Rounds under differential privacy: the account of what they spend, and the count of clients that send nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedml_dapper.federation.privacy.accountant import spent
from fedml_dapper.federation.round.feature import RoundFeature
from fedml_dapper.federation.round.open_round import OpenRound
from fedml_dapper.federation.run_folder.records import PrivacySpent, RoundRecord
from fedml_dapper.methods import Method, Privacy, ServerState, TrainingMetrics, Upload


class PrivateRounds(RoundFeature):
    """Keeps account of how often each client was asked, and so of the epsilon that was spent."""

    def __init__(self, method: Method[Any], privacy: Privacy, state: ServerState) -> None:
        self._method = method
        self._privacy = privacy
        self._state = state
        self._spent: PrivacySpent | None = None
        """Account after the last round that was closed."""
        self._uses: dict[int, int] = {}
        """How often each client of the round that closes was asked."""

    def closing(self, opened: OpenRound, unfinished: Sequence[int]) -> None:
        clients = self._state.clients
        self._uses = {client_id: opened.num_downlinks.get(client_id, 1) for client_id in clients}
        if self._privacy.where == "server":
            self._count_absent(set(clients) - {record.client for record in opened.records}, opened)

    def _count_absent(self, client_ids: set[int], opened: OpenRound) -> None:
        """Fold in chosen clients without an upload as ones that changed nothing.

        The divisor of the mean has to be the same with and without any client's upload (``pruning.private``).
        """
        for client_id in sorted(client_ids):
            sent = self._method.downlink(self._state, client_id)
            plan = self._method.upload_plan(self._state, client_id)
            weights = {name: tensor for name, tensor in sent.weights.items() if name not in plan.omitted}
            opened.fold_stand_in(Upload(sent.round, client_id, 0, weights, TrainingMetrics(0.0, 0, 0.0), plan))

    def closed(self, record: RoundRecord) -> RoundRecord:
        sends_new_noise = self._privacy.is_secret and self._privacy.where == "client"
        uses = self._uses if sends_new_noise else dict.fromkeys(self._uses, 1)
        self._spent = spent(self._privacy, self._spent, uses)
        return record.model_copy(update={"privacy": self._spent})

    def resumed(self, record: RoundRecord) -> None:
        self._spent = record.privacy

    def go_on_from(self, spent: PrivacySpent) -> None:
        """Count on from an account that is later than that of the round from which the run goes on."""
        self._spent = spent
