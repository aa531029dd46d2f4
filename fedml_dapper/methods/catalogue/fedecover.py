"""FedEcover, efficient-coverage sub-model extraction (ICDE 2025).

From the authors' public code, whose logs have the values of the defaults; the paper's text was not at hand:

* Extraction: every group of channels has one pool for all clients. A client draws its channels from the pool without
  replacement; a pool that runs out is refilled, and the rest drawn from what the client has not got yet. So no channel
  is trained again before every other was trained as often.
* Aggregation: per coordinate, the mean change over the clients that hold it, times a global step size:
  W <- W + eta mean_i (w_i - W), where eta falls by ``gamma`` after every ``decay_interval`` rounds up to round
  ``decay_until``. What is not a parameter (running statistics) is averaged over its holders as it is.

A client's channels are the least trained ones, equals drawn at random, which is the same as the pool: what it still
holds are the channels that were trained once less. Ours, or otherwise here:

* A channel counts as trained when an upload of it has arrived, not when it is sent. What a client that does not answer
  should have trained is what is dealt first in the next round.
* Clients of a round are dealt to in ascending order, not in the order in which they were drawn.
* The mean is weighted as ``aggregation_weights`` says; the public code's is uniform.
* Left out: the scaler of kept channels' outputs (``scaler.py`` says where it has an effect).
* BatchNorm: the public code normalises by batch statistics, also in tests; see ``static_batchnorm.py``.

The original narrows the residual streams too: ``dapper_args.pruning.scope: grouped``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.methods.contract import Aggregation, RecoverAndAverage, ServerState, Upload
from fedml_dapper.methods.parts.static_batchnorm import StaticBatchNorm, StaticBatchNormParams
from fedml_dapper.pruning import PartialSum, PruningPlan, Tensors
from fedml_dapper.pruning.plan import keep_largest
from fedml_dapper.randomness.seeding import Stream, torch_generator


class FedEcoverParams(StaticBatchNormParams):
    """Settings of FedEcover."""

    gamma: float = Field(default=0.9, gt=0, le=1)
    """Share of the global step size, at first 1, that a decay leaves; 1 never decays it."""
    decay_interval: int = Field(default=10, ge=1)
    """Rounds from one decay to the next."""
    decay_until: int = Field(default=200, ge=0)
    """Round after which the step size stays as it is."""


class FedEcover(StaticBatchNorm[FedEcoverParams]):
    """Sub-models of the channels that were trained least, and a server whose steps get smaller."""

    name = "fedecover"
    Params = FedEcoverParams
    slims = True
    allows_personal_layers = True
    slim_downlink = True

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """Channels dealt to the round's clients one after another, up to ``client_id``."""
        trained = self.trained(server)
        for earlier in server.clients:
            if earlier < client_id:
                count(trained, self._deal(server, earlier, trained))
        return self._deal(server, client_id, trained)

    def _deal(self, server: ServerState, client_id: int, trained: dict[str, Tensor]) -> PruningPlan:
        """The least trained channels of every group, as many as the client can carry."""
        widths = self.problem.widths(server.profiles[client_id].ratio)
        generator = torch_generator(self.problem.seed, Stream.METHOD, client_id, server.round + 1)
        return PruningPlan({group: least(trained[group], width, generator) for group, width in widths.items()})

    def trained(self, server: ServerState) -> dict[str, Tensor]:
        """Counts of uploads that held each channel so far, by group: int64, one a channel."""
        remembered = server.memory.recall("trained")
        return {
            name: remembered[name].clone() if remembered else torch.zeros(group.channels, dtype=torch.int64)
            for name, group in self.problem.layout.groups.items()
        }

    def step_size(self, round_: int) -> float:
        """Step size of a round from 1 on: eta = gamma^d, where d is the number of decays before it."""
        return float(self.params.gamma ** (min(round_ - 1, self.params.decay_until) // self.params.decay_interval))

    def aggregation(self, server: ServerState) -> Aggregation:
        """The mean over holders, for :meth:`server_update`, and the count of what was trained."""
        return self.with_level_statistics(server, _CountAndAverage(server, self))

    def server_update(self, server: ServerState, mean: Tensors) -> None:
        """Step towards the mean: W <- W + eta mean_i (w_i - W) of parameters; all else becomes its mean."""
        eta = self.step_size(server.round + 1)
        stepped = {name: server.weights[name].lerp(mean[name], eta) for name in self.problem.layout.trainable}
        server.weights = {**mean, **stepped}

    @property
    def beyond_sums(self) -> str:
        return ""  # what each channel was trained is known from the plans, and the step from the round


class _CountAndAverage(RecoverAndAverage):
    """The holders' mean, and how many uploads held each channel."""

    def __init__(self, server: ServerState, method: FedEcover) -> None:
        super().__init__(server, method.problem, "holders", method.server_update)
        self._trained = method.trained(server)

    def add(self, upload: Upload) -> None:
        super().add(upload)
        count(self._trained, upload.plan)

    def merge(self, partial: PartialSum, plans: Iterable[PruningPlan]) -> None:
        super().merge(partial, plans)
        for plan in plans:
            count(self._trained, plan)

    def close(self) -> None:
        super().close()
        self._server.memory.keep("trained", self._trained)


def least(trained: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Sorted indices of the ``width`` channels with the lowest counts in ``trained``; equals are drawn."""
    draws = torch.rand(len(trained), generator=generator, dtype=torch.float64)
    return keep_largest(draws - trained, width)


def count(trained: dict[str, Tensor], plan: PruningPlan) -> None:
    """Add one to every channel that ``plan`` keeps."""
    for group, counts in trained.items():
        counts[plan.kept.get(group, slice(None))] += 1
