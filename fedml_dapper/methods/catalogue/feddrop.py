"""FedDrop, federated dropout (Caldas et al., arXiv 1812.07210).

Every round the server cuts a random narrow sub-network out of the global model for each client; the client trains it
as it is and sends it back. All clients drop the same share, whatever their level, so it must suit the weakest.

Where the text is silent: coordinates a client did not hold count as unchanged (``fill``); the share is that of the
authors' argument file (``uniform_rho``). Left out: the lossy codec of the download, which any method could carry, and
inverted dropout, which enlarges kept channels by C / k. In training the BatchNorm that follows divides that factor out
again; it would only raise running variances by (C / k)^2, which is more than the dense model has. Standardised filters
keep their scale by themselves.

Nobody ever runs the dense model that the server tests, and the running statistics behind a cut layer are those of
narrow inputs, so accuracy stays low and jumps from round to round. The weights are better than they look: on the
quickstart suite 19 % after 5 rounds and 38 % after 12 (one seed), but 57 % and 80 % with statistics measured anew on
the clients' images.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from fedml_dapper.methods.contract import Method, MethodParams, Problem, ServerState
from fedml_dapper.pruning import Footprint, PruningPlan, plan_at_random
from fedml_dapper.randomness.seeding import Stream, numpy_generator


class FedDropParams(MethodParams):
    """Settings of FedDrop."""

    uniform_rho: float | Literal["max_level"] = 0.6
    """Pruning ratio of every client; ``max_level`` takes the largest of ``dapper_args.levels.ratios``."""
    fill: Literal["global", "holders"] = "global"
    """Stand-in for channels that a client did not hold: the previous global model (Eq. 6-7 of DapperFL), or nothing,
    so that only holders are averaged."""
    shared_mask: bool = False
    """One draw a round for all clients, instead of one each."""

    @field_validator("uniform_rho", mode="before")
    @classmethod
    def _ratio_or_word(cls, value: Any) -> Any:
        if value == "max_level" or (isinstance(value, int | float) and 0 <= value < 1):
            return value
        raise ValueError(f"is {value!r}; choose a ratio of at least 0 and below 1, or max_level")


class FedDrop(Method[FedDropParams]):
    """Random sub-models of one size for all, drawn anew every round."""

    name = "feddrop"
    Params = FedDropParams
    slims = True
    allows_personal_layers = True
    slim_downlink = True
    cost_note = "every client drops the same share (`uniform_rho`), whatever its capability level."

    def __init__(self, params: FedDropParams, problem: Problem) -> None:
        super().__init__(params, problem)
        self.recovery = params.fill
        levels_decide = params.uniform_rho == "max_level"
        self.ratio: float = max(problem.ratios) if params.uniform_rho == "max_level" else params.uniform_rho
        setting = "dapper_args.levels.ratios" if levels_decide else "dapper_args.params.feddrop.uniform_rho"
        self.problem.widths(self.ratio, setting)  # out of reach is an error now

    def footprint(self, ratio: float) -> Footprint:
        del ratio
        return super().footprint(self.ratio)

    def plan(self, server: ServerState, client_id: int) -> PruningPlan:
        """Channels drawn uniformly without replacement, a fixed number of each group; round and client seed it."""
        keys = (server.round + 1,) if self.params.shared_mask else (server.round + 1, client_id)
        generator = numpy_generator(self.problem.seed, Stream.METHOD, *keys)
        return plan_at_random(self.problem.layout, self.problem.widths(self.ratio), generator)
