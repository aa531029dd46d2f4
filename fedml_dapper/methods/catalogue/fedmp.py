"""FedMP (Jiang et al., ICDE 2022).

The server prunes the global model for each client by filter l1 norm before it sends it; the client trains the slim
model in all its epochs. The server puts back what it had cut off (the client's residual W - W M_i) and averages:
R2SP, which is DapperFL's Eq. 6-7 word for word. The original averages uniformly; here ``aggregation_weights`` decides.

``ratio: fixed`` takes the level's pruning ratio, as in DapperFL's comparison. ``ratio: eucb`` lets one bandit per
client choose among the multiples of ``theta`` below ``max_ratio``, after the original's idea; the formulas are our
reconstruction, made so that runs repeat bit for bit:

* completion time, estimated and never measured:  T_i = MACs_i n_i E / (1 - rho_level(i))
* spread over the clients that answered:          s_i = |T_i - mean T| / mean T
* reward:                                         R_i = max(0, 1 - loss_i / previous loss_i) / (1 + s_i)

The original divides the loss decrease by |T_i - mean T| alone, which has no upper bound. A client's first upload earns
nothing, as there is no loss to compare it with. Where the bandit looks next: ``ratio_bandit.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile
from typing import Literal, cast

from pydantic import Field
from torch import Tensor

from fedml_dapper.methods.contract import (
    Aggregation,
    ClientProfile,
    Method,
    MethodParams,
    Pass,
    Phase,
    Problem,
    RecoverAndAverage,
    ServerState,
    Upload,
    Value,
)
from fedml_dapper.methods.parts.ratio_bandit import Leaf, choose, learn
from fedml_dapper.models import Backbone
from fedml_dapper.pruning import DENSE, PruningPlan, Tensors, plan_by_importance


class FedMPParams(MethodParams):
    """Settings of FedMP; all but ``ratio`` concern ``ratio: eucb``."""

    ratio: Literal["fixed", "eucb"] = "fixed"
    """Choice of the pruning ratio: by the capability level, or by a bandit."""
    max_ratio: float = Field(default=0.9, gt=0, le=1)
    """Upper bound of the ratios, which stay below it."""
    theta: float = Field(default=0.1, gt=0, lt=1)
    """Distance of neighbouring ratios, at which intervals are no longer halved."""
    discount: float = Field(default=0.95, gt=0, le=1)
    """Worth of a pull one pull later."""
    exploration: float = Field(default=0.1, ge=0)
    """Weight of the confidence padding; rewards are relative loss decreases, a few tenths at most."""


class FedMP(Method[FedMPParams]):
    """Sub-models pruned by the server on the global weights, and residual recovery."""

    name = "fedmp"
    Params = FedMPParams
    slims = True
    allows_personal_layers = True
    slim_downlink = True
    cost_note = (
        "with `ratio: eucb` the ratio is chosen anew in every round, up to the full model for a weak client, and levels"
        " only say how fast a client is; the footprints of levels are those of `ratio: fixed`."
    )

    def __init__(self, params: FedMPParams, problem: Problem) -> None:
        super().__init__(params, problem)
        self._plans: dict[float, PruningPlan] = {}
        """Plans by ratio, which many clients ask for."""
        self._planned_on: dict[str, tuple[Tensor, int]] = {}
        """Global model that the plans were made of, each tensor with its version, which changes with its values."""
        self.arms = tuple(
            takewhile(lambda ratio: ratio < params.max_ratio, (round(k * params.theta, 9) for k in count()))
        )
        if params.ratio == "eucb":
            for ratio in self.arms:
                self.problem.widths(ratio, "dapper_args.params.fedmp.max_ratio")  # out of reach is an error now

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """The channels of largest l1 norm in the global model."""
        return self._plan_of(server, self.ratio(server, client_id))

    def _plan_of(self, server: ServerState, ratio: float) -> PruningPlan:
        if not _are_same(self._planned_on, server.weights):
            self._planned_on = {name: (tensor, tensor._version) for name, tensor in server.weights.items()}
            self._plans.clear()
        if ratio not in self._plans:
            widths = self.problem.widths(ratio)
            weights = self.problem.whole(server.weights)
            plan = plan_by_importance(self.problem.layout, weights, widths) if widths else DENSE
            self._plans[ratio] = plan
        return self._plans[ratio]

    def ratio(self, server: ServerState, client_id: int) -> float:
        """The client's pruning ratio in the coming round."""
        if self.params.ratio == "fixed":
            return server.profiles[client_id].ratio
        return self.arms[choose(self.leaves(server, client_id), self.params.exploration).arm]

    def local_phases(self, profile: ClientProfile) -> tuple[Phase, ...]:
        """E epochs of the part that is sent; with ``eucb`` every ratio has the same share, as before it has learnt."""
        if self.params.ratio == "fixed":
            return super().local_phases(profile)
        start = ServerState(0, self.problem.starting_weights(), ())
        share = self.epochs(profile) / len(self.arms)
        return tuple(Phase(share, (Pass(self._plan_of(start, ratio)),)) for ratio in self.arms)

    def level_model(self, server: ServerState, level: int) -> Backbone:
        """The global model at the level's ratio, whatever ratios the clients' bandits choose."""
        return self.part_of_global_model(server, self._plan_of(server, self.problem.ratios[level - 1]))

    def aggregation(self, server: ServerState) -> Aggregation:
        """Residual recovery and mean (R2SP), after which the bandits learn where there are any."""
        if self.params.ratio == "fixed":
            return RecoverAndAverage(server, self.problem)
        return _LearnAndAverage(server, self)

    def leaves(self, server: ServerState, client_id: int) -> list[Leaf]:
        """Knowledge of the client's bandit; at first one interval that holds all arms."""
        known = cast(dict[str, list[list[float]]], server.memory.values.get("leaves", {}))
        rows = known.get(str(client_id), [[0, len(self.arms)]])
        return [Leaf(int(low), int(high), *earned) for low, high, *earned in rows]

    def completion_time(self, server: ServerState, upload: Upload) -> float:
        """Estimated time of an upload, without unit: MACs per image x images x epochs / (1 - rho of the client's
        level)."""
        profile = server.profiles[upload.client_id]
        _, macs = self.model_size(upload.plan)
        return macs * upload.num_samples * self.epochs(profile) / (1 - profile.ratio)

    @property
    def takes_robust_means(self) -> bool:
        return self.params.ratio == "fixed"  # bandits compare clients' times and losses

    @property
    def beyond_sums(self) -> str:
        return "" if self.params.ratio == "fixed" else "each client's loss, by which it chooses ratios (ratio: eucb)"


def _are_same(before: Mapping[str, tuple[Tensor, int]], now: Tensors) -> bool:
    """Return whether these are the same tensors with the same values."""
    found = ((before.get(name), tensor) for name, tensor in now.items())
    return all(held is not None and held[0] is tensor and held[1] == tensor._version for held, tensor in found)


class _LearnAndAverage(RecoverAndAverage):
    """Aggregation that teaches each client's bandit what its ratio was worth."""

    def __init__(self, server: ServerState, method: FedMP) -> None:
        super().__init__(server, method.problem)
        self._method = method
        self._losses: dict[int, float] = {}
        self._times: dict[int, float] = {}

    def add(self, upload: Upload) -> None:
        super().add(upload)
        self._losses[upload.client_id] = upload.metrics.loss
        self._times[upload.client_id] = self._method.completion_time(self._server, upload)

    def close(self) -> None:
        super().close()
        method = self._method
        values = self._server.memory.values
        losses = dict(cast(dict[str, float], values.get("losses", {})))
        leaves = dict(cast(dict[str, Value], values.get("leaves", {})))
        earned = rewards(self._losses, losses, self._times)
        for client_id, reward in earned.items():
            known = method.leaves(self._server, client_id)
            arm = choose(known, method.params.exploration).arm  # what was sent: the memory is still the round's
            learnt = learn(known, arm, reward, method.params.discount)
            leaves[str(client_id)] = [list(leaf) for leaf in learnt]
        losses.update({str(client_id): loss for client_id, loss in self._losses.items()})
        values["losses"] = dict(losses)
        values["leaves"] = leaves


def rewards(losses: dict[int, float], previous: dict[str, float], times: dict[int, float]) -> dict[int, float]:
    """Rewards R_i by client whose previous loss is known: its relative decrease / (1 + relative distance to the mean
    time)."""
    mean = sum(times.values()) / len(times)
    earned = {}
    for client_id, loss in losses.items():
        before = previous.get(str(client_id))
        if before is not None:
            decrease = max(0.0, 1 - loss / before) if before > 0 else 0.0
            earned[client_id] = decrease / (1 + abs(times[client_id] - mean) / mean)
    return earned
