"""FedML's client trainer for this package; one object trains any client of the experiment."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from fedml.arguments import Arguments
from fedml.core import ClientTrainer
from torch import nn

from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ProtocolError
from fedml_dapper.federation import ClientSide
from fedml_dapper.methods import Downlink, Upload
from fedml_dapper.platform.program import experiment_of, note_model, refuse_protections


class DapperClientTrainer(ClientTrainer):  # type: ignore[misc]  # fedml is untyped
    """Trains a client by the experiment's method in FedML's hooks; ``model`` is the network that is trained.

    The payload of ``set_model_params`` is a :class:`Downlink`, that of ``get_model_params`` an :class:`Upload`.
    """

    def __init__(self, model: nn.Module, args: Arguments) -> None:
        refuse_protections(args)  # before FedML's base class, which would switch them on
        note_model(args, model)
        super().__init__(model, args)
        self._downlink: Downlink | None = None
        self._upload: Upload | None = None

    @cached_property
    def clients(self) -> ClientSide:
        """The clients that this process serves. The first use builds the experiment, so data have to be known then."""
        return ClientSide(experiment_of(self.args))

    def set_model_params(self, model_parameters: Downlink) -> None:
        self._downlink = model_parameters

    def train(self, train_data: ClientData, device: Any, args: Arguments) -> None:
        """Run the local update of the client of the last downlink."""
        if self._downlink is None:
            raise ProtocolError("train was called before set_model_params; FedML calls them in the other order")
        self._upload = self.clients.update(self._downlink, train_data)

    def get_model_params(self) -> Upload:
        if self._upload is None:
            raise ProtocolError("get_model_params was called before train, so there is no upload yet")
        return self._upload
