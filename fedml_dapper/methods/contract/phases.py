"""What a client's local round consists of, for those who price it: memory, time, energy."""

from __future__ import annotations

from dataclasses import dataclass

from fedml_dapper.pruning import PruningPlan


@dataclass(frozen=True)
class Pass:
    """A network's run over a batch."""

    plan: PruningPlan
    """The part of the global model that it is."""
    backward: bool = True
    """Whether gradients are taken; about twice the forward pass's multiply-accumulates more."""


@dataclass(frozen=True)
class Phase:
    """Epochs whose steps are all alike."""

    epochs: float
    """How many; a part of one where steps of several kinds take turns."""
    passes: tuple[Pass, ...]
    """What runs in each step, one after the other: first the network that the optimizer steps, then those beside it.
    All have their weights in memory meanwhile."""


def forward_only(plan: PruningPlan, epochs: float = 1) -> Phase:
    """Epochs in which a network runs over a client's samples and learns nothing."""
    return Phase(epochs, (Pass(plan, backward=False),))
