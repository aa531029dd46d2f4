"""NeFL (Kang et al., 2023).

Sub-models of the global network are nested by width (leading channels), by depth (residual blocks left out) or both;
a client trains the one its capability level can carry. Each residual block adds s F(x) to its shortcut with a learnable
step size s, so that in a shallower sub-model the last block kept can stand in for those left out. Conv and linear
tensors are consistent: one global set, of which each sub-model trains a prefix, averaged per coordinate over the
clients that held it. BatchNorm and step sizes are inconsistent: one private set per sub-model.

The authors' code counts clients alike; here ``aggregation_weights`` decides, as in ``config/methods/nefl.yaml``.

Decisions where the source, or DapperFL's comparison, is silent: a level always trains the same sub-model
(``dynamic_range`` lets it draw among neighbours, from those that exist); the first block of a stage always stays, to
absorb the ones left out; the evaluated global model is the largest sub-model, whose BatchNorm only the strongest
clients train, a handicap that ``share_bn`` takes away; without BatchNorm the step sizes alone are private, and gains
and biases of standardised filters are shared. The default ``sizes`` are those of DapperFL's comparison,
(1 - rho)^2 for its pruning ratios rho, hence smaller models than DapperFL's at every level; for equal budgets set
``sizes`` to the values of 1 - rho (with ``scope: grouped``; inside blocks alone, widths of a size come out larger).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cached_property
from math import ceil, sqrt
from typing import Annotated, Literal

from pydantic import Field, field_validator
from torch import Tensor, nn

from fedml_dapper.errors import ConfigError, ProtocolError
from fedml_dapper.methods.contract import (
    Aggregation,
    ClientProfile,
    Downlink,
    Method,
    MethodParams,
    Pass,
    Phase,
    Problem,
    ServerState,
    Upload,
)
from fedml_dapper.methods.parts.averaging import WeightedMean
from fedml_dapper.methods.parts.stepped_blocks import block_stages, skippable_blocks, with_steps
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.models.norms import BatchNorm
from fedml_dapper.pruning import (
    ChannelLayout,
    Footprint,
    PruningPlan,
    RecoveringMean,
    Widths,
    footprint,
    plan_window,
    slim_model,
    slim_tensors,
)
from fedml_dapper.pruning.footprint import count_parameters
from fedml_dapper.randomness.seeding import Stream, numpy_generator

Size = Annotated[float, Field(gt=0, le=1)]


class NeFLParams(MethodParams):
    """Settings of NeFL; defaults are those of DapperFL's comparison."""

    sizes: tuple[Size, ...] = (0.04, 0.16, 0.36, 0.64, 1.0)
    """Shares of the parameters in sub-models 1 to K, rising to 1; capability level l trains sub-model K + 1 - l."""
    mode: Literal["width", "depth", "both"] = "width"
    """Dimension that sub-models are smaller in: channels, residual blocks, or sqrt(size) each. Depth alone reaches few
    sizes."""
    learnable_steps: bool = True
    """Training of the step sizes; False freezes them at their initial values, 1 but where a block absorbs others."""
    dynamic_range: int = Field(default=0, ge=0)
    """Reach x of a client's draw: each round it draws its sub-model uniformly from k - x to k + x, as far as they
    exist."""
    share_bn: bool = False
    """Averaging of BatchNorm over all sub-models too, instead of one private set per sub-model."""

    @field_validator("sizes")
    @classmethod
    def _rising_to_one(cls, sizes: tuple[float, ...]) -> tuple[float, ...]:
        if list(sizes) != sorted(set(sizes)) or sizes[-1:] != (1.0,):
            raise ValueError("must rise strictly and end with 1, e.g. [0.25, 1.0]")
        return sizes


class NeFL(Method[NeFLParams]):
    """Nested sub-models with step sizes; BatchNorm and step sizes are private to each sub-model."""

    name = "nefl"
    Params = NeFLParams
    slims = True
    cuts_depth = True
    slim_downlink = True
    ratios_are_of = "dapper_args.params.nefl.sizes"
    cost_note = "with `dynamic_range` above 0, clients now and then train sub-models larger than their level's."

    def __init__(self, params: NeFLParams, problem: Problem) -> None:
        super().__init__(params, problem)
        ratios = problem.ratios
        sizes = params.sizes
        if len(sizes) != len(ratios):
            raise ConfigError(
                f"dapper_args.params.nefl.sizes has {len(sizes)} sub-models, dapper_args.levels.ratios {len(ratios)}"
                " capability levels; give one size per level"
            )
        if len(set(ratios)) != len(ratios):
            raise ConfigError("dapper_args.levels.ratios: nefl needs a ratio of its own for every level; two are equal")
        if params.mode != "width" and not skippable_blocks(self.problem.backbone):
            raise ConfigError(
                f"dapper_args.params.nefl.mode: `{params.mode}` skips residual blocks, but this backbone has none to"
                " spare (one block a stage); use a deeper one, e.g. model_args.model: resnet18, or mode: width"
            )

    def build_model(self, backbone: Backbone) -> Backbone:
        """The backbone with a step size of 1 in every residual block."""
        stepped = with_steps(backbone, self.params.learnable_steps)
        if not block_stages(stepped):
            raise ConfigError("model_args.model: nefl needs a network of residual blocks; choose a ResNet")
        return stepped

    # Sub-models

    @cached_property
    def submodels(self) -> dict[int, PruningPlan]:
        """Part of the global model that each sub-model k = 1..K consists of, by k."""
        return {k: self._submodel(size) for k, size in enumerate(self.params.sizes, start=1)}

    def submodel_of(self, level: int) -> int:
        """Index of the sub-model of a capability level: K + 1 - level."""
        return len(self.params.sizes) + 1 - level

    def choose(self, server: ServerState, client_id: int) -> int:
        """Index of the sub-model that ``client_id`` trains in the coming round; asking twice changes nothing."""
        reachable = self.reachable(server.profiles[client_id].level)
        if len(reachable) == 1:
            return reachable[0]
        stream = numpy_generator(self.problem.seed, Stream.METHOD, client_id, server.round + 1)
        return int(stream.integers(reachable.start, reachable.stop))

    def reachable(self, level: int) -> range:
        """Indices of the sub-models that clients of a capability level draw from."""
        k = self.submodel_of(level)
        reach = self.params.dynamic_range
        return range(max(1, k - reach), min(len(self.params.sizes), k + reach) + 1)

    def _submodel(self, size: float) -> PruningPlan:
        mode = self.params.mode
        layout = self.problem.layout
        share = sqrt(size) if mode == "both" else size
        widths = {} if mode == "depth" else leading_widths(layout, share, self.problem.pruning.round_to)
        omitted = frozenset[str]() if mode == "width" else self._omitted(share)
        return PruningPlan(plan_window(layout, widths).kept, omitted)

    def _omitted(self, share: float) -> frozenset[str]:
        """Tensors of the deepest blocks, as many blocks as bring the parameters closest to ``share`` of the whole."""
        layout = self.problem.layout
        blocks = skippable_blocks(self.problem.backbone)
        choices = [tensors_of(blocks[:count], layout.tensors) for count in range(len(blocks) + 1)]
        target = share * count_parameters(layout, {})
        return min(choices, key=lambda omitted: abs(count_parameters(layout, {}, omitted) - target))

    # Parameters: one consistent set, K inconsistent ones

    @cached_property
    def inconsistent(self) -> frozenset[str]:
        """Names of step sizes and, unless shared, of all that belongs to BatchNorm layers."""
        norms = [
            name for name, layer in self.problem.backbone.named_modules()
            if isinstance(layer, BatchNorm) and not self.params.share_bn
        ]  # fmt: skip
        names = self.problem.layout.travelling
        steps = {f"{block}.step" for stage in block_stages(self.problem.backbone) for block in stage}
        return tensors_of(norms, names) | steps

    def private(self, server: ServerState, k: int) -> dict[str, Tensor]:
        """Inconsistent tensors theta_ic^k of sub-model k; at first a slice of the initial model's.

        Where blocks are left out, the last one kept starts with a step such that a stage's steps sum to its blocks.
        """
        remembered = server.memory.recall(f"submodel{k}")
        if remembered:
            return remembered
        plan = self.submodels[k]
        state = self.problem.backbone.state_dict()
        names = self.inconsistent - plan.omitted
        initial = slim_tensors({name: state[name] for name in state if name in names}, self.problem.layout, plan)
        for stage in block_stages(self.problem.backbone):
            steps = [f"{block}.step" for block in stage if f"{block}.step" not in plan.omitted]
            initial[steps[-1]] = initial[steps[-1]] + (len(stage) - len(steps))
        return initial

    def weights(self, server: ServerState, k: int) -> dict[str, Tensor]:
        """Weights of sub-model k: its slice of the consistent tensors, and its own inconsistent ones."""
        plan = self.submodels[k]
        left_out = plan.omitted | self.inconsistent
        shared = {name: tensor for name, tensor in server.weights.items() if name not in left_out}
        return {**slim_tensors(shared, self.problem.layout, plan), **self.private(server, k)}

    # The contract

    def footprint(self, ratio: float) -> Footprint:
        plan = self.submodels[self.submodel_of(1 + self.problem.ratios.index(ratio))]
        return footprint(self.problem.layout, plan.widths, skipped=plan.omitted, slim_downlink=True)

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs, of which each sub-model that the client draws from has the same share over many rounds."""
        reachable = self.reachable(profile.level)
        share = self.epochs(profile) / len(reachable)
        return tuple(Phase(share, (Pass(self.submodels[k]),)) for k in reachable)

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The level's own sub-model, whatever clients draw."""
        k = self.submodel_of(level)
        model = self.local_model(self.submodels[k])
        put_tensors(model, self.weights(server, k))
        return model

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        return self.submodels[self.choose(server, client_id)]

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        k = self.choose(server, client_id)
        return Downlink(server.round + 1, client_id, self.weights(server, k), self.submodels[k])

    def local_model(self, plan: PruningPlan) -> Backbone:
        skipped = [block for block in skippable_blocks(self.problem.backbone) if f"{block}.step" in plan.omitted]
        if not skipped:
            return slim_model(self.problem.backbone, self.problem.layout, plan)
        shallow = copy.deepcopy(self.problem.backbone)
        for block in skipped:
            shallow.set_submodule(block, nn.Identity())
        return slim_model(shallow, self.problem.layout, plan)

    @property
    def beyond_sums(self) -> str:
        return "sums of each sub-model's own tensors, apart from the sum that all share"

    def aggregation(self, server: ServerState) -> Aggregation:
        return NestedAggregation(server, self)


class NestedAggregation:
    """Aggregation NeFedAvg: means of consistent coordinates over all who held them, of inconsistent tensors per
    sub-model.

    A coordinate of the shell between sub-models k - 1 and k is held by the clients of sub-models k and larger. Private
    sets of sub-models that nobody trained stay as they are.
    """

    def __init__(self, server: ServerState, method: NeFL) -> None:
        self._server = server
        self._method = method
        consistent = {name: tensor for name, tensor in server.weights.items() if name not in method.inconsistent}
        self._shared = RecoveringMean(consistent, method.problem.layout, "holders")
        self._private = {k: WeightedMean(method.private(server, k)) for k in method.submodels}

    def add(self, upload: Upload) -> None:
        k = self._method.choose(self._server, upload.client_id)
        if not upload.plan.equals(self._method.submodels[k]):
            raise ProtocolError(f"client {upload.client_id} was sent sub-model {k}; its upload is of another")
        weight = 1 if self._method.problem.uniform_weights else upload.num_samples
        shared: dict[str, Tensor] = {}
        private: dict[str, Tensor] = {}
        for name, tensor in upload.weights.items():
            (private if name in self._method.inconsistent else shared)[name] = tensor
        self._private[k].check(private)
        self._shared.add(shared, upload.plan, weight)
        self._private[k].add(private, weight)

    def hold(self) -> None:
        self._shared.hold()

    def fold(self) -> None:
        self._shared.fold()

    def close(self) -> None:
        weights = self._shared.result()
        for k, mean in self._private.items():
            self._server.memory.keep(f"submodel{k}", mean.result())
        largest = self._method.private(self._server, max(self._private))
        self._server.weights = {**weights, **largest}


def leading_widths(layout: ChannelLayout, share: float, round_to: int = 1) -> Widths:
    """Widths of a sub-model: ceil(C sqrt(share)) of every group's C channels, a multiple of ``round_to``.

    Groups that stay whole are not named.

    Conv weights shrink along two axes, so this leaves about ``share`` of the parameters where all groups are cut.
    """
    widths = {}
    for group in layout.groups.values():
        wanted = round(group.channels * sqrt(share), 9)  # 100 * sqrt(0.3025) shall be 55 channels, not 56
        kept = ceil(wanted / round_to) * round_to
        if kept < group.channels:
            widths[group.name] = kept
    return widths


def tensors_of(layers: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """State-dict ``names`` that belong to one of ``layers``."""
    prefixes = tuple(f"{layer}." for layer in layers)
    return frozenset(name for name in names if name.startswith(prefixes))
