"""FedML's server side: recovery and aggregation by kept index, and the per-domain test."""

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
    """FedML's hooks around :class:`Server`; ``model`` is the initial global model, ``server.state.weights`` the one of
    record."""

    def __init__(self, model: nn.Module, args: Arguments) -> None:
        refuse_protections(args)  # first: FedML's base class would switch them on
        note_model(args, model)
        super().__init__(model, args)

    @cached_property
    def server(self) -> Server:
        """The server; asking for it builds the experiment, so data have to be known."""
        return Server(experiment_of(self.args))

    def get_model_params(self) -> dict[int, Downlink]:
        """What each client of the open round starts from, by client id; asking twice changes nothing."""
        return {client_id: self.server.downlink(client_id) for client_id in self.server.round_clients()}

    def set_model_params(self, model_parameters: dict[int, Downlink]) -> None:
        """Nothing to do: FedML hands back what :meth:`aggregate` returned, which the server has already."""

    def aggregate(self, raw_client_model_or_grad_list: Sequence[tuple[float, Upload]]) -> dict[int, Downlink]:
        """Fold all uploads in, close the round, and return the next round's downlinks."""
        for _, upload in raw_client_model_or_grad_list:
            self.server.receive(upload)
        self.server.close_round()
        return self.get_model_params()

    def test(self, test_data: Any, device: Any, args: Arguments) -> dict[str, float]:
        """Accuracy (percent) of the last closed round: ``global`` and one entry per domain; empty if not tested."""
        record = self.server.last_record
        scores = record.scores if record is not None else None
        return {} if scores is None else {"global": scores.global_accuracy, **scores.domain_accuracy}

    def test_all(self, train_data_local_dict: Any, test_data_local_dict: Any, device: Any, args: Arguments) -> bool:
        """Every domain was tested when the round was closed."""
        return True
