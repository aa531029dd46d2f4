"""FedRolex (Alam et al., NeurIPS 2022).

As HeteroFL, but the window of kept channels moves on by one channel every round, around the end: in round t it starts
at (t - 1) mod C in a group of C channels. So all channels are trained evenly, also where no client holds the full
model. HeteroFL's three devices go with it: masked cross-entropy (``masked_classes.py``), static BatchNorm
(``static_batchnorm.py``) and the scaler (``scaler.py``).

The original narrows the residual streams too (``dapper_args.pruning.scope: grouped``). Its code clips gradients to norm
1 (``max_grad_norm``), counts clients alike in convolutions, and weighs other coordinates by how often they were
trained; here ``aggregation_weights`` decides.
"""

from __future__ import annotations

from functools import cached_property

from fedml_dapper.methods.contract import Aggregation, ClientContext, Downlink, Loss, ServerState, Upload
from fedml_dapper.methods.parts.masked_classes import MaskedClasses
from fedml_dapper.methods.parts.scaler import layers_without_norm, shares_of, with_scaler
from fedml_dapper.pruning import PruningPlan, plan_window


class FedRolex(MaskedClasses):
    """Rolling sub-models: a window of channels that moves on every round, averaged over their holders."""

    name = "fedrolex"
    slims = True
    slim_downlink = True
    allows_personal_layers = True

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """Channels t - 1, t, ... of every group in round t, modulo C, as many as the client's level keeps."""
        widths = self.problem.widths(server.profiles[client_id].ratio)
        return plan_window(self.problem.layout, widths, start=server.round)

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """Cross-entropy over the client's own classes, of a model whose slim layers are scaled up."""
        return with_scaler(self.masked_loss(client), shares_of(self.problem.layout, downlink.plan, self._scaled))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs of the sub-model, then its statistics on the client's images; the client's classes go along."""
        model = self.load(client, downlink)
        training = self.train_epochs(client, downlink, model, self.objective(client, downlink))
        self.measure_statistics(client, model)
        return self.upload(client, downlink, model, training, self.held_classes(client))

    def aggregation(self, server: ServerState) -> Aggregation:
        """Each coordinate's mean over the clients that hold it; what nobody holds stays as it is."""
        return self.with_level_statistics(server, self.mean_of_holders(server))

    @cached_property
    def _scaled(self) -> frozenset[str]:
        """Layers that have a scaler where they are slim."""
        return layers_without_norm(self.problem.backbone, self.problem.example)
