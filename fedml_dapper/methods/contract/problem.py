"""The problem that methods solve: network, task, training and rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from fedml_dapper.capture import Unchanging
from fedml_dapper.config import DefenceArgs, LevelBudget, PersonalLayers, PruningArgs, TrainArgs, Uplink
from fedml_dapper.datasets import Batch
from fedml_dapper.inputs import Inputs
from fedml_dapper.methods.contract.personal_layers import tensors_of_personal_layers
from fedml_dapper.methods.contract.privacy import Privacy, SecureSums
from fedml_dapper.models import Backbone
from fedml_dapper.models.loading import put_tensors
from fedml_dapper.pruning import ChannelLayout, NoiseShare, Scoped, Tensors, Widths, trace_layout, verify_layout
from fedml_dapper.pruning.budgets import BudgetedLevel, budgeted_levels
from fedml_dapper.tasks import Classification, Task


@dataclass(frozen=True)
class Problem(Unchanging):
    """The problem of a run, the same for every method that is compared on it."""

    backbone: Backbone
    """The initial global model; never trained itself."""
    example: Inputs
    """A batch of one input, on the CPU: its shape and dtype are those of all others."""
    training: TrainArgs
    pruning: PruningArgs
    uniform_weights: bool
    seed: int
    ratios: tuple[float, ...] = (0.0,)
    """Pruning ratio of each capability level, strongest first."""
    budgets: tuple[LevelBudget, ...] | None = None
    """Rank and base of each capability level, of which :attr:`ratios` are then a consequence."""
    slims: bool = True
    """Whether the method slims; otherwise no channels are traced, so that any network will do."""
    uplink: Uplink = "fp32"
    """Format of numbers in which uploads travel."""
    downlink: Uplink = "fp32"
    """Format of numbers in which models travel to clients."""
    defence: DefenceArgs = field(default_factory=DefenceArgs)
    """Statistic that the server takes over the clients that hold a coordinate."""
    task: Task = field(default_factory=Classification)
    """Task by which models are trained and judged."""
    personal_layers: PersonalLayers = "none"
    """Kind of layers that clients keep to themselves, ``dapper_args.personal_layers``."""
    privacy: Privacy | None = None
    """Noise that hides a client's part in the model; None for none."""
    secure_sums: SecureSums | None = None
    """Secure sums, where the server is to learn no more than the sum of changes."""

    def task_loss(self, model: Backbone, batch: Batch) -> Tensor:
        """The plain local objective: the task's mean loss over the batch."""
        return self.task.loss(model(batch.inputs), batch.targets)

    def noise_share(self, round_: int, client_id: int) -> NoiseShare | None:
        """A client's share of the noise that clients add together in a round; None where they do not."""
        if self.privacy is None or self.secure_sums is None:
            return None
        noise = self.privacy.noise(self.seed, round_, client_id)
        return NoiseShare(self.privacy.clip, self.secure_sums.noise_std, noise)

    @cached_property
    def layout(self) -> ChannelLayout:
        """The tensors of the backbone and its prunable channels, traced once."""
        scoped = self.scoped
        layout = trace_layout(self.backbone, self.example, None) if scoped is None else scoped.layout
        return replace(layout, uplink=self.uplink, downlink=self.downlink, importance=self.pruning.importance)

    @cached_property
    def scoped(self) -> Scoped | None:
        """The scope in which the backbone is cut, and why that one; None where nothing is cut."""
        wanted = self.ratios if self.budgets is None else tuple(budget.base for budget in self.budgets)
        return Scoped.of(self.backbone, self.example, self.pruning, wanted) if self.slims else None

    @cached_property
    def personal_tensors(self) -> frozenset[str]:
        """Names of the backbone's tensors in :attr:`personal_layers`.

        Raises ``ConfigError`` where the backbone has no such layer.
        """
        return tensors_of_personal_layers(self.backbone, self.personal_layers)

    def starting_weights(self) -> dict[str, Tensor]:
        """What travels of the initial global model: all but frozen parameters, by name, not copied."""
        state = self.backbone.state_dict()
        return {name: state[name] for name in self.layout.travelling}

    def whole(self, weights: Tensors) -> dict[str, Tensor]:
        """``weights`` of a global model and its frozen parameters, in the order of the network's state dict."""
        return {name: weights.get(name, tensor) for name, tensor in self.backbone.state_dict().items()}

    def take_frozen(self, weights: Tensors) -> None:
        """Put the frozen parameters among ``weights``, of a whole model, into the backbone.

        For runs that are read back, where what their base was loaded from may not be there.
        """
        specs = self.layout.tensors
        put_tensors(self.backbone, {name: tensor for name, tensor in weights.items() if specs[name].frozen})

    def with_ratios_of_budgets(self) -> Problem:
        """The same problem, in which ``ratios`` are what :attr:`budgets` come to; itself where there are none.

        Raises ``ConfigError`` where the network cannot meet a budget.
        """
        if self.budgets is None:
            return self
        return replace(self, ratios=tuple(level.ratio for level in self._levels))

    @cached_property
    def _levels(self) -> tuple[BudgetedLevel, ...]:
        """Widths of the levels that have a budget; none without budgets, or where nothing is cut."""
        if self.budgets is None or not self.slims:
            return ()
        return budgeted_levels(self.layout, self.budgets, self.pruning)

    def widths(self, ratio: float, setting: str = "dapper_args.levels.ratios") -> Widths:
        """Channels that a client of pruning ratio ``ratio`` keeps, solved once; none where nothing is removed.

        Raises ``ConfigError``, naming the ``setting`` that the ratio comes from, where it is out of reach.
        """
        if ratio not in self._solved:
            scoped = self.scoped
            whole = dict[str, int]()
            budgeted = {self.ratios[place]: level.widths for place, level in enumerate(self._levels)}
            self._solved[ratio] = (
                budgeted[ratio]
                if ratio in budgeted
                else whole
                if scoped is None or scoped.scope == "official_mask"
                else scoped.widths(ratio, self.pruning, setting, self.backbone, self.example)
            )
        return self._solved[ratio]

    def verify(self) -> None:
        """Run the slim network of every ratio that was asked for once.

        Raises ``ConfigError`` where one is not the dense network without the channels that it lost.
        """
        verify_layout(self.backbone, self.layout, self._solved, self.example)

    @cached_property
    def _solved(self) -> dict[float, Widths]:
        return {}
