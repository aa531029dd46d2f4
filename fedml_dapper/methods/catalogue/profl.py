"""ProFL (Wu, Li and Xu, KDD 2025, arXiv 2404.13349): blocks are trained one after another, so that memory suffices.

The network is a chain of T blocks with an output behind it. First it shrinks: for t = T, ..., 2, block t is trained
behind the initial blocks before it, and a single layer, its stand-in, learns to do what it does. Later blocks are
replaced by their stand-ins, which with the network's own output are the output module. Then it grows: for t = 1, ...,
T, block t is trained from what shrinking left, behind the blocks trained before, which no longer change, and under the
output module that it had when it shrank. So in step t the global model is blocks 1 to t with the stand-ins behind them.

A step ends when the block's parameters have settled. With U_k their change in round k, the effective movement over the
last H rounds is

    sum_s |sum_k U_k,s| / sum_s sum_k |U_k,s|,   s over the block's scalars, k over H rounds

and a line is fitted by least squares to the last H movements. The step ends after W rounds in a row in which the line's
slope is less than phi in size.

A client of ratio rho has 1 - rho of the memory in which the full network can be trained. It trains the block where that
suffices, with the output module, and elsewhere the output module alone. A level that cannot hold even that in every
step takes no part. Frozen layers save nothing for a backward pass, and have neither gradients nor momentum; memory is
counted as in ``models/training_memory.py``, with the message that was received. What does not change is not sent back.
Every tensor is averaged over the clients that trained it.

A reconstruction: the paper's abstract and accounts of it by others were at hand, not its formulas. They tell of the two
stages, of layers that take in what a block has learnt, of output modules that are used again, of an effective movement
of scalars that ends a step, and of clients chosen by memory. Ours are how movement is defined and the rule that ends a
step, with H, W and phi; the size of stand-ins, convolutions of 3 x 3 with the network's norm (linear layers for blocks
of vectors); that one learns by the mean square of what separates it from its block, in the steps in which the block is
trained; what clients do that cannot train the block; and the modes of norms. Frozen blocks normalise by their
statistics, which freeze with them. While the network shrinks, the blocks in front have never run, and theirs are
measured.

Where we differ: no step but the last is longer than its even share of all rounds (``most_rounds``), since a run that
ends in the middle has no full network. Clients are weighted as ``aggregation_weights`` says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    LocalTraining,
    Loss,
    Method,
    MethodParams,
    Pass,
    Phase,
    Problem,
    ServerState,
    Tensors,
    Upload,
)
from fedml_dapper.methods.contract.local_training import training_memory
from fedml_dapper.methods.contract.phases import BACKWARD
from fedml_dapper.methods.contract.state import Value
from fedml_dapper.methods.parts.block_chain import chain_of
from fedml_dapper.methods.parts.block_steps import BlockSteps, Step
from fedml_dapper.methods.parts.effective_movement import Pace, way
from fedml_dapper.methods.parts.layers import modules_of, train_only
from fedml_dapper.methods.parts.stand_ins import distance, shortened, stand_in_of, with_stand_ins
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.pruning import ChannelLayout, Footprint, PruningPlan, Recovery, trace_layout
from fedml_dapper.pruning.footprint import count_bytes, count_macs, count_parameters
from fedml_dapper.randomness.seeding import Stream, seeded_layers

_TRAINS_BLOCK = "trains_block"
"""Name of what a client is told besides the model: whether it trains the block, bool ()."""


class ProFLParams(MethodParams):
    """Settings of ProFL."""

    blocks: tuple[str, ...] | None = None
    """Modules that are the network's blocks, front to back; by default its ``stages``, ``blocks``, ``layers``, or
    ``layer1``, ``layer2`` and so on."""
    shrink: bool = True
    """Shrinking before growing; false is the ablation without, in which stand-ins start untrained."""
    kernel: Literal[1, 3] = 3
    """Size of the stand-ins' convolutions."""
    mapping: float = Field(default=1.0, ge=0)
    """Weight of what a block teaches its stand-in; with 0 it learns nothing while its block is trained."""
    window: int = Field(default=5, ge=2)
    """Rounds H over which movement is looked at, and movements H to which a line is fitted."""
    threshold: float = Field(default=0.01, ge=0)
    """Slope phi below which a line is flat; with 0 no step ends before ``most_rounds``."""
    patience: int = Field(default=3, ge=1)
    """Rounds W in a row with a flat line after which a step ends."""
    most_rounds: int | None = Field(default=None, ge=1)
    """Rounds after which a step ends in any case; by default its even share of all rounds. The last step ends with the
    run."""


class ProFL(Method[ProFLParams]):
    """Progressive training: the network shrinks block by block, then grows block by block."""

    name = "profl"
    Params = ProFLParams
    recovery: Recovery = "holders"
    ratios_are_of = "memory"
    cuts_depth = True
    cost_note = (
        "figures are those of a level's costliest step; steps train one block each, and levels without memory for one"
        " train the layers behind it."
    )

    def __init__(self, params: ProFLParams, problem: Problem) -> None:
        self._chain = chain_of(problem.backbone, problem.example, params.blocks, "dapper_args.params.profl.blocks")
        super().__init__(params, problem)

    def build_model(self, backbone: Backbone) -> Backbone:
        """The backbone with a stand-in beside each block but the first."""
        with seeded_layers(self.problem.seed, Stream.METHOD):
            return with_stand_ins(backbone, self._chain, self.params.kernel)

    # Steps

    @cached_property
    def blocks(self) -> BlockSteps:
        """The network's steps, and the tensors of each."""
        backbone = self.problem.backbone
        parameters = frozenset(self.problem.layout.trainable)
        return BlockSteps(self._chain, frozenset(backbone.state_dict()), parameters, self.params.shrink)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return self.blocks.all

    @property
    def most_rounds(self) -> int:
        """Rounds after which a step ends that has not settled."""
        return self.params.most_rounds or max(1, self.problem.training.comm_round // len(self.steps))

    @property
    def depends_on_comm_round(self) -> str:
        if self.params.most_rounds is not None:
            return ""
        return "no step is longer than its share of all rounds (most_rounds)"

    def step_of(self, server: ServerState) -> Step:
        """The step of the coming round, or of the open one."""
        return self.steps[cast(int, server.memory.values.get("step", 0))]

    def work_of(self, server: ServerState, client_id: int) -> tuple[Step, bool]:
        """The step, and whether a client trains its block."""
        step = self.step_of(server)
        return step, self.trains_block(step, server.profiles[client_id].ratio)

    # Who can train what

    def trains_block(self, step: Step, ratio: float) -> bool:
        """Whether a client of pruning ratio ``ratio`` has the memory to train a step's block."""
        return ratio == 0 or self._needed(step, trains_block=True) <= (1 - ratio) * self._whole_memory

    def takes_part(self, level: int) -> bool:
        """Whether the level has the memory to train the output module in every step."""
        ratio = self.problem.ratios[level - 1]
        budget = (1 - ratio) * self._whole_memory
        return ratio == 0 or all(self._needed(step, trains_block=False) <= budget for step in self.steps)

    def has_level_model(self, level: int) -> bool:
        """Whether devices of ``level`` take part: they run the full network, which they have in memory in training."""
        return self.takes_part(level)

    def _needed(self, step: Step, trains_block: bool) -> int:
        """Bytes of training a step, with the message that was received."""
        key = (step, trains_block)
        if key not in self._counted:
            self._counted[key] = self._memory(self.blocks.pass_of(step, trains_block))
        return self._counted[key]

    @cached_property
    def _whole_memory(self) -> int:
        """Bytes of training the full network as FedAvg does."""
        return self._memory(Pass(self.blocks.sent_plan(self.steps[-1], trains_block=True)))

    def _memory(self, one: Pass) -> int:
        problem = self.problem
        memory = training_memory(self.pass_model(one), problem.example, problem.training)
        return memory.peak(problem.training.samples_at_a_time) + count_bytes(problem.layout, {}, (), one.plan.omitted)

    @cached_property
    def _counted(self) -> dict[tuple[Step, bool], int]:
        return {}

    # Plans

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        return self.blocks.sent_plan(*self.work_of(server, client_id))

    def upload_plan(self, server: ServerState, client_id: int) -> PruningPlan:
        return self.blocks.returned_plan(*self.work_of(server, client_id))

    # Networks

    def local_model(self, plan: PruningPlan) -> Backbone:
        """The network of the step whose tensors ``plan`` keeps; the network with all stand-ins where it keeps all."""
        step = self.blocks.step_of(plan)
        if step is None:
            return super().local_model(plan)
        return shortened(self.problem.backbone, self._chain, step.block, teaches=not step.grows)

    def global_model(self, server: ServerState) -> Backbone:
        """The network of the step: its first blocks, and the stand-ins behind them; in the last step the full one."""
        block = self.step_of(server).block
        model = shortened(self.problem.backbone, self._chain, block, teaches=False)
        present = model.state_dict().keys()
        put_tensors(model, {name: tensor for name, tensor in server.weights.items() if name in present})
        return model

    # What a round costs

    def model_size(self, plan: PruningPlan) -> tuple[int, int]:
        """As in every method; the whole network is that of the last step, as nobody runs it with all stand-ins."""
        step = self.blocks.step_of(plan) or self.steps[-1]
        layout = self._layout(step)
        return count_parameters(layout, {}), count_macs(layout, {}) + self._teaching_macs(step)

    def pass_macs(self, one: Pass) -> int:
        """Those of a forward pass, and of a backward pass from the output to the first block that is trained."""
        if one.trained is None:
            return super().pass_macs(one)
        step = self.blocks.step_of(one.plan)
        assert step is not None, "the plan of a step is"
        own = enumerate(self._chain.own, start=1)
        frozen = [number for number, tensors in own if number <= step.block and not tensors & one.trained]
        behind = count_macs(self._layout(step), {}, self._chain.of_blocks(frozen)) + self._teaching_macs(step)
        return self.model_size(one.plan)[1] + BACKWARD * behind

    def footprint(self, ratio: float) -> Footprint:
        """The largest of all steps, for each figure by itself."""
        layout = self.problem.layout
        works = [(step, self.trains_block(step, ratio)) for step in self.steps]
        sent = [self.blocks.sent_plan(*work) for work in works]
        returned = [self.blocks.returned_plan(*work) for work in works]
        sizes = [self.model_size(plan) for plan in sent]
        return Footprint(
            parameters=max(parameters for parameters, _ in sizes),
            macs=max(macs for _, macs in sizes),
            bytes_up=max(count_bytes(layout, {}, (), plan.omitted, layout.uplink) for plan in returned),
            bytes_down=max(count_bytes(layout, {}, (), plan.omitted, layout.downlink) for plan in sent),
        )

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """An even share of the epochs for each step, so that time is that of a mean round."""
        epochs = self.epochs(profile) / len(self.steps)
        passes = [self.blocks.pass_of(step, self.trains_block(step, profile.ratio)) for step in self.steps]
        return tuple(Phase(epochs, (one,)) for one in passes)

    def _layout(self, step: Step) -> ChannelLayout:
        """The layout of a step's network, without the stand-in that learns beside its block."""
        if step.block not in self._layouts:
            network = shortened(self.problem.backbone, self._chain, step.block, teaches=False)
            self._layouts[step.block] = trace_layout(network, self.problem.example, None)
        return self._layouts[step.block]

    def _teaching_macs(self, step: Step) -> int:
        """Multiply-accumulates of the stand-in that learns beside its block."""
        if step.grows:
            return 0
        before = self._layout(Step(step.block - 1, grows=True))
        others = [name for name in before.tensors if not name.startswith(stand_in_of(step.block))]
        return count_macs(before, {}, {*others, *before.products})

    @cached_property
    def _layouts(self) -> dict[int, ChannelLayout]:
        return {}

    # A round

    def downlink(self, server: ServerState, client_id: int) -> Downlink:
        """The step's model, and whether the client trains its block."""
        _, trains_block = self.work_of(server, client_id)
        return replace(super().downlink(server, client_id), extras={_TRAINS_BLOCK: torch.tensor(trains_block)})

    def objective(self, client: ClientContext, downlink: Downlink) -> Loss:
        """The task's loss and, as the network shrinks, the distance of the block's stand-in from the block."""
        del client
        step = self.blocks.step_of(downlink.plan)
        weight = self.params.mapping
        if step is None or step.grows or weight == 0:
            return self.problem.task_loss

        def loss(model: Backbone, batch: Batch) -> Tensor:
            return self.problem.task_loss(model, batch) + weight * distance(model)

        return loss

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs of the step's block and output module, or of the output module alone; these are sent back."""
        step = self.blocks.step_of(downlink.plan)
        assert step is not None, "a client is sent a step's model"
        trains_block = bool(downlink.extras[_TRAINS_BLOCK])
        model = self.load(client, downlink)
        train_only(model, self.blocks.trained(step, trains_block) & self.blocks.parameters)
        epochs = self.epochs(client.profile)
        training = LocalTraining(client, downlink.round, self.problem.training, epochs)
        optimizer = training.optimizer(model, parameters=[each for each in model.parameters() if each.requires_grad])
        mode = partial(self.set_modes, frozen=self.blocks.frozen(step, trains_block))
        training.epoch(model, optimizer, self.objective(client, downlink), times=epochs, mode=mode)
        upload = self.upload(client, downlink, model, training)
        plan = self.blocks.returned_plan(step, trains_block)
        kept = {name: tensor for name, tensor in upload.weights.items() if name not in plan.omitted}
        return replace(upload, weights=kept, plan=plan)

    def set_modes(self, model: Backbone, frozen: Collection[int]) -> None:
        """Put the blocks of these numbers, and with the first all in front of it, into evaluation; all else trains."""
        model.train()
        for number in frozen:
            model.get_submodule(self._chain.names[number - 1]).eval()
        if 1 in frozen:
            for name in self._layers_in_front:
                model.get_submodule(name).eval()

    @cached_property
    def _layers_in_front(self) -> tuple[str, ...]:
        """Layers with tensors that run before the first block."""
        first = self._chain.names[0]
        own = self._chain.own[0]
        layers = modules_of(self.problem.backbone)
        return tuple(
            layer.name for layer in layers if own.issuperset(layer.tensors) and not layer.name.startswith(first)
        )

    def server_update(self, server: ServerState, mean: Tensors) -> None:
        """The mean is the new global model. Where the block has settled, the next step begins."""
        step = self.step_of(server)
        before = server.weights
        counters = {name: mean[name].maximum(before[name]) for name in mean if not mean[name].is_floating_point()}
        server.weights = {**mean, **counters}  # the mean of counters is their maximum, which is 0 where nobody counted
        memory = server.memory
        memory.values["closed"] = str(step)
        if step == self.steps[-1]:
            memory.values["movement"] = None
            return
        pace = self._pace_after(server, before, step)
        memory.values["movement"] = pace.movements[-1] if pace.movements else None
        if pace.flat >= self.params.patience or pace.rounds >= self.most_rounds:
            self._begin_next(server, step)
        else:
            memory.values["pace"] = pace.values()

    def _pace_after(self, server: ServerState, before: Tensors, step: Step) -> Pace:
        """The block's pace after a round in which it moved from ``before``."""
        window = self.params.window
        names = sorted(self._chain.own[step.block - 1] & self.blocks.parameters)
        pace = Pace.of(server.memory.values.get("pace"))
        server.memory.keep(_place(pace.rounds, window), {name: before[name] for name in names})
        oldest = pace.rounds + 1 - window
        now = {name: server.weights[name] for name in names}
        past = server.memory.recall(_place(oldest, window)) if oldest >= 0 else None
        length = way({name: before[name] for name in names}, now)
        return pace.after_round(length, None if past is None else way(past, now), window, self.params.threshold)

    def _begin_next(self, server: ServerState, step: Step) -> None:
        """Forget the pace of ``step``, keep its output module if the network shrank, and take up the next step's."""
        memory = server.memory
        for slot in range(self.params.window):
            memory.keep(_place(slot, self.params.window), {})
        memory.values["pace"] = None
        if not step.grows:
            kept = sorted(self.blocks.output_module(step.block) & server.weights.keys())
            memory.keep(_output(step.block), {name: server.weights[name] for name in kept})
        position = self.steps.index(step) + 1
        memory.values["step"] = position
        following = self.steps[position]
        if following.grows:
            server.weights = {**server.weights, **memory.recall(_output(following.block))}
            memory.keep(_output(following.block), {})

    # What the server learns, and what it tells

    @property
    def takes_late_uploads(self) -> bool:
        """False: an upload of an earlier step would move what no longer changes."""
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        """Which blocks there are, and which levels cannot train some of them."""
        steps = len(self.steps)
        lines = [f"{len(self._chain)} blocks are trained in {steps} steps, each for {self.most_rounds} rounds at most"]
        for level, ratio in enumerate(self.problem.ratios, start=1):
            without = [str(step) for step in self.steps if not self.trains_block(step, ratio)]
            if not self.takes_part(level):
                lines.append(f"level {level} takes no part: some step's model does not fit its memory in training")
            elif without:
                lines.append(f"level {level} trains the layers behind the block alone in {', '.join(without)}")
        if self.problem.training.comm_round < steps:
            lines.append(f"the run ends before the network is whole: {steps} rounds are needed")
        return tuple(lines)

    def round_notes(self, server: ServerState) -> Mapping[str, Value]:
        """The step of the round, and the block's effective movement where it is known."""
        values = server.memory.values
        moved = values.get("movement")
        return {"step": values.get("closed"), **({} if moved is None else {"effective_movement": moved})}


def _place(round_: int, window: int) -> str:
    """Name of where the server remembers a block as it was before its ``round_``-th round, from 0 on."""
    return f"past{round_ % window}"


def _output(block: int) -> str:
    """Name of where the server remembers the output module under which a block was trained."""
    return f"output{block}"
