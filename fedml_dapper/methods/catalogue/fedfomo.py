"""FedFomo (Zhang et al., ICLR 2021): clients try out others' models and take from those that help them.

A client gets its own last model and M others. On validation images of its own it measures how much lower each one's
loss is, per distance in parameters; it starts training from the mean of the helpful ones, weighted so, or from its own
model where none helps. What it measured is added to the server's preferences P, by which the server offers the M
clients it likes best among those that took part in the round before; of equals the lowest ids.

Each client sets aside a fixed share of its training images for validation, the same in every round. BatchNorm's
statistics are always its own, so others' models come without theirs. Evaluated is the client's last model. There is no
global one: the server's stays at the initial values, from which a client starts that takes part for the first time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import ClientData
from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.inputs import moved
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    ClientProfile,
    Downlink,
    Method,
    MethodParams,
    Phase,
    ServerState,
    Upload,
    forward_only,
)
from fedml_dapper.methods.parts.averaging import WeightedMean
from fedml_dapper.methods.parts.client_models import ClientModels, KeepLatest
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import DENSE, Tensors
from fedml_dapper.randomness.seeding import Stream, torch_generator
from fedml_dapper.tasks import Task


class FedFomoParams(MethodParams):
    """Settings of FedFomo; defaults as in FedCMD's comparison."""

    num_offered: int = Field(default=5, ge=1)
    """Number M of other clients' models that a client gets in a round; fewer where fewer took part in the round
    before."""
    validation_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of a client's training images that it measures on instead of training on them."""


class FedFomo(Method[FedFomoParams]):
    """Every client mixes its own starting model from those it is offered."""

    name = "fedfomo"
    Params = FedFomoParams
    has_global_model = False
    serves_newcomers = False
    cost_note = (
        "every client trains the full model and is sent up to num_offered others besides, each of which it runs its"
        " validation images through; clients see each other's models. The server's memory grows with the clients: it"
        " holds the latest model of each."
    )

    def check_clients(self, clients: Sequence[ClientData]) -> None:
        super().check_clients(clients)
        for data in clients:
            if data.num_samples - self._num_validation(data.num_samples) < 2:
                raise ConfigError(
                    f"dapper_args.params.fedfomo.validation_share: {self.params.validation_share} of the"
                    f" {data.num_samples} images of client {data.client_id} leaves fewer than 2 to train on; lower it"
                    " or raise data_args.client_share"
                )

    def _num_validation(self, num_samples: int) -> int:
        return max(1, round(self.params.validation_share * num_samples))

    def split(self, data: ClientData) -> tuple[ClientData, ClientData]:
        """The client's data in two parts: to train on, and to validate on."""
        generator = torch_generator(self.problem.seed, Stream.METHOD, data.client_id)
        order = torch.randperm(data.num_samples, generator=generator)
        count = self._num_validation(data.num_samples)
        parts = (order[count:].sort().values, order[:count].sort().values)
        training, validation = (data.take(part) for part in parts)
        return training, validation

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        return tuple(self.problem.layout.trainable)

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """The client's own last model and, as extras, the ids of the ``offered`` and their parameters."""
        message = super().downlink(server, client_id)
        models = ClientModels(server)
        if client_id in models:
            message = replace(message, weights={name: models.tensor(client_id, name) for name in message.weights})
        active = [j for j, last in models.rounds.items() if last == server.round and j != client_id]
        preference = preferences(server)[client_id]
        offered = sorted(active, key=lambda j: (-float(preference[j]), j))[: self.params.num_offered]
        extras = {f"{j}/{name}": models.tensor(j, name) for j in offered for name in self._parameters}
        return replace(message, extras={"offered": torch.tensor(offered, dtype=torch.int64), **extras})

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """A pass of all models that may be offered over the validation images, then E epochs on the others."""
        share = self.params.validation_share
        tried = 1 + self.params.num_offered
        trial = forward_only(DENSE, tried * share / (1 - share))  # of a sample that it trains on
        return (trial, *super().local_phases(profile))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        training, validation = self.split(client.data)
        own = self.load(client, downlink)
        offered = [
            {name: downlink.extras[f"{j}/{name}"].to(client.device) for name in self._parameters}
            for j in downlink.extras["offered"].tolist()
        ]
        gains = self.benefits(own, offered, validation, client.device)
        mine = {name: parameter for name, parameter in own.named_parameters() if name in self._parameters}
        start = {**downlink.weights, **mixture(mine, offered, gains)}
        upload = super().local_update(replace(client, data=training), replace(downlink, weights=start))
        return replace(upload, extras={"offered": downlink.extras["offered"], "benefits": gains})

    def benefits(
        self, own: Backbone, offered: Sequence[Tensors], validation: ClientData, device: torch.device
    ) -> Tensor:
        """Benefits w_j of the models offered, float64 (J,); they are tried out with the statistics of ``own``."""
        before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
        task = self.problem.task
        own_loss = validation_loss(own, task, validation, device)
        gains = []
        for parameters in offered:
            own.load_state_dict({**before, **parameters})
            distance = torch.stack([(parameters[n] - before[n]).double().square().sum() for n in parameters]).sum()
            gains.append(benefit(own_loss, validation_loss(own, task, validation, device), float(distance.sqrt())))
        own.load_state_dict(before)
        return torch.tensor(gains, dtype=torch.float64).nan_to_num(0.0, 0.0, 0.0)  # diverged: of unknown use

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        check_benefits(upload.extras, len(server.profiles))

    def trained_samples(self, profile: ClientProfile) -> int:
        """Number of images that the client does not validate on."""
        return profile.num_samples - self._num_validation(profile.num_samples)

    @property
    def beyond_sums(self) -> str:
        return "each client's latest model, and how useful others' are to it"

    def aggregation(self, server: ServerState) -> Aggregation:
        return KeepAndPrefer(server)


class KeepAndPrefer(KeepLatest):
    """Aggregation that remembers every client's latest model, and what it found the others worth."""

    def __init__(self, server: ServerState) -> None:
        super().__init__(server, server.weights)
        self._preferences = preferences(server)

    def add(self, upload: Upload) -> None:
        check_benefits(upload.extras, len(self._preferences))
        super().add(upload)
        self._preferences[upload.client_id, upload.extras["offered"]] += upload.extras["benefits"]

    def close(self) -> None:
        super().close()
        self._server.memory.keep("preferences", {"matrix": self._preferences})


def benefit(own_loss: float, loss: float, distance: float) -> float:
    """Benefit of a model: w_j = (L(own) - L(j)) / ||theta_j - theta_own||, the distance at least 1e-5."""
    return (own_loss - loss) / max(distance, 1e-5)


def mixture(own: Mapping[str, Tensor], offered: Sequence[Tensors], benefits: Tensor) -> Tensors:
    """The mean of the ``offered`` weighted by their ``benefits`` (J,), where positive; ``own`` if none is."""
    mean = WeightedMean({name: tensor.detach() for name, tensor in own.items()})
    for parameters, weight in zip(offered, benefits.tolist(), strict=True):
        if weight > 0:
            mean.add(parameters, weight)
    return mean.result()


@torch.no_grad()
def validation_loss(model: Backbone, task: Task, data: ClientData, device: torch.device) -> float:
    """Mean loss of ``model``, in evaluation mode, over ``data``."""
    model.eval()
    loss = sum(float(task.total_loss(model(moved(inputs, device)), targets.to(device))) for inputs, targets in data)
    return loss / data.num_samples


def preferences(server: ServerState) -> Tensor:
    """Summed benefits P of client j to client i, float64 (N, N); at the start everyone prefers itself."""
    kept = server.memory.recall("preferences").get("matrix")
    return torch.eye(len(server.profiles), dtype=torch.float64) if kept is None else kept.clone()


def check_benefits(extras: Tensors, num_clients: int) -> None:
    """Check that ``extras`` are ids of clients and as many benefits; raises :class:`ProtocolError`."""
    if extras.keys() != {"offered", "benefits"}:
        raise ProtocolError(f"upload should hold offered and benefits besides the model, found {sorted(extras)}")
    offered = extras["offered"]
    benefits = extras["benefits"]
    if offered.dtype != torch.int64 or benefits.dtype != torch.float64 or offered.dim() != 1:
        raise ProtocolError("upload's offered should be a list of int64 ids and its benefits float64")
    ids = offered.tolist()
    if benefits.shape != offered.shape or len(set(ids)) < len(ids) or not set(ids) <= set(range(num_clients)):
        raise ProtocolError(f"upload's offered must be distinct ids below {num_clients}, one for each benefit")
