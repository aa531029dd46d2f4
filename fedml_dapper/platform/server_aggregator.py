"""FedML's server aggregator for this package: aggregation of slim models, and the test on every domain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fedml.arguments import Arguments
from fedml.core import ServerAggregator
from torch import nn

from fedml_dapper.federation import Server
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.platform.program import experiment_of, note_model, refuse_protections


class DapperServerAggregator(ServerAggregator):  # type: ignore[misc]  # fedml is untyped
    """Runs a :class:`Server` in FedML's hooks.

    ``model`` is the initial global model; ``server.state.weights`` is the current one.
    """

    def __init__(self, model: nn.Module, args: Arguments) -> None:
        refuse_protections(args)  # before FedML's base class, which would switch them on
        note_model(args, model)
        super().__init__(model, args)

    @cached_property
    def server(self) -> Server:
        """The server. The first use builds the experiment, so data have to be known then."""
        return Server(experiment_of(self.args))

    def get_model_params(self) -> dict[int, Downlink]:
        """Return what each client of the open round starts from, by client id; a second call changes nothing."""
        return {client_id: self.server.downlink(client_id) for client_id in self.server.round_clients()}

    def set_model_params(self, model_parameters: dict[int, Downlink]) -> None:
        """Do nothing: FedML passes what :meth:`aggregate` returned, which the server has already."""

    def aggregate(self, raw_client_model_or_grad_list: Sequence[tuple[float, Upload]]) -> dict[int, Downlink]:
        """Fold all uploads in, close the round, and return the next round's downlinks."""
        for _, upload in raw_client_model_or_grad_list:
            self.server.receive(upload)
        self.server.close_round()
        return self.get_model_params()

    def test(self, test_data: Any, device: Any, args: Arguments) -> dict[str, float]:
        """Return the last closed round's accuracies: ``global`` and one per domain; empty if it was not tested."""
        record = self.server.last_record
        scores = record.scores if record is not None else None
        return {} if scores is None else {"global": scores.global_accuracy, **scores.domain_accuracy}

    def test_all(self, train_data_local_dict: Any, test_data_local_dict: Any, device: Any, args: Arguments) -> bool:
        """Return True: every domain was tested when the round was closed."""
        return True
