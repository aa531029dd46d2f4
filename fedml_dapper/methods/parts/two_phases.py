"""Personalised methods in two phases: FedAvg, then for every client a model of its own that the server mixes.

In the second phase a client keeps some tensors to itself; the others it gets as a weighted mean of what the clients
sent last. One that has sent nothing yet in this phase gets the server's model, with the kept tensors as they start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from fedml_dapper.errors import ProtocolError
from fedml_dapper.methods.contract import ClientContext, Downlink, LocalTraining, Method, P, ServerState, Upload
from fedml_dapper.methods.parts.client_models import ClientModels
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import DENSE, PruningPlan, Tensors


class TwoPhaseMethod(Method[P]):
    """Base of methods in two phases, of which the first is the contract's FedAvg."""

    sends_kept: ClassVar[bool] = True
    """Whether clients send also what they keep, for the server to compare."""

    # What a method says of itself

    @property
    def first_share(self) -> float:
        """Share of all rounds that belongs to the first phase."""
        raise NotImplementedError

    def instructions(self, server: ServerState, client_id: int) -> Tensors:
        """Extras that go with the second phase's downlinks."""
        del server, client_id
        return {}

    def kept(self, instructions: Tensors) -> frozenset[str]:
        """Tensors that a client keeps to itself in the second phase."""
        raise NotImplementedError

    def mixed(self, instructions: Tensors) -> frozenset[str]:
        """Tensors that it gets mixed; by default all that it does not keep."""
        return frozenset(self.problem.backbone.state_dict()) - self.kept(instructions)

    def mixing_weights(self, server: ServerState, client_id: int) -> Mapping[int, float]:
        """Weights in the mixture for ``client_id``, by client; it is among those that sent something."""
        raise NotImplementedError

    # What follows from it

    @property
    def personalises(self) -> bool:
        return True

    @property
    def depends_on_comm_round(self) -> str:
        return f"its first phase takes {self.first_share:g} of all rounds" if self.first_share > 0 else ""

    @cached_property
    def first_rounds(self) -> int:
        """Number of rounds of the first phase: max(1, first share * K), rounded; half goes to even."""
        return max(1, round(self.first_share * self.problem.training.comm_round))

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        if server.round < self.first_rounds or client_id not in ClientModels(server):
            return DENSE
        return PruningPlan({}, self.kept(self.instructions(server, client_id)))

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        message = super().downlink(server, client_id)
        if server.round < self.first_rounds:
            return message
        instructions = self.instructions(server, client_id)
        weights = dict(message.weights)
        models = ClientModels(server)
        if client_id in models:
            previous = {name: weights[name] for name in sorted(self.mixed(instructions) & weights.keys())}
            weights |= models.mean(self.mixing_weights(server, client_id), previous)
        return replace(message, weights=weights, extras=instructions)

    def sent(self, round_: int, instructions: Tensors) -> PruningPlan:
        """The part of its model that a client sends in ``round_``."""
        if round_ <= self.first_rounds or self.sends_kept:
            return DENSE
        return PruningPlan({}, self.kept(instructions))

    def check_plan(self, server: ServerState, upload: Upload) -> None:
        first = upload.round <= self.first_rounds
        expected = self.sent(upload.round, {} if first else self.instructions(server, upload.client_id))
        if upload.unsliced or not upload.plan.equals(expected):
            raise ProtocolError("upload's plan is not that of its phase")

    def upload(
        self, client: ClientContext, downlink: Downlink, model: Backbone, training: LocalTraining,
        extras: Tensors | None = None,
    ) -> Upload:  # fmt: skip
        upload = super().upload(client, downlink, model, training, extras)
        if downlink.round <= self.first_rounds:
            return upload
        kept = self.kept(downlink.extras)
        plan = self.sent(downlink.round, downlink.extras)
        client.memory.keep("personal", {name: upload.weights[name] for name in sorted(kept & upload.weights.keys())})
        sent = {name: tensor for name, tensor in upload.weights.items() if name not in plan.omitted}
        return replace(upload, weights=sent, plan=plan)
