"""Steps in which the blocks of a network are trained one after another, and the tensors of each (ProFL)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedml_dapper.methods.contract import Pass
from fedml_dapper.methods.parts.block_chain import BlockChain
from fedml_dapper.methods.parts.stand_ins import stand_in_of
from fedml_dapper.pruning import PruningPlan


@dataclass(frozen=True)
class Step:
    """A step: the block that is trained, and whether the network grows by it or shrinks to it."""

    block: int
    grows: bool

    def __str__(self) -> str:
        return f"{'growing' if self.grows else 'shrinking'} {self.block}"


@dataclass(frozen=True)
class BlockSteps:
    """All steps of a network. A client trains a step's block, or what is behind the block alone."""

    chain: BlockChain
    tensors: frozenset[str]
    """State-dict entries of the network with all stand-ins."""
    parameters: frozenset[str]
    """Those that are parameters, frozen ones of an adapted network left out."""
    shrinks: bool
    """Whether the network shrinks before it grows."""

    @cached_property
    def all(self) -> tuple[Step, ...]:
        """All steps in order: blocks T to 2 shrinking, blocks 1 to T growing."""
        last = len(self.chain)
        shrinking = [Step(block, grows=False) for block in range(last, 1, -1)] if self.shrinks else []
        return (*shrinking, *(Step(block, grows=True) for block in range(1, last + 1)))

    def present(self, step: Step, trains_block: bool) -> frozenset[str]:
        """Tensors of a client's model; the stand-in of a shrinking block is for those that train the block."""
        teaches = trains_block and not step.grows
        blocks = self.chain.of_blocks(range(1, step.block + 1))
        return blocks | self.output_module(step.block - 1 if teaches else step.block)

    def output_module(self, block: int) -> frozenset[str]:
        """Tensors behind ``block``: the stand-ins of later blocks, and what is behind the last one."""
        later = tuple(stand_in_of(number) for number in range(block + 1, len(self.chain) + 1))
        return frozenset(name for name in self.tensors if name.startswith(later)) | self.chain.head

    def trained(self, step: Step, trains_block: bool) -> frozenset[str]:
        """Tensors that a client trains, statistics of norms among them."""
        if not trains_block:
            return self.output_module(step.block)
        return self.present(step, trains_block) - self.chain.of_blocks(range(1, step.block))

    def returned(self, step: Step, trains_block: bool) -> frozenset[str]:
        """Tensors that a client sends back: those that it trains and, as the network shrinks, statistics in front."""
        trained = self.trained(step, trains_block)
        if step.grows or not trains_block:
            return trained
        return trained | (self.present(step, trains_block) - self.parameters)

    def frozen(self, step: Step, trains_block: bool) -> range:
        """Numbers of the blocks that run as in evaluation: all that a client does not train, but as it shrinks none."""
        if not trains_block:
            return range(1, step.block + 1)
        return range(1, step.block) if step.grows else range(0)

    def sent_plan(self, step: Step, trains_block: bool) -> PruningPlan:
        """The part of the global model that a client is sent."""
        return PruningPlan({}, self.tensors - self.present(step, trains_block))

    def returned_plan(self, step: Step, trains_block: bool) -> PruningPlan:
        """The part of the global model that a client sends back."""
        return PruningPlan({}, self.tensors - self.returned(step, trains_block))

    def pass_of(self, step: Step, trains_block: bool) -> Pass:
        """The pass of a client's training step."""
        trained = self.trained(step, trains_block) & self.parameters
        return Pass(self.sent_plan(step, trains_block), trained=trained)

    def step_of(self, plan: PruningPlan) -> Step | None:
        """The step whose model a plan names, as it is sent or sent back; None for a plan of no step.

        The model of clients that do not train a shrinking block is that in which the network grows by it.
        """
        return self._by_omitted.get(plan.omitted)

    @cached_property
    def _by_omitted(self) -> dict[frozenset[str], Step]:
        works = [(step, trains_block) for step in self.all for trains_block in (True, False)]
        models = {work: work[0] if work[1] else Step(work[0].block, grows=True) for work in works}
        back = {self.returned_plan(*work).omitted: model for work, model in models.items()}
        return {**back, **{self.sent_plan(*work).omitted: model for work, model in models.items()}}
