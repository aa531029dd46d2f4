"""FjORD, ordered dropout (Horvath et al., NeurIPS 2021).

A client of pruning ratio rho holds the leading channels of every group, so that models are nested as in HeteroFL. In
each local step it draws one width, uniformly from those of the capability levels that are not larger than its own, and
trains the leading channels of that width alone, in place (``sub_width.py``). So a narrow model learns from the images
of all clients that can hold it. The server averages each coordinate over its holders.

``distillation``, the paper's self-distillation as the authors' code for Flower has it: each step trains the client's
own width f by the task's loss, and the drawn one f_p towards it, with no gradient to the teacher:

    L = L_task(f(x), y) + KL(softmax f(x) || softmax f_p(x))

The original narrows the residual streams too: ``dapper_args.pruning.scope: grouped``. Deviations:

* Widths are those that solve the levels' budgets, not the same share of every layer.
* BatchNorm has one scale and shift for all widths, as in the original, but no running statistics for each width. What
  travels are those of the client's own width (``bn_statistics``); narrower ones leave them alone. So a channel's are
  means over clients of all widths that hold it, unless ``bn_statistics`` is ``by_level`` or ``exact``. Statistics that
  a device measures itself (``dapper_args.evaluation.devices``) come near the original's. Other norms have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from torch import Tensor

from fedml_dapper.datasets import Batch
from fedml_dapper.methods.contract import (
    ClientContext,
    ClientProfile,
    Downlink,
    Pass,
    Phase,
    Problem,
    ServerState,
    Terms,
    Upload,
)
from fedml_dapper.methods.parts.divergence import divergence
from fedml_dapper.methods.parts.per_step import PerStep
from fedml_dapper.methods.parts.static_batchnorm import StaticBatchNorm, StaticBatchNormParams
from fedml_dapper.methods.parts.sub_width import SubWidth
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import ChannelLayout, PruningPlan, Widths, plan_window, slim_layout
from fedml_dapper.randomness.seeding import Stream, numpy_generator


class FjORDParams(StaticBatchNormParams):
    """Settings of FjORD."""

    distillation: bool = False
    """Self-distillation: every step trains the client's own width too, and the drawn one learns from its outputs."""


class FjORD(StaticBatchNorm[FjORDParams]):
    """Nested sub-models; each step trains one of the widths that a client can hold."""

    name = "fjord"
    Params = FjORDParams
    slims = True
    allows_personal_layers = True
    slim_downlink = True
    remedy = "switch distillation off in dapper_args.params"
    cost_note = (
        "most steps of a strong client train a narrower network than its own, whose footprint is shown; with"
        " `distillation` they come on top of it."
    )

    def __init__(self, params: FjORDParams, problem: Problem) -> None:
        self.needs_labels = params.distillation and not problem.task.has_logits  # softmax is over classes
        super().__init__(params, problem)

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        return plan_window(self.problem.layout, self.problem.widths(server.profiles[client_id].ratio))

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs, each of whose steps draws one of the widths up to the client's own."""
        own = Pass(self.first_plan(profile))
        layout = self.problem.layout
        epochs = self.problem.training.epochs
        ratios = sorted({ratio for ratio in self.problem.ratios if ratio > profile.ratio})
        narrower = [Pass(plan_window(layout, self.problem.widths(ratio))) for ratio in ratios]
        of_narrower = [(own, one) if self.params.distillation else (one,) for one in narrower]
        share = epochs / (1 + len(narrower))
        drawn = [Phase(share, passes) for passes in ((own,), *of_narrower)]
        return (*drawn, *self.measuring(profile))

    def local_update(self, client: ClientContext, downlink: Downlink) -> Upload:
        """E epochs of steps, each of one width; then statistics of the client's own width."""
        model = self.load(client, downlink)
        drawn = self.drawn_widths(client, downlink, model)
        loss = self.ordered_dropout(drawn)
        training = self.train_epochs(client, downlink, model, loss, after_step=drawn.advance)
        self.measure_statistics(client, model)
        return self.upload(client, downlink, model, training)

    def drawn_widths(self, client: ClientContext, downlink: Downlink, model: Backbone) -> PerStep[SubWidth | None]:
        """The width of each step: one of those below the client's own inside its ``model``, or None for its own."""
        widths = [*self.narrower(client, downlink, model), None]
        generator = numpy_generator(self.problem.seed, Stream.METHOD, client.profile.client_id, downlink.round)
        return PerStep(widths[int(generator.integers(len(widths)))] for _ in count())

    def ordered_dropout(self, drawn: PerStep[SubWidth | None]) -> Terms:
        """The loss of a batch at the width that is drawn for the step."""
        problem = self.problem
        task = problem.task

        def terms(own: Backbone, batch: Batch) -> Iterator[Tensor]:
            narrower = drawn.now
            if narrower is None:
                yield problem.task_loss(own, batch)
            elif self.params.distillation:
                taught = own(batch.inputs)
                yield task.loss(taught, batch.targets)
                yield divergence(task.logits(narrower(batch.inputs)), task.logits(taught))
            else:
                yield task.loss(narrower(batch.inputs), batch.targets)

        return terms

    def narrower(self, client: ClientContext, downlink: Downlink, model: Backbone) -> list[SubWidth]:
        """The widths below the client's own inside its ``model``, widest first."""
        layout = slim_layout(self.problem.layout, downlink.plan)
        ratios = sorted({ratio for ratio in self.problem.ratios if ratio > client.profile.ratio})
        return [SubWidth(model, layout, plan_window(layout, self._within(layout, ratio))) for ratio in ratios]

    def _within(self, layout: ChannelLayout, ratio: float) -> Widths:
        """The widths of ``ratio``, where coarse steps made none of them larger than those of ``layout``."""
        widths = self.problem.widths(ratio)
        return {name: min(width, layout.groups[name].channels) for name, width in widths.items()}
