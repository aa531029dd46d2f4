"""How FDSE's server aggregates decomposed networks (FDSE Eq. 8-9): by role, in float64.

Shared parameters move by consensus, layer by layer; personal ones (erasers) are mixed by similarity and remembered per
client, as ``client<id>`` in the server's memory, where those of absent clients stay as they are; shared statistics are
averaged, every client counting alike. The global model holds the mean eraser of all clients that have trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.contract import ServerState, Upload
from fedml_dapper.methods.parts.averaging import check_like
from fedml_dapper.methods.parts.decomposition import Roles
from fedml_dapper.methods.parts.min_norm import consensus_step
from fedml_dapper.methods.parts.similarity_mixing import mix_by_similarity
from fedml_dapper.pruning import Tensors


class ConsensusAndSimilarity:
    """One round's aggregation. Directions need all updates, so uploads are kept until it closes.

    Without ``tau`` erasers are not mixed; without ``consensus`` the updates of what is shared are averaged.
    """

    def __init__(self, server: ServerState, roles: Roles, tau: float | None, *, consensus: bool = True) -> None:
        self._server = server
        self._roles = roles
        self._tau = tau
        self._step = consensus_step if consensus else _mean_step
        self._uploads: dict[int, Tensors] = {}

    def add(self, upload: Upload) -> None:
        before = self._server.weights
        check_like(upload.weights, {name: before[name] for name in before if name not in self._roles.local})
        for name, tensor in upload.weights.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ProtocolError(
                    f"client {upload.client_id} sent values that are not finite, in `{name}`: its training diverged;"
                    " lower train_args.learning_rate"
                )
        self._uploads[upload.client_id] = upload.weights

    def close(self) -> None:
        if not self._uploads:
            raise ProtocolError("no client answered in this round, so there is nothing to aggregate")
        shared = {**self._consensus(), **self._mean_statistics()}
        self._remember_erasers()
        self._server.weights = {**self._server.weights, **shared, **self._mean_eraser()}

    def _consensus(self) -> Tensors:
        before = self._server.weights
        after = dict[str, Tensor]()
        for names in self._roles.consensus:
            start = _joined(before, names)
            after |= _split(start + self._step(self._stacked(names) - start), names, before)
        return after

    def _mean_statistics(self) -> Tensors:
        before = self._server.weights
        after = dict[str, Tensor]()
        for name in self._roles.statistics:
            received = torch.stack([sent[name].to(before[name].device) for sent in self._uploads.values()])
            if received.is_floating_point():
                after[name] = received.double().mean(dim=0).to(before[name].dtype)
            else:
                after[name] = before[name] + (received - before[name]).sum(dim=0)
        return after

    def _remember_erasers(self) -> None:
        erasers: dict[int, dict[str, Tensor]] = {client_id: {} for client_id in self._uploads}
        for names in self._roles.similarity:
            trained = self._stacked(names)
            mixed = trained if self._tau is None else mix_by_similarity(trained, self._tau)
            for client_id, vector in zip(erasers, mixed, strict=True):
                erasers[client_id].update(_split(vector, names, self._server.weights))
        for client_id, eraser in erasers.items():
            self._server.memory.keep(f"client{client_id}", eraser)

    def _mean_eraser(self) -> Tensors:
        server = self._server
        mean = dict[str, Tensor]()
        erasers = [eraser for profile in server.profiles if (eraser := eraser_of(server, profile.client_id))]
        for names in self._roles.similarity:
            mean |= _split(self._stacked(names, erasers).mean(dim=0), names, server.weights)
        return mean

    def _stacked(self, names: Sequence[str], sets: Iterable[Tensors] | None = None) -> Tensor:
        """The tensors ``names`` as a row per upload, in ascending client id, or per one of ``sets``."""
        device = self._server.weights[names[0]].device
        rows = self._uploads.values() if sets is None else sets
        return torch.stack([_joined(row, names).to(device) for row in rows])


def _mean_step(updates: Tensor) -> Tensor:
    """The mean of ``updates``, a row per client."""
    return updates.mean(dim=0)


def eraser_of(server: ServerState, client_id: int) -> Tensors:
    """A client's personal parameters as last mixed; empty before it has trained."""
    return server.memory.recall(f"client{client_id}")


def _joined(tensors: Tensors, names: Sequence[str]) -> Tensor:
    """The tensors ``names`` as one float64 vector."""
    return torch.cat([tensors[name].flatten().double() for name in names])


def _split(vector: Tensor, names: Sequence[str], like: Tensors) -> dict[str, Tensor]:
    """A vector as :func:`_joined` makes it, back in the shapes and dtypes of ``like``."""
    parts = torch.split(vector, [like[name].numel() for name in names])
    return {name: part.view_as(like[name]).to(like[name].dtype) for name, part in zip(names, parts, strict=True)}
