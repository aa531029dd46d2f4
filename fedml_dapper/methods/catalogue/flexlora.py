"""FlexLoRA (Bai et al., NeurIPS 2024): the mean of products B A, taken apart by singular values for every rank.

A mean of the A's times a mean of the B's is not the mean of what clients learnt, and matrices of unequal ranks have no
mean at all. So the server averages the products B_k A_k of all clients, weighted by samples,

    W = sum_k p_k B_k A_k = U S V^T,

and a client of rank r starts the next round from the r leading components, B = U_r S_r and A = V_r^T. At full rank
nothing is lost while the products together have no higher rank than the adapters; a lower rank gets the nearest matrix
of that rank.

What differs from the text, or what it leaves open:

* The factor alpha / r of the layers is that of the whole rank at every level (``models/adapters.py``), so the products
  of unequal clients are on one scale, and no product is rescaled.
* All singular values go to B. Signs are settled, so that runs repeat (``adapter_products.py``).
* Where all products are zero, A and B stay as they are: the components of a zero matrix are anybody's choice.
* Norms and the last layer are trained too, and averaged as FedAvg does. The papers' clients hold the whole base; here a
  level's base may be smaller, and each entry of W is then averaged over the clients whose base has its row and column.

The server sums one matrix of the size of each adapted layer, in float64, and decomposes it once a round.
"""

from __future__ import annotations

from fedml_dapper.methods.contract import Aggregation, MethodParams, ServerState
from fedml_dapper.methods.parts.adapter_method import AdapterMethod
from fedml_dapper.methods.parts.adapter_products import ProductMean


class FlexLoRAParams(MethodParams):
    """Settings of FlexLoRA, of which there are none; ranks are those of ``dapper_args.levels``."""


class FlexLoRA(AdapterMethod[FlexLoRAParams]):
    """The mean of clients' products, of which each client gets the leading components."""

    name = "flexlora"
    Params = FlexLoRAParams

    def aggregation(self, server: ServerState) -> Aggregation:
        """W = sum_k p_k B_k A_k, then its leading components as the new A and B."""
        layout = self.problem.layout
        bounds = {adapter: (layout.groups[adapter.group].channels,) for adapter in self.adapters}
        return self.adapters_apart(server, ProductMean(self.adapter_weights(server), layout, bounds))

    @property
    def beyond_sums(self) -> str:
        return "each client's A and B, to average their products"
