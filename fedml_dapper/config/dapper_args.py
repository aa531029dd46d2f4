"""``dapper_args``: everything FedML has no word for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from fedml_dapper.config.check_in_args import CheckInArgs
from fedml_dapper.config.fleet_args import FleetArgs
from fedml_dapper.config.level_forms import whole_levels
from fedml_dapper.config.limits import MAX_ROUNDS, MAX_SECONDS, MAX_WIDTH
from fedml_dapper.config.plain_values import plain
from fedml_dapper.config.privacy_args import PrivacyArgs
from fedml_dapper.config.section import Section

PruningRatio = Annotated[float, Field(ge=0, lt=1)]
Uplink = Literal["fp32", "fp16", "bf16", "int8"]
Downlinked = Literal["fp32", "bf16", "int8"]
BEYOND_FP16 = "weights beyond 65504 are too large for dapper_args.uplink fp16, and need bf16 or fp32"
Importance = Literal["filters", "gains", "scaled_filters"]
PersonalLayers = Literal["none", "statistics", "norms"]


class LevelBudget(Section):
    """``dapper_args.levels.budgets``: what a level holds of a network with adapters."""

    rank: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Rank components of each adapter; all of them when absent."""
    base: PruningRatio = 0.0
    """Pruning ratio of the network that the adapters stand beside, in ``pruning.ratio_of``."""


class LevelArgs(Section):
    """``dapper_args.levels``: capability levels, strongest first, as pruning ratios, and who has which."""

    ratios: tuple[PruningRatio, ...] = (0.0, 0.2, 0.4, 0.6, 0.8)
    """Pruning ratio of each level: the share that its model lacks."""
    budgets: tuple[LevelBudget, ...] | None = None
    """With ``model_args.adapter``, rank and base of each level in place of ``ratios``, which follow from them: the
    share of all parameters that a level lacks. ``levels: [{rank: 16}, {rank: 4, base: 0.5}]`` says the same."""
    assignment: tuple[Annotated[int, Field(ge=1)], ...] | str = "balanced"
    """``balanced``: round-robin over a seeded shuffle of the clients; ``index_mod``: client index modulo levels; a
    list: everyone's level, in client order; or a rule of your own, ``my_rule.py:rule``, which is asked before every
    round (docs/fleet.md)."""
    strict: bool = False
    """Refuse methods that train the full model on every client. Comparisons in the papers ignore limits there."""

    @model_validator(mode="before")
    @classmethod
    def _a_ratio_for_each_budget(cls, value: Any) -> Any:
        return whole_levels(value)

    @model_validator(mode="after")
    def _as_many_ratios(self) -> LevelArgs:
        if self.budgets is not None and len(self.budgets) != len(self.ratios):
            raise ValueError(
                f"has {len(self.budgets)} budgets and {len(self.ratios)} ratios; ratios follow from budgets"
            )
        return self

    @field_validator("ratios")
    @classmethod
    def _not_empty(cls, ratios: tuple[float, ...]) -> tuple[float, ...]:
        if not ratios:
            raise ValueError("needs at least one ratio, e.g. [0.0] for full models everywhere")
        return ratios


class PruningArgs(Section):
    """``dapper_args.pruning``: which channels may be cut, and what a pruning ratio counts."""

    scope: Literal["auto", "internal", "grouped", "official_mask"] = "internal"
    """``internal``: channels inside residual blocks; ``grouped``: those of the residual streams too; ``auto``: internal
    where that meets all ratios, else grouped, which is the default of networks that are not built in;
    ``official_mask``: the public code's masks, which set weights to zero and remove nothing."""
    ratio_of: Literal["parameters", "flops", "channels", "training_flops", "memory"] = "parameters"
    """Cost that a level's ratio is a share of; ``flops`` are multiply-accumulates of the model.

    ``training_flops`` are those of a client's whole round, ``memory`` is the peak of its training. Either is a share of
    what the full model costs under ``fedavg``, and level 1, at ratio 0, has the method's largest model whatever that
    costs. A run solves for them at its start, and goes on with ratios of parameters."""
    importance: Importance = "filters"
    """Importance of channels with ``norm: standardised``: the l1 norm of their filters, the size of their gains, or the
    product of both. Filters of other networks have no gain, and are ranked by l1 norm."""
    round_to: int = Field(default=1, ge=1, le=MAX_WIDTH)
    """Kept widths are multiples of this; 8 or 16 suit tensor cores, at the price of the 1 % budget tolerance."""


class EvaluationArgs(Section):
    """``dapper_args.evaluation``: what is measured besides the global model on every domain."""

    personal: bool | Literal["trained"] = False
    """Each client's own model on its own test samples, and what a round of local training changes there.

    ``aggregated``, or true: the model that the client starts from after the round. ``trained``: the one that its last
    local training left, before anything is aggregated; of a client that never trained, the one that it starts from."""
    devices: bool = False
    """The model of every capability level, as its devices run it: on every domain, and each client's on its own; as it
    is sent, and with BatchNorm's statistics measured on the device's own images."""
    unseen_domain: str | None = None
    """Leave this domain's clients out of training; it is tested all the same, after label-free adaptation where the
    method has one."""

    @field_validator("personal", mode="before")
    @classmethod
    def _one_or_the_other(cls, value: Any) -> Any:
        if value == "aggregated":
            return True  # the older name of true, under which earlier runs are found again
        if isinstance(value, bool) or value == "trained":
            return value
        raise ValueError(f"is {value!r}; choose aggregated, trained or false")


class DefenceArgs(Section):
    """``dapper_args.defence``: what the server does about harmful uploads (docs/reliability.md).

    The relative change of an upload is ||w - W|| / ||W|| over all it holds, W being what the client was sent.
    """

    max_change: float | None = Field(default=None, gt=0)
    """Largest relative change of an upload; larger ones are refused. No limit when absent."""
    max_times_median: float | None = Field(default=30, gt=1)
    """Across silos: largest ratio of an upload's relative change to the median of the round before. Uploads beyond it
    are refused, if their change is also more than 1; so are uploads whose extras exceed it. In the first round, which
    has none before, the round's own median counts, and the global model stays as it is if an upload exceeds it. No
    limit when null."""
    strikes: int | None = Field(default=None, ge=1)
    """Refused uploads after which a client is put in quarantine; never when absent."""
    quarantine_rounds: int = Field(default=10, ge=1, le=MAX_ROUNDS)
    """Rounds of a quarantine, in which a client is sent nothing; afterwards it starts with a clean slate."""
    aggregation: Literal["mean", "screened_mean", "trimmed_mean", "median", "norm_clipping"] = "mean"
    """Statistic over the clients that hold a coordinate: the mean, or one that a few bad clients cannot move far. All
    but ``mean`` go with methods that recover and average only."""
    least_agreement: float = Field(default=-0.2, le=1)
    """For ``screened_mean``: an upload's agreement is the mean cosine of its change and those of the others, over the
    coordinates that both hold, without the quarter of smallest and of largest. One whose agreement is less than so many
    times the median of all is left out."""
    most_length: float = Field(default=3.0, ge=1)
    """For ``screened_mean``: largest length of a change relative to those of most others, over the coordinates that
    both hold; longer ones are shortened."""
    trimmed_share: float = Field(default=0.2, gt=0, lt=0.5)
    """For ``trimmed_mean``: share of a coordinate's holders that is left out at either end, rounded up."""
    min_holders: int = Field(default=3, ge=1)
    """For ``trimmed_mean`` and ``median``: a coordinate that fewer clients hold counts as held by nobody, since of two
    values none can be called the odd one."""
    clip_change: float = Field(default=1.0, gt=0)
    """For ``norm_clipping``: uploads of larger relative change are shortened to this."""


class DapperArgs(Section):
    """``dapper_args``: everything FedML has no word for."""

    method: str = "dapperfl"
    """Name of a method (docs/methods.md)."""
    params: Annotated[dict[str, dict[str, Any]], AfterValidator(plain)] = Field(default={})
    """Method name -> that method's own settings (its ``Params`` class); the present method uses its own entry, so one
    file can hold the settings of all methods it is meant to compare."""
    levels: LevelArgs = LevelArgs()
    fleet: FleetArgs | None = None
    """The clients' devices, which decide on their levels; ``levels.assignment`` does when absent."""
    pruning: PruningArgs = PruningArgs()
    evaluation: EvaluationArgs = EvaluationArgs()
    defence: DefenceArgs = DefenceArgs()
    privacy: PrivacyArgs | None = None
    """Differential privacy of clients; none when absent."""
    personal_layers: PersonalLayers = "none"
    """What clients keep to themselves: nothing; BatchNorm's running statistics; or all norms, with gains and biases of
    standardised filters (docs/devices.md). Where something stays, there is no global model."""
    aggregation_weights: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the server's mean: its number of samples, or the same for all."""
    uplink: Uplink = "fp32"
    """Number format in which filters and matrices travel to the server; bf16 is off by at most 2^-8 of a weight, fp16
    by 2^-11, int8 by 1/127 of a filter's largest weight."""
    downlink: Downlinked = "fp32"
    """Number format in which they travel to clients, in the same sense; the server keeps fp32."""
    output_dir: Path = Path("runs")
    """Folder below which each run makes a folder of its own."""
    checkpoint_every: int = Field(default=5, ge=1, le=MAX_ROUNDS)
    """Rounds between two checkpoints; the last round always makes one, and so does Ctrl-C."""
    checkpoints_kept: int = Field(default=2, ge=1, le=MAX_ROUNDS)
    """Number of the latest checkpoints that are kept, besides that of the best round."""
    round_timeout_s: float = Field(default=3600, gt=0, le=MAX_SECONDS)
    """Seconds after which a round of separate processes closes with those who answered."""
    join_timeout_s: float | None = Field(default=None, gt=0, le=MAX_SECONDS)
    """Seconds that the server waits for all clients to come online before it begins with those that are there;
    ``round_timeout_s`` when absent."""
    min_clients_per_round: int = Field(default=1, ge=1)
    """Fewest uploads of a round. With fewer at the timeout, the run ends with an error; with ``training_type:
    cross_device`` the round changes nothing, and the next one begins."""
    check_in: CheckInArgs | None = None
    """With ``training_type: cross_device``, how many devices a round asks, and when others call again; its defaults
    when absent."""
    buffer_size: int | None = Field(default=None, ge=1)
    """Across silos, and devices that call, a round closes with so many uploads (FedBuff; Nguyen et al., AISTATS 2022).
    Those that are not done go on, and count in the round in which their upload arrives: what training changed is added
    to that round's global model, times (1 + rounds passed)^-1/2. A device has ``round_timeout_s`` for it. A round waits
    for everyone when absent; simulations have ``fleet.clock.late`` instead."""
