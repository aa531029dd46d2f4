"""FedAP (Lu et al., IEEE TBD 2022): models mixed by how alike the clients' data look to one model.

A pre-phase trains a common model. On it every client measures mean and variance of what comes out of each convolution;
the closer two clients are in Wasserstein distance, the more of the other's latest model goes into the one a client
starts a round from. mu is its own share. From then on BatchNorm stays with the client.

The pre-phase is FedAvg on all data, which the source calls f-FedAP; ``variant: d`` compares the last convolution only.
The original's pre-phase hands one model from client to client, each training an epoch on 30 % of its images, before the
main phase takes the other 70 %. It is left out, and the split with it: in a round of this federation clients train side
by side, so that none can start from what another one made.

Few clients take part in a round, so statistics come with a client's first upload after the pre-phase; for it the client
starts from the pre-phase's model, on which all are measured. That model stays the global one. Mixtures are of the
clients measured so far, so the weights are fixed once everyone was there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from fedml_dapper.errors import ConfigError
from fedml_dapper.inputs import moved
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientContext,
    ClientProfile,
    Downlink,
    Memory,
    MethodParams,
    Phase,
    Problem,
    ServerState,
    Upload,
    forward_only,
)
from fedml_dapper.methods.parts.activations import observed
from fedml_dapper.methods.parts.averaging import check_like
from fedml_dapper.methods.parts.client_models import ClientModels, KeepLatest
from fedml_dapper.methods.parts.layers import called_layers, tensors_of
from fedml_dapper.methods.parts.two_phases import TwoPhaseMethod
from fedml_dapper.methods.parts.wasserstein import Moments, wasserstein
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.pruning import DENSE, Tensors

_STATISTICS = "statistics"
_MEASURE = "measure"


class FedAPParams(MethodParams):
    """Settings of FedAP; defaults as in FedCMD's comparison."""

    variant: Literal["f", "d"] = "f"
    """Convolutions to compare: all, or the last one."""
    mu: float = Field(default=0.5, ge=0, le=1)
    """A client's own share in the model it starts from."""
    warm_up: float = Field(default=0.5, gt=0, le=1)
    """Share of the rounds that are the pre-phase; at least one round, and 1 is FedAvg altogether."""


class FedAP(TwoPhaseMethod[FedAPParams]):
    """FedAvg, then mixtures by likeness of data, with BatchNorm of each client's own."""

    name = "fedap"
    Params = FedAPParams
    sends_kept = False
    cost_note = (
        "every client trains the full model and once runs its images through the pre-phase's. The server's memory grows"
        " with the clients: it holds the latest model of each and the statistics of its convolutions' outputs."
    )

    def __init__(self, params: FedAPParams, problem: Problem) -> None:
        super().__init__(params, problem)
        if not self.convolutions:
            raise ConfigError(
                "model_args.model: fedap compares the outputs of convolutions, of which this one has none"
            )

    @property
    def first_share(self) -> float:
        return self.params.warm_up

    @cached_property
    def convolutions(self) -> dict[str, int]:
        """Convolutions that are compared: name -> channels."""
        model = self.problem.backbone
        called = called_layers(model, self.problem.example)  # others have no outputs of their own
        found = {
            name: module.out_channels
            for name, module in model.named_modules()
            if isinstance(module, _ConvNd) and name in called
        }
        return found if self.params.variant == "f" else dict(list(found.items())[-1:])

    @cached_property
    def _norms(self) -> frozenset[str]:
        return tensors_of(self.problem.backbone, BatchNorm)

    def kept(self, instructions: Tensors) -> frozenset[str]:
        """All of BatchNorm, parameters and statistics."""
        return self._norms

    def instructions(self, server: ServerState, client_id: int) -> Tensors:
        """Request for statistics, to newcomers to the main phase, who get the pre-phase's model."""
        return {} if client_id in ClientModels(server) else {_MEASURE: torch.tensor(1)}

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs, and one more forward pass in the round in which the client is asked for statistics."""
        return (*super().local_phases(profile), forward_only(DENSE))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        upload = super().local_update(client, downlink)
        return replace(upload, extras=self.statistics(client, downlink)) if _MEASURE in downlink.extras else upload

    @torch.no_grad()
    def statistics(self, client: ClientContext, downlink: Downlink) -> dict[str, Tensor]:
        """Gaussians (2, c) of the convolutions' output channels, before BatchNorm, over the client's images, by name.

        The model is the one that was sent, in evaluation mode.
        """
        model = self.load(replace(client, memory=Memory()), downlink).eval()
        moments = {name: Moments(channels, client.device) for name, channels in self.convolutions.items()}
        with observed(model, moments) as seen:
            for inputs, _ in client.data:
                model(moved(inputs, client.device))
                for name, activation in seen.items():
                    moments[name].add(activation.output.movedim(1, -1).flatten(0, -2))
        return {name: layer.gaussian() for name, layer in moments.items()}

    def check_extras(self, server: ServerState, upload: Upload) -> None:
        asked = server.round >= self.first_rounds and _MEASURE in self.instructions(server, upload.client_id)
        expected = {name: torch.empty(2, width, dtype=torch.float64) for name, width in self.convolutions.items()}
        check_like(upload.extras, expected if asked else {})

    def mixing_weights(self, server: ServerState, client_id: int) -> Mapping[int, float]:
        """Weights W_ij of every client j measured so far, for i = ``client_id``."""
        members = list(ClientModels(server).rounds)
        own = members.index(client_id)
        layers = [gaussians[members] for gaussians in server.memory.recall(_STATISTICS).values()]
        distances = torch.stack([wasserstein(gaussians, gaussians[own]) for gaussians in layers]).sum(dim=0)
        return dict(zip(members, mixing_row(distances, own, self.params.mu).tolist(), strict=True))

    @property
    def beyond_sums(self) -> str:
        return "each client's latest model, and statistics of its features"

    def aggregation(self, server: ServerState) -> Aggregation:
        if server.round < self.first_rounds:
            return super().aggregation(server)
        return KeepAndMeasure(server, server.weights.keys() - self._norms, self.convolutions)


class KeepAndMeasure(KeepLatest):
    """Aggregation that remembers every client's latest model, and newcomers' statistics: layer -> (N, 2, c)."""

    def __init__(self, server: ServerState, names: Collection[str], channels: Mapping[str, int]) -> None:
        super().__init__(server, names)
        shape = (len(server.profiles), 2)
        empty = {name: torch.zeros(*shape, width, dtype=torch.float64) for name, width in channels.items()}
        known = server.memory.recall(_STATISTICS)
        self._statistics = {**empty, **{name: tensor.clone() for name, tensor in known.items()}}
        self._measured: dict[int, Tensors] = {}

    def add(self, upload: Upload) -> None:
        is_newcomer = upload.client_id not in ClientModels(self._server)
        expected = {name: known[upload.client_id] for name, known in self._statistics.items()} if is_newcomer else {}
        check_like(upload.extras, expected)
        super().add(upload)
        self._measured[upload.client_id] = upload.extras

    def close(self) -> None:
        super().close()
        for client_id, gaussians in self._measured.items():
            for name, gaussian in gaussians.items():
                self._statistics[name][client_id] = gaussian
        self._server.memory.keep(_STATISTICS, self._statistics)


def mixing_row(distances: Tensor, own: int, mu: float) -> Tensor:
    """Weights of a mixture, (J,): mu at ``own``, elsewhere W_ij = (1 - mu) (1 / D_ij) / sum_(k != i) 1 / D_ik.

    ``distances`` are D_i, (J,); a client that is alone has weight 1.

    Equal statistics, at distance 0, count as 1e-14 apart.
    """
    if len(distances) == 1:
        return torch.ones_like(distances)
    closeness = 1 / distances.clamp(min=1e-14)
    closeness[own] = 0
    row = (1 - mu) * closeness / closeness.sum()
    row[own] = mu
    return row
