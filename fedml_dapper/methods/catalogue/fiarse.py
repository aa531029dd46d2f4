"""FIARSE, importance-aware sub-model extraction (Wu et al., NeurIPS 2024), on channels.

The original keeps the single weights x with |x| >= theta, the share of largest magnitude that a client can carry, so
that every client's sub-model follows the global weights as they change. A client trains x M(|x|), where M is 1 from
theta on and 0 below. Its gradient (threshold-controlled biased gradient descent, TCB-GD) lets a weight's importance
learn too, by a stand-in for the derivative of M, here as the public code has it:

    M'(|x|) = 2 theta / (|x| + theta)^2   for |x| >= theta,
    so that dL/dx = g (1 + 2 theta |x| / (|x| + theta)^2),   g the gradient of the loss at x M

i.e. up to 1.5 times the plain gradient, most for weights near the threshold. Masks make nothing smaller, so here
channels take the place of weights:

* A client of width k keeps the k channels of each group with the largest importance I_c, the l2 norm of the filters x_c
  of the global model that produce channel c. Its threshold theta is the least importance that it keeps.
* M(I_c) multiplies whatever puts the channel out: filters, biases, scales and shifts of norms. So dL/dM_c is the sum of
  gradient times value over these, and by the chain rule the filters get besides

    dL/dM_c  2 theta / (I_c + theta)^2  x_c / I_c

  which is the original's term where a channel is a single weight. With a norm behind the filters the plain gradient
  has no part along x_c, since the loss does not depend on its length; then this term alone says how important the
  channel shall be. One that the loss wants stronger grows, until more clients hold it.
* Groups have thresholds of their own, much as layers in the public code's layer-wise variant; by default it has one for
  all.
* A channel whose importance falls below theta in local training stays until the next round, as nothing would get
  smaller; M' is 0 there as in the original.
* A standardised filter acts as its gain says, whatever its length, which norms hide in the same way.
  ``dapper_args.pruning.importance: gains`` makes |gain| its importance, and the gain what the term above goes to.
* What is held whole has no threshold; the original's is then its smallest weight.

The smallest clients of the paper keep 1/64 of the weights, by masks over single weights. Channels of that share are
another network, so its figures are not to be had here. The public code trains without momentum; here
``train_args.momentum`` says, 0.9 by default.

The server averages each coordinate over its holders: uniformly in the original, here as ``aggregation_weights`` says.
FedMP sends sub-models of largest l1 norm, trains them by plain gradients, and counts what nobody held as unchanged.
BatchNorm: the original uses batch statistics, also in tests; see ``static_batchnorm.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError
from fedml_dapper.methods.contract import (
    ClientContext,
    Downlink,
    Problem,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.static_batchnorm import StaticBatchNorm, StaticBatchNormParams
from fedml_dapper.pruning import ChannelLayout, PruningPlan, Tensors, slim_layout
from fedml_dapper.pruning.plan import axis_of, channel_sums, gain_of, keep_largest


class FIARSEParams(StaticBatchNormParams):
    """Settings of FIARSE."""

    importance_gradient: bool = True
    """Learning of importance (TCB-GD); False is the extraction alone, with sub-models trained by plain gradients."""


class FIARSE(StaticBatchNorm[FIARSEParams]):
    """Sub-models of the channels with the largest norms, which learn how large they are to be."""

    name = "fiarse"
    Params = FIARSEParams
    slims = True
    allows_personal_layers = True
    slim_downlink = True

    def __init__(self, params: FIARSEParams, problem: Problem) -> None:
        super().__init__(params, problem)
        if problem.pruning.importance == "scaled_filters":
            raise ConfigError(
                "dapper_args.pruning.importance: fiarse lets the length of filters or of gains learn, not their"
                " product; choose filters or gains"
            )

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The channels of largest l2 norm in the global model."""
        layout = self.problem.layout
        weights = self.problem.whole(server.weights)
        kept = {}
        for group, width in self.problem.widths(server.profiles[client_id].ratio).items():
            filters = {name: weights[name].double() for name in bearers(layout, group)}
            kept[group] = keep_largest(importance(layout, group, filters).cpu(), width)
        return PruningPlan(kept)

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs by gradients in which importance has its part; then statistics of the sub-model."""
        model = self.load(client, downlink)
        plan = downlink.plan
        layout = self.problem.layout
        cut = [group for group, kept in plan.kept.items() if len(kept) < layout.groups[group].channels]
        learns = self.params.importance_gradient and cut
        before_step = ImportanceGradient(model, slim_layout(layout, plan), cut) if learns else None
        training = self.train_epochs(client, downlink, model, self.problem.task_loss, before_step=before_step)
        self.measure_statistics(client, model)
        return self.upload(client, downlink, model, training)


def bearers(layout: ChannelLayout, group: str) -> tuple[str, ...]:
    """Names of the tensors whose length is a channel's importance: filters, or the gains of standardised ones."""
    filters = layout.groups[group].producers
    if layout.importance == "filters":
        return filters
    return tuple(gain_of(name) if gain_of(name) in layout.tensors else name for name in filters)


def importance(layout: ChannelLayout, group: str, filters: Tensors) -> Tensor:
    """Importance of each channel, the l2 norm of all ``filters`` that produce it: shape (channels,), in their dtype."""
    return channel_sums(layout, group, {name: each.detach().square() for name, each in filters.items()}).sqrt()


class ImportanceGradient:
    """Contribution of channels' importance to a model's gradients, added between backward and step.

    ``layout`` is the model's, ``groups`` those of its groups that have thresholds: by the weights that the model has
    when this is made.
    """

    def __init__(self, model: nn.Module, layout: ChannelLayout, groups: Iterable[str]) -> None:
        self._groups = [_Group(name, model, layout) for name in groups]

    @torch.no_grad()
    def __call__(self) -> None:
        for group in self._groups:
            group.add()


class _Group:
    """Channels of a model that have one threshold, theta."""

    def __init__(self, name: str, model: nn.Module, layout: ChannelLayout) -> None:
        self._name = name
        self._layout = layout
        named = dict(model.named_parameters(remove_duplicate=False))
        self._filters = {each: named[each] for each in bearers(layout, name)}
        filters = {id(each) for each in self._filters.values()}
        self._masked = {
            each: parameter
            for each, parameter in model.named_parameters()
            if id(parameter) in filters or self._is_one_a_channel(each)
        }
        """What the mask multiplies: filters, and biases, scales and shifts."""
        self._theta = self._importance().min()

    def _importance(self) -> Tensor:
        return importance(self._layout, self._name, self._filters)

    def _is_one_a_channel(self, parameter: str) -> bool:
        spec = self._layout.tensors[parameter]
        return prod(spec.shape[1:]) == 1 and any(axis.group == self._name and axis.dim == 0 for axis in spec.axes)

    def add(self) -> None:
        """Add dL/dM M' x / I to the gradients of the filters x."""
        products = {name: each.grad * each for name, each in self._masked.items() if each.grad is not None}
        if not products:
            return
        mask_gradient = channel_sums(self._layout, self._name, products)
        found = self._importance()
        factor = mask_gradient * 2 * self._theta / (found + self._theta).square() / found
        factor = factor.where(found >= self._theta, 0).nan_to_num(0, 0, 0)  # of filters that are zero
        for name, filters in self._filters.items():
            if filters.grad is not None:
                axis = axis_of(self._layout, self._name, name)
                along = factor.new_zeros(filters.shape[axis.dim])
                along[axis.of(torch.arange(len(factor))).to(along.device)] = factor[:, None]
                filters.grad.addcmul_(
                    along.view([-1 if dim == axis.dim else 1 for dim in range(filters.dim())]), filters
                )
