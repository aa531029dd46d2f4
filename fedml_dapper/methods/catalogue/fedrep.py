"""FedRep (Collins et al., ICML 2021): a shared body, learnt under personal heads.

In every round a client first fits its own head to the body it received, then trains the body under that head. Only the
body is sent and averaged.

While the head trains, the body stays as it is bit for bit: BatchNorm is in evaluation mode (public code lets its
statistics move). The mean is weighted as ``aggregation_weights`` says; the original's is uniform.
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field
from torch import nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    LocalTraining,
    Method,
    MethodParams,
    Pass,
    Phase,
    Problem,
    Upload,
    forward_only,
)
from fedml_dapper.methods.parts.layers import head_of, train_only
from fedml_dapper.pruning import DENSE


class FedRepParams(MethodParams):
    """Settings of FedRep."""

    body_epochs: int = Field(default=1, ge=1)
    """Number of ``train_args.epochs`` that train the body; those before train the head. With no epoch before, heads
    stay as they were initialised."""


class FedRep(Method[FedRepParams]):
    """Head epochs, then body epochs; FedAvg on the body."""

    name = "fedrep"
    Params = FedRepParams
    has_global_model = False
    serves_newcomers = False
    cost_note = "every client holds the full model, trains head and body in turn and keeps its head between rounds."

    def __init__(self, params: FedRepParams, problem: Problem) -> None:
        super().__init__(params, problem)
        if params.body_epochs > problem.training.epochs:
            raise ConfigError(
                f"dapper_args.params.fedrep.body_epochs: {params.body_epochs} of train_args.epochs:"
                f" {problem.training.epochs}; lower the former or raise the latter"
            )

    @cached_property
    def personal(self) -> frozenset[str]:
        """State-dict entries of the head."""
        return head_of(self.problem.backbone)

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """Epochs of the head, whose gradients alone cost next to nothing beside the forward pass, then of the body."""
        head = self.epochs(profile) - self.params.body_epochs
        body = self.params.body_epochs
        return forward_only(DENSE, head), Phase(body, (Pass(DENSE),))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        model = self.load(client, downlink)
        loss = self.objective(client, downlink)
        epochs = self.epochs(client.profile)
        training = LocalTraining(client, downlink.round, self.problem.training, epochs)
        trained = set(self.problem.layout.trainable)
        head = trained & self.personal
        body = trained - self.personal
        for part, part_epochs, mode in (
            (head, epochs - self.params.body_epochs, nn.Module.eval),
            (body, self.params.body_epochs, nn.Module.train),
        ):
            train_only(model, part)
            optimizer = training.optimizer(model)
            training.epoch(model, optimizer, loss, times=part_epochs, mode=mode)
        return self.upload(client, downlink, model, training)
