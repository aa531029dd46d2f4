"""Latest models of all clients, or parts of them, at the server, which personalised methods mix.

Its memory grows with the number of clients that took part, unlike that of plain averaging.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from torch import Tensor

from fedml_dapper.methods.contract import ServerState, Upload
from fedml_dapper.methods.parts.averaging import WeightedMean, check_like
from fedml_dapper.pruning import Tensors

_ROUNDS = "client_rounds"


class ClientModels:
    """A view on the server's memory, groups ``client<id>``; nothing is kept in the view itself."""

    def __init__(self, server: ServerState) -> None:
        self._memory = server.memory

    @property
    def rounds(self) -> dict[int, int]:
        """Round of what each client sent last, by client id, ascending."""
        rounds = cast("dict[str, int]", self._memory.values.get(_ROUNDS, {}))
        return {client_id: rounds[str(client_id)] for client_id in sorted(map(int, rounds))}

    def __contains__(self, client_id: int) -> bool:
        return str(client_id) in cast("dict[str, int]", self._memory.values.get(_ROUNDS, {}))

    def tensor(self, client_id: int, name: str) -> Tensor:
        """A tensor of what ``client_id`` sent last."""
        return self._memory.tensors[f"client{client_id}/{name}"]

    def keep(self, client_id: int, round_: int, tensors: Tensors) -> None:
        """Remember ``tensors`` in place of what ``client_id`` sent before."""
        self._memory.keep(f"client{client_id}", tensors)
        rounds = cast("dict[str, int]", self._memory.values.get(_ROUNDS, {}))
        self._memory.values[_ROUNDS] = {**rounds, str(client_id): round_}

    def mean(self, weights: Mapping[int, float], previous: Tensors) -> Tensors:
        """The clients' weighted mean of the tensors in ``previous``, which is returned where no weight is positive."""
        mean = WeightedMean(previous)
        for client_id in sorted(weights):
            if weights[client_id] > 0:
                mean.add({name: self.tensor(client_id, name) for name in previous}, weights[client_id])
        return mean.result()


class KeepLatest:
    """An aggregation that averages nothing: the ``names`` of each upload become what the client sent last.

    They do so when the round closes, as other clients' downlinks of the same round must not depend on them.
    """

    def __init__(self, server: ServerState, names: Collection[str]) -> None:
        self._server = server
        self._expected = {name: server.weights[name] for name in sorted(names)}
        self._received: dict[int, Tensors] = {}

    def add(self, upload: Upload) -> None:
        sent = {name: tensor for name, tensor in upload.weights.items() if name in self._expected}
        check_like(sent, self._expected)
        self._received[upload.client_id] = sent

    def close(self) -> None:
        models = ClientModels(self._server)
        for client_id, tensors in self._received.items():
            models.keep(client_id, self._server.round + 1, tensors)
