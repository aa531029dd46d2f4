"""HeteroFL (Diao et al., ICLR 2021).

A client of pruning ratio rho trains the leading channels of every group, so that weaker clients' models are nested in
stronger ones', and the server averages each coordinate over the clients that hold it. The objective is masked
cross-entropy of a model whose slim layers are scaled up (``masked_classes.py``), and BatchNorm is static
(``static_batchnorm.py``).

The original narrows the residual streams too (``dapper_args.pruning.scope: grouped``). Its code counts clients alike
and clips gradients to norm 1; here ``aggregation_weights`` and ``max_grad_norm`` say so, as in
``config/methods/heterofl.yaml``.
"""

from __future__ import annotations

from fedml_dapper.methods.contract import ServerState
from fedml_dapper.methods.parts.masked_classes import MaskedClasses
from fedml_dapper.pruning import PruningPlan, plan_window


class HeteroFL(MaskedClasses):
    """Nested sub-models: the leading channels, averaged over their holders."""

    name = "heterofl"

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The first channels of every group, as many as the client's level keeps."""
        widths = self.problem.widths(server.profiles[client_id].ratio)
        return plan_window(self.problem.layout, widths, start=0)
