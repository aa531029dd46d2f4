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

from fedml_dapper.methods.contract import Aggregation, ClientContext, Downlink, ServerState, Upload
from fedml_dapper.methods.parts.masked_classes import MaskedClasses
from fedml_dapper.pruning import PruningPlan, plan_window


class HeteroFL(MaskedClasses):
    """Nested sub-models: the leading channels, averaged over their holders."""

    name = "heterofl"
    slims = True
    slim_downlink = True
    allows_personal_layers = True

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The first channels of every group, as many as the client's level keeps."""
        widths = self.problem.widths(server.profiles[client_id].ratio)
        return plan_window(self.problem.layout, widths, start=0)

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs of the sub-model, then its statistics on the client's images; the client's classes go along."""
        model = self.load(client, downlink)
        training = self.train_epochs(client, downlink, model, self.objective(client, downlink))
        self.measure_statistics(client, model)
        return self.upload(client, downlink, model, training, self.held_classes(client))

    def aggregation(self, server: ServerState) -> Aggregation:
        """Each coordinate's mean over the clients that hold it; what nobody holds stays as it is."""
        return self.with_level_statistics(server, self.mean_of_holders(server))
