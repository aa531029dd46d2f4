"""FedRolex (Alam et al., NeurIPS 2022).

As HeteroFL, but the window of kept channels moves on by one channel every round, around the end: in round t it starts
at (t - 1) mod C in a group of C channels. So all channels are trained evenly, also where no client holds the full
model. As in HeteroFL, the objective is masked cross-entropy of a model whose slim layers are scaled up
(``masked_classes.py``), and BatchNorm is static (``static_batchnorm.py``).

The original narrows the residual streams too (``dapper_args.pruning.scope: grouped``). Its code clips gradients to norm
1 (``max_grad_norm``), counts clients alike in convolutions, and weighs other coordinates by how often they were
trained; here ``aggregation_weights`` decides.
"""

from __future__ import annotations

from fedml_dapper.methods.contract import ServerState
from fedml_dapper.methods.parts.masked_classes import MaskedClasses
from fedml_dapper.pruning import PruningPlan, plan_window


class FedRolex(MaskedClasses):
    """Rolling sub-models: a window of channels that moves on every round, averaged over their holders."""

    name = "fedrolex"

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """Channels t - 1, t, ... of every group in round t, modulo C, as many as the client's level keeps."""
        widths = self.problem.widths(server.profiles[client_id].ratio)
        return plan_window(self.problem.layout, widths, start=server.round)
