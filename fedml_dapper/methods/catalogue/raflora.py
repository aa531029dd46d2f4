"""raFLoRA (Wu et al., 2026, arXiv 2602.13486): FlexLoRA whose partitions of the rank are averaged over their holders.

A mean of products over all clients counts a client that lacks a component as one that learnt nothing there. What only
stronger clients hold shrinks so in every round by their share of the weights, until all is in the smallest rank, the
text's "rank collapse". raFLoRA cuts the components where the levels' ranks end, r_1 < r_2 < ..., and averages each
partition h by itself over the clients C_h that hold it:

    W = sum_h sum_{k in C_h} p_k / (sum_{j in C_h} p_j)  B_k[:, h] A_k[h, :]

The leading components of W are then allocated by singular values, as in FlexLoRA (``flexlora.py``, whose deviations
hold here too). Where all ranks are equal it is FlexLoRA.

What differs from the text, or what it leaves open:

* It was written from the paper's account of the method in words; where its algorithm settles more, ours may differ.
* Boundaries are those of all levels of ``dapper_args.levels``, whichever of them answer in a round. A client whose rank
  ends inside a partition, as ``dapper_args.fleet.continuous`` makes them, counts as one that holds it.
* A partition that nobody held in a round stays what the server's A and B make it.

The server sums one matrix of the size of each adapted layer per partition, in float64.
"""

from __future__ import annotations

from fedml_dapper.methods.contract import Aggregation, MethodParams, ServerState
from fedml_dapper.methods.parts.adapter_method import AdapterMethod
from fedml_dapper.methods.parts.adapter_products import Adapter, ProductMean


class RaFLoRAParams(MethodParams):
    """Settings of raFLoRA, of which there are none; partitions follow from the ranks of ``dapper_args.levels``."""


class RaFLoRA(AdapterMethod[RaFLoRAParams]):
    """Products averaged by partitions of the rank, each over the clients that hold it."""

    name = "raflora"
    Params = RaFLoRAParams

    def aggregation(self, server: ServerState) -> Aggregation:
        """The sum of the partitions' means over their holders, then its leading components as the new A and B."""
        bounds = {adapter: self.bounds(adapter) for adapter in self.adapters}
        return self.adapters_apart(server, ProductMean(self.adapter_weights(server), self.problem.layout, bounds))

    def bounds(self, adapter: Adapter) -> tuple[int, ...]:
        """Where the partitions of the adapter's components end: at the ranks of all levels, and at the whole rank."""
        whole = self.problem.layout.groups[adapter.group].channels
        ranks = {self.problem.widths(ratio).get(adapter.group, whole) for ratio in self.problem.ratios}
        return tuple(sorted(ranks | {whole}))

    @property
    def beyond_sums(self) -> str:
        return "each client's A and B, to average their products"
